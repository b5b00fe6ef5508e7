package gateway

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// message returns a message of a type and size; a handshake is for the owner of key.
func message(kind uint32, size int, key Key) []byte {
	m := make([]byte, size)
	binary.LittleEndian.PutUint32(m, kind)
	if kind == device.MessageInitiationType || kind == device.MessageResponseType {
		var macs device.CookieGenerator
		macs.Init(device.NoisePublicKey(key))
		macs.AddMacs(m)
	}
	return m
}

// TestGate: each datagram passes or is counted under one reason.
func TestGate(t *testing.T) {
	own, other := Key{1}, Key{2}
	const passes = numDropReasons
	for _, test := range []struct {
		name    string
		message []byte
		kind    messageKind
		dropped DropReason
	}{
		{"initiation", message(device.MessageInitiationType, device.MessageInitiationSize, own), handshakeMessage, passes},
		{"response", message(device.MessageResponseType, device.MessageResponseSize, own), handshakeMessage, passes},
		{"cookie", message(device.MessageCookieReplyType, device.MessageCookieReplySize, own), cookieMessage, passes},
		{"keepalive", message(device.MessageTransportType, device.MessageKeepaliveSize, own), keepaliveMessage, passes},
		{"data", message(device.MessageTransportType, device.MessageKeepaliveSize+1, own), dataMessage, passes},
		{"initiation for another", message(device.MessageInitiationType, device.MessageInitiationSize, other), handshakeMessage, DropBadMAC1},
		{"response for another", message(device.MessageResponseType, device.MessageResponseSize, other), handshakeMessage, DropBadMAC1},
		{"nothing", nil, noMessage, DropNotWireGuard},
		{"short", message(device.MessageTransportType, device.MessageKeepaliveSize-1, own), noMessage, DropNotWireGuard},
		{"long initiation", message(device.MessageInitiationType, device.MessageInitiationSize+1, own), noMessage, DropNotWireGuard},
		{"short response", message(device.MessageResponseType, device.MessageResponseSize-1, own), noMessage, DropNotWireGuard},
		{"long cookie", message(device.MessageCookieReplyType, device.MessageCookieReplySize+1, own), noMessage, DropNotWireGuard},
		{"other type", message(5, device.MessageInitiationSize, own), noMessage, DropNotWireGuard},
		{"reserved bits", message(1<<8|device.MessageTransportType, 100, own), noMessage, DropNotWireGuard},
	} {
		drops := new(counters)
		kind, ok := newGate(own, drops).admit(test.message, netip.Addr{})
		if kind != test.kind || ok != (test.dropped == passes) {
			t.Errorf("%s: kind %d, want %d; admitted %v", test.name, kind, test.kind, ok)
		}
		for r := range numDropReasons {
			want := uint64(0)
			if r == test.dropped {
				want = 1
			}
			if n := drops.drops[r].Load(); n != want {
				t.Errorf("%s: counted %d as %s, want %d", test.name, n, r, want)
			}
		}
	}
}

// TestGatePace: of what wireguard-go would queue, only so much passes, and strangers
// take nothing away from the peer.
func TestGatePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drops := new(counters)
		g := newGate(Key{1}, drops)
		stranger, peer := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("192.0.2.7")
		g.sent([][]byte{message(device.MessageInitiationType, device.MessageInitiationSize, Key{2})}, &endpoint{netip.AddrPortFrom(peer, 51840)})
		g.sent([][]byte{message(device.MessageCookieReplyType, device.MessageCookieReplySize, Key{})}, &endpoint{netip.AddrPortFrom(stranger, 7)})
		floods := [][]byte{
			message(device.MessageInitiationType, device.MessageInitiationSize, Key{1}),
			message(device.MessageCookieReplyType, device.MessageCookieReplySize, Key{}),
			message(device.MessageTransportType, device.MessageKeepaliveSize, Key{}),
		}
		sent := uint64(0)
		passed := func(from netip.Addr, m []byte) (n int) {
			for range 1000 {
				sent++
				if _, ok := g.admit(m, from); ok {
					n++
				}
			}
			return n
		}
		for i, m := range floods {
			for _, from := range []netip.Addr{stranger, peer} {
				if n := passed(from, m); n != paceBurst {
					t.Errorf("flood %d: %d from %s at once, want %d", i, n, from, paceBurst)
				}
			}
		}
		time.Sleep(paceInterval) // of the bubble's clock
		for i, m := range floods {
			if n := passed(stranger, m); n != 1 {
				t.Errorf("flood %d: %d after %v, want 1", i, n, paceInterval)
			}
		}
		time.Sleep(time.Hour)
		for i, m := range floods {
			if n := passed(stranger, m); n != paceBurst {
				t.Errorf("flood %d: %d after a pause, want %d", i, n, paceBurst)
			}
		}
		want := sent - uint64(len(floods)*(3*paceBurst+1))
		if n := drops.drops[DropHandshakeRate].Load(); n != want {
			t.Errorf("%d counted, want %d", n, want)
		}
		if n := testing.AllocsPerRun(100, func() { g.admit(floods[0], stranger) }); n != 0 {
			t.Errorf("%v allocations for a handshake message", n)
		}
	})
}
