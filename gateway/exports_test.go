package gateway

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"culvert/gateway/exports"
	"culvert/gateway/path"
	"culvert/nat/nattest"
)

// TestExportsBetweenGateways: a list of 300 Services passes through the tunnel, and its
// acknowledgement comes back. A gateway without a receiver of exports answers as on any closed
// port.
func TestExportsBetweenGateways(t *testing.T) {
	p := newPair(t, nil)
	var list []*exports.Service
	for i := range 300 {
		list = append(list, &exports.Service{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i),
			Type: exports.Headless, Ports: []exports.Port{{Protocol: "TCP", Port: uint16(i)}},
			Endpoints: []exports.Group{{Addresses: []exports.Endpoint{{IP: netip.MustParseAddr("10.244.0.9")}}}}})
	}
	rome, milan := exports.New(exports.MaxDatagram), exports.New(exports.MaxDatagram)
	p.rome.Exchange(rome.Receive)
	rome.Tell(list)
	tell := func() {
		for x, gateway := range map[*exports.Exchange]*cluster{rome: p.rome, milan: p.milan} {
			datagrams, _ := x.Due(time.Now())
			for _, b := range datagrams {
				gateway.Tell(b)
			}
		}
	}
	within := func(what string, done func() bool) {
		t.Helper()
		for end := time.After(20 * time.Second); !done(); {
			select {
			case <-end:
				t.Fatal("never: " + what)
			case <-time.After(time.Millisecond):
				tell()
			}
		}
	}
	within("nobody listens at milan", func() bool { return p.milan.path.Inbound().Dropped(path.DropNoService) > 0 })
	p.milan.Exchange(milan.Receive)
	within("acknowledged", func() bool { return rome.Unanswered(time.Now().Add(time.Hour)) == 0 })
	if got, fault, known := milan.Heard(); !known || fault != "" || !reflect.DeepEqual(got, list) {
		t.Errorf("%d exports, %q, %t", len(got), fault, known)
	}
	if bad := p.milan.path.Inbound().Dropped(path.DropBadExports); bad != 0 {
		t.Errorf("%d datagrams were bad", bad)
	}
}

// TestExportsJunk: useless datagrams are counted by name, and so are those above the rate that a
// peer needs. Only the peer's gateway is heard.
func TestExportsJunk(t *testing.T) {
	const headroom, many = 16, 1000
	g := unopened(t)
	x := exports.New(exports.MaxDatagram)
	heard := 0
	g.Exchange(func(b []byte) bool { heard++; return x.Receive(b) })
	send := func(source, payload string) {
		b := nattest.IP{Source: source, Destination: "169.254.18.2", TTL: 64,
			Body: nattest.UDP{SourcePort: 9, DestinationPort: exports.UDPPort, Payload: []byte(payload)}}.Bytes()
		g.path.Carry([][]byte{append(make([]byte, headroom), b...)}, headroom)
	}
	send("10.61.0.5", "cvex") // a pod of the peer's
	if heard != 0 {
		t.Error("a pod of the peer's was heard")
	}
	for range many {
		send("169.254.18.1", "junk")
	}
	if bad := g.path.Inbound().Dropped(path.DropBadExports); bad != many {
		t.Errorf("%d datagrams were counted as bad", bad)
	}
	if heard == 0 || heard == many {
		t.Errorf("%d of %d datagrams were looked at", heard, many)
	}
}
