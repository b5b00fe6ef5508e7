package nat_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// TestAppendError checks the errors that the engine originates.
func TestAppendError(t *testing.T) {
	long := udp("10.200.1.5", "10.71.3.9", 5, 6)
	long.DF = true
	long.Body = nattest.UDP{SourcePort: 5, DestinationPort: 6, Payload: make([]byte, 1400)}
	expired := udp("10.200.3.9", "10.200.1.5", 5, 6)
	expired.TTL = 1
	six := udp("fd00:200:0:1::5", "fd00:71:0:4000::9", 5, 6)
	six.Body = long.Body
	tests := []struct {
		name       string
		in         nat.Link
		p          nattest.IP
		change     func(*nat.Config)
		source     string
		kind, code uint8
		mtu        uint16
		size       int
	}{
		{"too big, to a node", node1, long, nil, "10.80.0.4", 3, 4, 1340, 576},
		{"time exceeded, to the tunnel", nat.Tunnel, expired, nil, "10.70.0.0", 11, 0, 0, 28 + 35},
		{"time exceeded, to the tunnel, U off", nat.Tunnel, expired, func(c *nat.Config) {
			c.UnknownSource = rules.Pair{}
		},
			"169.254.18.2", 11, 0, 0, 28 + 35},
		{"host unreachable", nat.Tunnel, udp("10.200.3.9", "10.200.99.1", 1, 2), nil, "10.70.0.0", 3, 1, 0, 28 + 35},
		{"net unreachable", node1, udp("10.200.1.5", "192.0.2.1", 1, 2), nil, "10.80.0.4", 3, 0, 0, 28 + 35},
		{"IPv6 too big", node1, six, func(c *nat.Config) { c.GatewayAddress = rules.PairOf(address("fd00:80::4")) },
			"fd00:80::4", 2, 0, 1340, 1280},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t)
			if test.change != nil {
				e = engine(t, test.change)
			}
			b := test.p.Bytes()
			v, _ := process(t, e, test.in, b, start)
			got := answer(t, e, test.in, b, v, start)
			if got == nil {
				t.Fatalf("no answer to %v %v", v.Action, v.Reason)
			}
			view, _ := nattest.Check(got)
			expect(t, view, test.source, test.p.Source)
			if view.Body[0] != test.kind || view.Body[1] != test.code ||
				uint16(view.Body[6])<<8|uint16(view.Body[7]) != test.mtu {
				t.Fatalf("message %x", view.Body[:8])
			}
			if len(got) != test.size || !bytes.HasPrefix(b, view.Payload) {
				t.Fatalf("%d bytes, want %d; quotes %x", len(got), test.size, view.Payload)
			}
		})
	}
}

// RFC 1122, Section 3.2.2: no error about errors, later fragments, or packets that are not from one
// host to one host.
func TestNoAppendError(t *testing.T) {
	e := engine(t)
	about := func(p nattest.IP) []byte { p.TTL = 1; return p.Bytes() }
	quoted := udp("10.200.3.9", "10.200.1.5", 1, 2)
	for name, b := range map[string][]byte{
		"ICMP error": about(nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Body: nattest.ICMP{Type: 3,
			Payload: quoted.Bytes()}}),
		"later fragment": about(nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Offset: 80,
			Body: nattest.Raw{Protocol: 17, Payload: make([]byte, 8)}}),
		"multicast": about(udp("10.200.1.5", "224.0.0.9", 1, 2)),
		"broadcast": about(udp("10.200.1.5", "255.255.255.255", 1, 2)),
		"no source": about(udp("0.0.0.0", "10.71.3.9", 1, 2)),
		"redirect": about(nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9",
			Body: nattest.ICMP{Type: 5}}),
		"malformed": {0x45, 0, 0},
	} {
		v := nat.Verdict{Action: nat.Drop, Reason: nat.ReasonTTLExceeded, Refusal: packet.TimeExceeded}
		if got := answer(t, e, node1, b, v, start); got != nil {
			t.Errorf("%s: answered %x", name, got)
		}
	}
}

