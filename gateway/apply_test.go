package gateway

import (
	"net/netip"
	"reflect"
	"testing"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/nat/rules"
)

// TestPrepareRefusal: when a layer refuses what validation accepted, no layer has changed, not even
// those prepared before it.
func TestPrepareRefusal(t *testing.T) {
	p := newPair(t, nil)
	p.rome.nodes[1].Send(udpPacket("10.0.2.5", "10.61.1.7", []byte("before")))
	expect(t, p.milan.nodes[0], "10.62.2.5", "10.0.1.7")
	before, links := p.rome.engine.Stats(), p.rome.links()

	// A Config that no file makes: without its second node, and with a node without underlay
	// address, which only the tunnels refuse.
	next := *p.rome.config()
	next.Geneve.Nodes = []config.Node{next.Geneve.Nodes[0],
		{Name: "third", VNI: 99, Address: rules.PairOf(netip.MustParseAddr("10.80.0.9"))}}
	need.NoError(t, next.Validate())
	if config.Check(&next) == nil {
		t.Error("Check accepts what no layer does")
	}
	if p.rome.Apply(&next) == nil {
		t.Fatal("applied")
	}
	after := p.rome.engine.Stats()
	after.Outbound, after.Inbound = before.Outbound, before.Inbound // the gateway pings
	if after != before {
		t.Errorf("%+v before, %+v after", before, after)
	}
	if !reflect.DeepEqual(p.rome.links(), links) {
		t.Errorf("links %v before, %v after", links, p.rome.links())
	}
	p.milan.nodes[0].Send(udpPacket("10.0.1.7", "10.62.2.5", []byte("after")))
	expect(t, p.rome.nodes[1], "10.61.1.7", "10.0.2.5")
}

// TestApplyPeer: a new peer replaces the old one at once.
func TestApplyPeer(t *testing.T) {
	p := newPair(t, nil)
	if s, err := p.rome.wg.PeerStats(); err != nil || s.Endpoint == "" {
		t.Fatalf("%+v, %v", s, err)
	}
	next := *p.rome.config()
	next.WireGuard.PeerPublicKey, next.WireGuard.Endpoint = wgkey.NewPrivate().Public(), "milan.invalid:1"
	need.NoError(t, p.rome.Apply(&next))
	if s, err := p.rome.wg.PeerStats(); err != nil || s.Endpoint != "" {
		t.Errorf("another peer, and no answer of DNS: %+v, %v", s, err)
	}
}
