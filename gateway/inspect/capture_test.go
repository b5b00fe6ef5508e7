package inspect

import (
	"net/netip"
	"testing"

	"culvert/gateway/wg"
	"culvert/nat/nattest"
)

// TestOuterHeaders: a message has sound outer headers, whichever family it is of, and also if the
// peer's address is not known yet.
func TestOuterHeaders(t *testing.T) {
	src := newSource(t)
	for _, peer := range []netip.AddrPort{{}, netip.MustParseAddrPort("192.0.2.7:51840"),
		netip.MustParseAddrPort("[2001:db8::7]:51840")} {
		for _, outbound := range []bool{false, true} {
			m := wg.Message{Outbound: outbound, Peer: peer, Data: []byte("message"), Dropped: true,
				Reason: wg.TunnelDiscard}
			o := src.Path.ObserveMessage(&m)
			var room [maxOuter]byte
			b := append(outerHeaders(room[:], &o.Outer, o.Bytes), o.Bytes...)
			view, err := nattest.Check(b)
			other := view.Source
			if outbound {
				other = view.Destination
			}
			if err != nil || string(view.Payload) != "message" || peer.IsValid() && other != peer.Addr() {
				t.Errorf("%v, outbound %v: %+v, %v", peer, outbound, view, err)
			}
		}
	}
}