func TestErrorRate(t *testing.T) {
	e := engine(t)
	send := func(in nat.Link, host int, now nat.Time) bool {
		pods := map[nat.Link]string{node1: "10.64.32", node2: "10.200.2"}[in]
		p := udp(fmt.Sprintf("%s.%d", pods, 1+host), "10.71.3.9", 1, 2)
		p.TTL = 1
		b := p.Bytes()
		v, _ := process(t, e, in, b, now)
		return answer(t, e, in, b, v, now) != nil
	}
	n := 0
	for range 1000 {
		if send(node1, 0, start) {
			n++
		}
	}
	if n != 20 {
		t.Fatalf("%d errors at once to one destination, want 20", n)
	}
	if !send(node1, 0, start.Add(time.Second/20)) || send(node1, 0, start.Add(time.Second/20)) {
		t.Fatal("not one more after a twentieth of a second")
	}
	// One node gets half of the 200, another one half of what is left then.
	e, n = engine(t), 0
	for _, want := range []int{100, 150} {
		in := map[int]nat.Link{100: node1, 150: node2}[want]
		for host := range 250 {
			if send(in, host, start) {
				n++
			}
		}
		if n != want {
			t.Fatalf("%d errors at once, want %d", n, want)
		}
	}
	// Refused packets have cost nobody else's tokens.
	for range 20 {
		if !send(node1, 249, start.Add(time.Second/5)) {
			t.Fatal("the limit for all has cost a destination its tokens")
		}
	}
	if st := e.Stats(); st.Outbound.Answered != 170 || st.ErrorsLimited != 350 {
		t.Fatalf("%+v", st)
	}
}

// The pods of a node of either cluster share a /64, Kubernetes' default, and are distinguished; a
// host elsewhere has a /64 to itself.
func TestErrorRateOfIPv6(t *testing.T) {
	for _, test := range []struct {
		name           string
		in             nat.Link
		flood, another string
		told           bool
	}{
		{"pods of a node", node1, "fd00:200:0:1::5", "fd00:200:0:1::6", true},
		{"clients of no pod", node1, "2001:db8::5", "2001:db8::6", false},
		{"clients of two networks", node1, "2001:db8::5", "2001:db8:0:1::5", true},
		{"pods of the remote cluster", nat.Tunnel, "fd00:200::5", "fd00:200::6", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, dual)
			told := func(source string) bool {
				p := udp(source, remote6, 1, 2)
				if p.TTL = 1; test.in.Outside() {
					p.Destination = pod6
				}
				v := dropped(t, e, test.in, p.Bytes(), start, nat.ReasonTTLExceeded)
				return answer(t, e, test.in, p.Bytes(), v, start) != nil
			}
			n := 0
			for range 50 {
				if told(test.flood) {
					n++
				}
			}
			if another := told(test.another); n != 20 || another != test.told {
				t.Errorf("%d errors to one, to another %t, want 20 and %t", n, another, test.told)
			}
			ledger(t, e)
		})
	}
}

// A node whose packets all cause errors leaves another node's hundred pings their errors, whatever
// the addresses.
func TestErrorFlood(t *testing.T) {
	e := engine(t)
	for i := range 1000 {
		now := start.Add(time.Duration(i) * 10 * time.Millisecond)
		for j := range 20 {
			p := udp(fmt.Sprintf("10.200.1.%d", (i*20+j)%250), "10.71.3.9", 1, 2)
			p.TTL = 1
			b := p.Bytes()
			v, _ := process(t, e, node1, b, now)
			answer(t, e, node1, b, v, now)
		}
		if i%10 != 0 {
			continue
		}
		p := udp("10.200.2.9", "10.71.3.9", 1, 2)
		p.TTL = 1
		b := p.Bytes()
		v, _ := process(t, e, node2, b, now)
		if answer(t, e, node2, b, v, now) == nil {
			t.Fatalf("no error to the other node after %d", i)
		}
	}
}

// A RST for a service without backends is not answered (RFC 9293, Section 3.10.7.1): it costs and
// counts no error.
func TestUnansweredResetsCostNothing(t *testing.T) {
	e := engine(t)
	v := nat.Verdict{Action: nat.Drop, Reason: nat.ReasonNoBackend, Refusal: packet.Reset}
	for name, p := range map[string]nattest.IP{
		"RST": tcp("10.200.3.9", "10.70.0.20", 5, 80, nattest.RST, ""),
		"first fragment": {Source: "10.200.3.9", Destination: "10.70.0.20", MF: true,
			Body: nattest.TCP{Flags: nattest.ACK, Payload: make([]byte, 12)}},
		"UDP": udp("10.200.3.9", "10.70.0.20", 5, 80),
	} {
		for range 100 {
			if got := answer(t, e, nat.Tunnel, p.Bytes(), v, start); got != nil {
				t.Fatalf("%s: answered %x", name, got)
			}
		}
	}
	if n := e.Stats().Inbound.Answered; n != 0 {
		t.Errorf("counted %d answers", n)
	}
	if answer(t, e, nat.Tunnel, tcp("10.200.3.9", "10.70.0.20", 5, 80, nattest.ACK, "").Bytes(), v, start) == nil {
		t.Error("no reset left for a segment that is due one")
	}
}
