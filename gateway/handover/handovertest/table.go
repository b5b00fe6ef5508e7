// Package handovertest has a connection table for tests that copy one.
package handovertest

import (
	"bytes"
	"net/netip"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Node is the link of the only node.
const Node = nat.Link(1)

// NewEngine returns an Engine for most connections, of a cluster in which all sources outside the
// pod CIDR share an address.
func NewEngine(t testing.TB, most int) *nat.Engine {
	t.Helper()
	p := netip.MustParsePrefix
	e, err := nat.New([16]byte{1, 2, 3}, &nat.Config{MTU: 1340, MaxConnections: most, Config: rules.Config{
		Nodes: []rules.Node{{Link: Node, Name: "rome-1",
			Address: rules.PairOf(netip.MustParseAddr("10.80.0.2"))}},
		LocalPodCIDRs:      []netip.Prefix{p("10.200.0.0/16")},
		LocalExternalCIDRs: []netip.Prefix{p("10.70.0.0/16")},
		Remote:             []rules.RemoteCIDR{{Real: p("10.0.0.0/8"), Remapped: p("100.0.0.0/8")}},
		Routes:             []rules.Route{{Prefix: p("10.200.1.0/24"), Link: Node}},
		UnknownSource:      rules.PairOf(netip.MustParseAddr("10.70.0.0")),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// LinkName returns the name of a link of the Engine, "" if there is none.
func LinkName(l nat.Link) string {
	switch l {
	case nat.Tunnel:
		return "tunnel"
	case Node:
		return "rome-1"
	}
	return ""
}

// Link returns the link with a name.
func Link(name string) (nat.Link, bool) {
	switch name {
	case "tunnel":
		return nat.Tunnel, true
	case "rome-1":
		return Node, true
	}
	return 0, false
}

// Open opens n connections, numbered from first on, all of which need translation.
func Open(t testing.TB, e *nat.Engine, first, n int, now func() nat.Time) {
	t.Helper()
	b := nattest.IP{Source: "192.0.2.1", Destination: "100.9.0.1", Body: nattest.UDP{SourcePort: 1, DestinationPort: 53,
		NoChecksum: true}}.Bytes()
	for i := first; i < first+n; i++ {
		work := bytes.Clone(b)
		work[16], work[17], work[18], work[19] = 100, byte(i>>16), byte(i>>8), byte(i)
		work[14], work[15] = byte(i>>18), byte(i>>10)
		var p packet.Packet
		p.Parse(nattest.Fix(work))
		if v := e.Process(&p, Node, now()); v.Action != nat.Forward || v.Untracked {
			t.Errorf("connection %d: %v %v, want a tracked connection", i, v.Action, v.Reason)
			return
		}
	}
}
