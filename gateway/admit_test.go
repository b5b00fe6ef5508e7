package gateway

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// TestAdmit: from the peer, a gateway lets in what its cluster exports, and the answers to its own
// pods. Exports change as fast as pods do, without a new configuration for all. A trace and the
// status say what is admitted.
func TestAdmit(t *testing.T) {
	export := func(cidr string, port uint16) rules.Endpoint {
		return rules.Endpoint{Prefix: netip.MustParsePrefix(cidr), Protocol: 17, Port: port}
	}
	p, client := newControlled(t, func(rome, _ *config.Config) {
		rome.Admit, rome.Exports = config.AdmitExports, []rules.Endpoint{export("10.0.1.5/32", 53)}
	})
	milan, rome := p.milan.nodes[0], p.rome.nodes[0]
	send := func(pod string, port uint16) {
		t.Helper()
		milan.Send(nattest.IP{Source: "10.0.1.7", Destination: "10.62.1." + pod, Body: nattest.UDP{SourcePort: 4000,
			DestinationPort: port}}.Bytes())
	}
	refused := uint64(0)
	shut := func(pod string, port uint16) {
		t.Helper()
		send(pod, port)
		v, err := nattest.Check(milan.Receive())
		if err != nil || v.Protocol != 1 || v.Destination.String() != "10.0.1.7" {
			t.Fatalf("the sender gets %v > %v, protocol %d, %v", v.Source, v.Destination, v.Protocol, err)
		}
		refused++
		if n := dropsOf(p.rome.Gateway)[dropKey{"inbound", "not-admitted"}]; n != refused {
			t.Fatalf("%d packets counted, want %d", n, refused)
		}
	}
	open := func(pod string, port uint16) {
		t.Helper()
		send(pod, port)
		expect(t, rome, "10.61.1.7", "10.0.1."+pod)
	}
	rome.Send(udpPacket("10.0.1.6", "10.61.1.7", nil)) // there is a session
	expect(t, milan, "10.62.1.6", "10.0.1.7")
	milan.Send(nattest.IP{Source: "10.0.1.7", Destination: "10.62.1.6", Body: nattest.UDP{SourcePort: 53,
		DestinationPort: 4000}}.Bytes())
	expect(t, rome, "10.61.1.7", "10.0.1.6")
	open("5", 53)
	shut("5", 54)
	shut("6", 53)

	with := func(change func(c *config.Config)) *config.Config {
		next := *p.rome.config()
		next.Exports = slices.Clone(next.Exports)
		change(&next)
		return &next
	}
	next := with(func(c *config.Config) {
		c.Exports = []rules.Endpoint{export("10.0.1.6/32", 54), export("10.0.2.0/24", 0)}
	})
	if !p.rome.Amend(next) || p.rome.config() != next {
		t.Fatal("other exports are refused")
	}
	shut("5", 53)
	open("6", 54)
	for name, change := range map[string]func(c *config.Config){
		"outside":    func(c *config.Config) { c.Exports[0] = export("10.9.1.6/32", 54) },
		"everything": func(c *config.Config) { c.Admit = config.AdmitAll },
		"a fault":    func(c *config.Config) { c.Exports[0].Protocol = 1 },
	} {
		if p.rome.Amend(with(change)) || p.rome.config() != next {
			t.Errorf("%s: not refused", name)
		}
	}

	st, err := client.Status(t.Context())
	need.NoError(t, err)
	if st.Admission == nil || *st.Admission != (control.Admission{Exports: 2}) {
		t.Errorf("status: %+v", st.Admission)
	}
	for _, tt := range []struct {
		to, verdict string
		step        control.TraceStep
	}{
		{"10.0.1.6:55", "drop; ICMP: prohibited; it is not exported: add it to nat.exports if the peer is to reach it",
			control.TraceStep{Kind: "nearest", Name: "10.0.1.6/32 udp 54"}},
		{"10.0.2.9:4000", "forward", control.TraceStep{Kind: "check", Name: "admitted", Passed: true}},
	} {
		x := traced(t, client, udpTrace("tunnel", "10.0.1.9:80", tt.to))[0]
		if got := x.Verdict + "; " + x.Told + "; " + x.Why; !strings.HasPrefix(got, tt.verdict) {
			t.Errorf("%s: %q, want %q", tt.to, got, tt.verdict)
		}
		if !slices.ContainsFunc(x.Steps, func(s control.TraceStep) bool {
			return s.Kind == tt.step.Kind && s.Name == tt.step.Name && s.Passed == tt.step.Passed
		}) {
			t.Errorf("%s: %+v", tt.to, x.Steps)
		}
	}

	need.NoError(t, p.rome.Apply(with(func(c *config.Config) { c.Admit = config.AdmitAll })))
	open("5", 99)
}
