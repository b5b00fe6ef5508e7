package gateway

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
)

// TestPeerEndpoint: the endpoint of the peer outlives a change of the keepalive, also
// where it has roamed, and is not given to another peer.
func TestPeerEndpoint(t *testing.T) {
	const roamed = "127.0.0.1:9"
	// A peer that nobody is: no message of it moves the endpoint.
	p := newPair(t, func(rome, _ *config.Config) { rome.WireGuard.PeerPublicKey = wgkey.NewPrivate().Public() })
	wg := p.rome.wg
	if err := wg.set("public_key="+hexKey(p.rome.config.WireGuard.PeerPublicKey), "endpoint="+roamed); err != nil {
		t.Fatal(err)
	}
	apply := func(change func(c *config.WireGuard)) {
		t.Helper()
		next := *p.rome.config
		change(&next.WireGuard)
		if err := p.rome.Apply(&next); err != nil {
			t.Fatal(err)
		}
	}
	device := func() string {
		text, err := wg.IpcGet()
		if err != nil {
			t.Fatal(err)
		}
		_, peer, _ := strings.Cut(text, "listen_port=")
		return peer
	}
	apply(func(c *config.WireGuard) { c.Keepalive = 7 * time.Second })
	if got := device(); !strings.Contains(got, "endpoint="+roamed) || !strings.Contains(got, "persistent_keepalive_interval=7\n") {
		t.Errorf("after a change of the keepalive: %s", got)
	}

	asked := p.rome.config.WireGuard
	other := wgkey.NewPrivate().Public()
	apply(func(c *config.WireGuard) { c.PeerPublicKey, c.Endpoint = other, "milan.invalid:1" })
	if err := wg.setEndpoint(&asked, netip.MustParseAddrPort("127.0.0.1:10")); err != nil { // what DNS says now of the peer before
		t.Fatal(err)
	}
	if got := device(); strings.Contains(got, "endpoint=") || strings.Contains(got, hexKey(asked.PeerPublicKey)) {
		t.Errorf("another peer, and no answer of DNS: %s", got)
	}

	apply(func(c *config.WireGuard) { c.Endpoint = roamed })
	if err := wg.updateEndpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := device(); !strings.Contains(got, "public_key="+hexKey(other)+"\n") || !strings.Contains(got, "endpoint="+roamed) {
		t.Errorf("another peer, resolved: %s", got)
	}
}

// TestPrepareRefusal: a layer that refuses what validation accepted leaves nothing
// behind, in the layers before it neither.
func TestPrepareRefusal(t *testing.T) {
	p := newPair(t, nil)
	p.rome.nodes[1].Send(udpPacket("10.0.2.5", "10.61.1.7", []byte("before")))
	expect(t, p.milan.nodes[0], "10.62.2.5", "10.0.1.7")
	before, ports := p.rome.engine.Stats(), p.rome.ports

	// A Config that no file makes: without its second node, and with one that has no
	// underlay address, which matters to the tunnels alone.
	next := *p.rome.config
	next.Geneve.Nodes = []config.Node{next.Geneve.Nodes[0], {Name: "third", VNI: 99, Address: netip.MustParseAddr("10.80.0.9")}}
	if err := next.Validate(); err != nil {
		t.Fatal(err)
	}
	if config.Check(&next) == nil {
		t.Error("Check accepts what no layer does")
	}
	if p.rome.Apply(&next) == nil {
		t.Fatal("applied")
	}
	if after := p.rome.engine.Stats(); after != before {
		t.Errorf("%+v before, %+v after", before, after)
	}
	if !reflect.DeepEqual(p.rome.ports, ports) {
		t.Errorf("ports %v before, %v after", ports, p.rome.ports)
	}
	p.milan.nodes[0].Send(udpPacket("10.0.1.7", "10.62.2.5", []byte("after")))
	expect(t, p.rome.nodes[1], "10.61.1.7", "10.0.2.5")
}
