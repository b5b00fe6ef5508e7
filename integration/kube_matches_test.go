package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// matchEdits add rules that drop packets by each property that a match of a FirewallConfiguration
// can test, plain and negated. Rules apply where packets are forwarded, and see the pods' own
// addresses. The connections of the first pods use TCP.
func matchEdits(rome *kubeLab, p *kubeProbes) []kubeEdit {
	const (
		pods     = "10.244.0.0/16"
		external = "10.70.0.0/24"
	)
	client, node1, node2 := rome.kubeEnd.client(), kubeNodes[0].device, kubeNodes[1].device
	ofNode2 := []kubeProbe{p.out, p.in, p.host, p.theirs}
	udp := matchProto("udp")
	drop := func(what string, ends []kubeProbe, match ...object) kubeEdit {
		return kubeEdit{what: "drop of " + what, edit: putFilter("drop", match...), ends: ends}
	}
	return []kubeEdit{
		drop("a source", []kubeProbe{p.mapping}, matchIP("eq", "src", client)),
		drop("a range of sources", []kubeProbe{p.host, p.theirs}, matchIP("eq", "src", "10.70.0.0-10.70.0.9")),
		drop("all sources but pods", []kubeProbe{p.host, p.theirs, p.mapping}, matchIP("neq", "src", pods)),
		drop("a network", []kubeProbe{p.host, p.theirs}, matchIP("eq", "dst", external)),
		drop("all destinations but a range", []kubeProbe{p.host, p.theirs, p.mapping},
			matchIP("neq", "dst", "10.244.0.0-10.244.255.255")),
		drop("a protocol", p.all(), udp),
		drop("a port", p.all(), udp, matchPort("eq", "dst", kubeProbePort)),
		drop("a range of ports", p.all(), udp, matchPort("eq", "src", "5299-5301")),
		drop("all ports but one", p.all(), udp, matchPort("neq", "dst", kubeProbePort)),
		drop("a port of another protocol", nil, matchProto("tcp"), matchPort("eq", "dst", kubeProbePort)),
		drop("what comes from a device", ofNode2, matchDevice("eq", "in", node2)),
		drop("what goes to a device", ofNode2, matchDevice("eq", "out", node2)),
		drop("what comes from another device", ofNode2, matchDevice("neq", "in", node1),
			matchDevice("neq", "in", liqoTunnel)),
		drop("what goes to another device", ofNode2, matchDevice("neq", "out", node1), matchDevice("neq", "out",
			liqoTunnel)),
		drop("what goes from one device to another", []kubeProbe{p.mapping}, udp, matchDevice("eq", "in", liqoTunnel),
			matchDevice("eq", "out", node1)),
		drop("what comes from any tunnel", p.all(), udp, matchDevice("eq", "in", liqoTunnel+"*")),
		drop("what comes from a device that is not there", nil, matchDevice("eq", "in", "liqo.nobody")),
	}
}

// testKubeUnknown changes the address for unknown sources. Until a node translates to the new
// address, the gateway does.
func (k *kubeLab) testKubeUnknown(t *testing.T, p *kubeProbes, other *kubeLab) {
	was := k.asApplied(t, "FirewallConfiguration", liqoNamespace, "service-nodeport-routing")
	text, err := json.Marshal(was)
	need.NoError(t, err)
	const another = "10.70.0.9"
	var changed object
	need.NoError(t, json.Unmarshal(bytes.ReplaceAll(text, []byte(`"`+k.unknown()+`"`), []byte(`"`+another+`"`)),
		&changed))
	for _, edit := range []struct {
		o    object
		from string
	}{{changed, another}, {was, k.unknown()}} {
		k.liqo.apply(edit.o)
		eventuallyWithin(t, kubeSoon, "a node comes from "+edit.from, func() error {
			if got, err := p.host.ask(); err != nil || got != k.seen(edit.from) {
				return fmt.Errorf("%s sees %q, want %s (%v)", other.name, got, k.seen(edit.from), err)
			}
			return nil
		})
	}
}

// testKubeClamp changes the size to which segments are clamped.
func (k *kubeLab) testKubeClamp(t *testing.T, other *kubeLab) {
	n := &kubeNodes[1]
	l, err := other.pods[1].listen("tcp4", net.JoinHostPort(other.pod(n, 5), "5204"))
	need.NoError(t, err)
	defer l.Close()
	segments := func() (size int, err error) {
		conn, err := k.pods[1].dial("tcp4", net.JoinHostPort(other.seen(other.pod(n, 5)), "5204"))
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		accepted, err := l.Accept()
		if err != nil {
			return 0, err
		}
		defer accepted.Close()
		raw, err := accepted.(*net.TCPConn).SyscallConn()
		if err != nil {
			return 0, err
		}
		raw.Control(func(fd uintptr) { size, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) })
		return size, err
	}
	const timestamps = 12
	was := k.asApplied(t, "FirewallConfiguration", liqoNamespace, "gw-mss-clamping")
	for _, clamp := range []struct {
		value string
		want  int
	}{{"1000", 1000}, {"0", kubeMTU - 40}} {
		changed := cloneObject(t, was)
		put(clamp.value, "spec", "table", "chains", 0, "rules", "filterRules", 0, "value")(changed)
		k.liqo.apply(changed)
		eventuallyWithin(t, kubeSoon, "segments of "+clamp.value, func() error {
			if got, err := segments(); err != nil || got != clamp.want-timestamps {
				return fmt.Errorf("%d bytes, want %d (%v)", got, clamp.want-timestamps, err)
			}
			return nil
		})
	}
}
