package wg

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
)

// message returns a message of a type and size; a handshake is addressed to the owner of key.
func message(kind uint32, size int, key wgkey.Key) []byte {
	m := make([]byte, size)
	binary.LittleEndian.PutUint32(m, kind)
	if kind == device.MessageInitiationType || kind == device.MessageResponseType {
		var macs device.CookieGenerator
		macs.Init(device.NoisePublicKey(key))
		macs.AddMacs(m)
	}
	return m
}

// TestAdmission: each datagram passes, or is counted under one reason.
func TestAdmission(t *testing.T) {
	own, other := wgkey.Key{1}, wgkey.Key{2}
	const passes = NumReasons
	for _, test := range []struct {
		name    string
		message []byte
		kind    messageKind
		dropped Reason
	}{
		{"initiation", message(device.MessageInitiationType, device.MessageInitiationSize, own),
			handshakeMessage, passes},
		{"response", message(device.MessageResponseType, device.MessageResponseSize, own), handshakeMessage, passes},
		{"cookie", message(device.MessageCookieReplyType, device.MessageCookieReplySize, own), cookieMessage, passes},
		{"keepalive", message(device.MessageTransportType, device.MessageKeepaliveSize, own), keepaliveMessage, passes},
		{"data", message(device.MessageTransportType, device.MessageKeepaliveSize+1, own), dataMessage, passes},
		{"initiation for another", message(device.MessageInitiationType, device.MessageInitiationSize, other),
			handshakeMessage, BadMAC1},
		{"response for another", message(device.MessageResponseType, device.MessageResponseSize, other),
			handshakeMessage, BadMAC1},
		{"nothing", nil, noMessage, NotWireGuard},
		{"short", message(device.MessageTransportType, device.MessageKeepaliveSize-1, own), noMessage, NotWireGuard},
		{"long initiation", message(device.MessageInitiationType, device.MessageInitiationSize+1, own), noMessage,
			NotWireGuard},
		{"short response", message(device.MessageResponseType, device.MessageResponseSize-1, own), noMessage,
			NotWireGuard},
		{"long cookie", message(device.MessageCookieReplyType, device.MessageCookieReplySize+1, own), noMessage,
			NotWireGuard},
		{"other type", message(5, device.MessageInitiationSize, own), noMessage, NotWireGuard},
		{"reserved bits", message(1<<8|device.MessageTransportType, 100, own), noMessage, NotWireGuard},
	} {
		a := newAdmission(own)
		kind, ok := a.admit(test.message, netip.Addr{})
		if kind != test.kind || ok != (test.dropped == passes) {
			t.Errorf("%s: kind %d, want %d; admitted %v", test.name, kind, test.kind, ok)
		}
		for r := range NumReasons {
			want := uint64(0)
			if r == test.dropped {
				want = 1
			}
			if n := a.drops[r].Load(); n != want {
				t.Errorf("%s: counted %d as %s, want %d", test.name, n, r, want)
			}
		}
	}
}

// paced are messages of the kinds whose rate is limited.
func paced() [][]byte {
	return [][]byte{
		message(device.MessageInitiationType, device.MessageInitiationSize, wgkey.Key{1}),
		message(device.MessageCookieReplyType, device.MessageCookieReplySize, wgkey.Key{}),
		message(device.MessageTransportType, device.MessageKeepaliveSize, wgkey.Key{}),
	}
}

// floodSize is larger than any burst.
const floodSize = 20

// flood offers floodSize messages from an address and returns how many pass.
func (a *admission) flood(from netip.Addr, m []byte) (passed int) {
	for range floodSize {
		if _, ok := a.admit(m, from); ok {
			passed++
		}
	}
	return passed
}

// TestAdmissionPace: only a limited rate of messages that wireguard-go would queue passes, and
// unknown senders take nothing from the peer's share.
func TestAdmissionPace(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		a := newAdmission(wgkey.Key{1})
		stranger, peer := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("192.0.2.7")
		a.sent([][]byte{message(device.MessageInitiationType, device.MessageInitiationSize, wgkey.Key{2})},
			&endpoint{addr: netip.AddrPortFrom(peer, 51840)})
		a.sent([][]byte{message(device.MessageCookieReplyType, device.MessageCookieReplySize, wgkey.Key{})},
			&endpoint{addr: netip.AddrPortFrom(stranger, 7)})
		passed := 0
		check := func(when string, from netip.Addr, want int) {
			t.Helper()
			for i, m := range paced() {
				n := a.flood(from, m)
				if passed += n; n != want {
					t.Errorf("flood %d %s: %d from %s, want %d", i, when, n, from, want)
				}
			}
		}
		check("at once", stranger, sharePace.burst)
		check("at once", peer, allPace.burst)
		time.Sleep(allPace.interval) // by the bubble's clock
		check("soon after", peer, 1)
		check("soon after", stranger, 0)
		time.Sleep(sharePace.interval)
		check("later", stranger, 1)
		time.Sleep(time.Hour)
		check("after a pause", stranger, sharePace.burst)
		if n, want := a.drops[HandshakeRate].Load(), uint64(6*3*floodSize-passed); n != want {
			t.Errorf("%d counted, want %d", n, want)
		}
		handshake := paced()[0]
		if n := testing.AllocsPerRun(100, func() { a.admit(handshake, stranger) }); n != 0 {
			t.Errorf("%v allocations for a handshake message", n)
		}
	})
}

// TestAdmissionShares: during a flood, a peer gets in from a new address, unless the flood comes
// from very many addresses. Those have a common limit, and so does the memory about them.
func TestAdmissionShares(t *testing.T) {
	var hosts, subnet []netip.Addr
	for i := range 20 {
		hosts = append(hosts, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
		subnet = append(subnet, netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i)}))
	}
	for _, test := range []struct {
		name   string
		flood  []netip.Addr
		roamed string
		passes int // messages of the flood in ten seconds
	}{
		{"nobody", nil, "198.51.100.7", 0},
		{"one address", hosts[:1], "198.51.100.7", 4 + 9},
		{"twenty addresses", hosts, "198.51.100.7", 20 * (4 + 9)},
		{"twenty addresses of a /64", subnet, "2001:db8:0:1::7", 4 + 9},
	} {
		t.Run(test.name, func(t *testing.T) {
			need.Bubble(t, func(t *testing.T) {
				a := newAdmission(wgkey.Key{1})
				m, roamed, passed := paced()[0], netip.MustParseAddr(test.roamed), 0
				for second := range 10 {
					for range 100 { // rounds of 10 ms; the flood comes first in each
						for _, from := range test.flood {
							passed += a.flood(from, m)
						}
						time.Sleep(allPace.interval)
					}
					if second%5 != 0 {
						continue
					}
					for _, from := range test.flood {
						passed += a.flood(from, m)
					}
					if _, ok := a.admit(m, roamed); !ok {
						t.Errorf("the peer's handshake after %d s does not pass", second)
					}
				}
				if passed < test.passes || passed > test.passes+len(test.flood) {
					t.Errorf("%d of the flood passed, want %d", passed, test.passes)
				}
			})
		})
	}
	t.Run("addresses in plenty", func(t *testing.T) {
		need.Bubble(t, func(t *testing.T) {
			a, began := newAdmission(wgkey.Key{1}), time.Now()
			passed, next := 0, uint32(0)
			for range 1000 {
				for _, m := range paced() {
					for range 100 {
						next++
						if _, ok := a.admit(m, netip.AddrFrom4([4]byte{10, byte(next >> 16), byte(next >> 8),
							byte(next)})); ok {
							passed++
						}
					}
				}
				if len(a.shares) > maxShares {
					t.Fatalf("%d addresses are remembered, want at most %d", len(a.shares), maxShares)
				}
				time.Sleep(allPace.interval)
			}
			if most := int(numKinds-2) * (allPace.burst + int(time.Since(began)/allPace.interval)); passed > most {
				t.Errorf("%d passed, want at most %d", passed, most)
			}
		})
	})
}

// A sender that has overheard the session's index can forge messages that only decryption detects.
// Few of them reach wireguard-go, from whatever addresses; the peer's pass, and enough of those of
// a peer that moves for it to be found.
func TestAdmissionBoundsDataOfStrangers(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		a := newAdmission(wgkey.Key{1})
		data := message(device.MessageTransportType, device.MessageKeepaliveSize+16, wgkey.Key{1})
		passed := func(from netip.Addr, n int) (passed int) {
			for range n {
				if _, ok := a.admit(data, from); ok {
					passed++
				}
			}
			return passed
		}
		expect := func(what string, n, want int) {
			t.Helper()
			if n != want {
				t.Fatalf("%s: %d passed, want %d", what, n, want)
			}
		}
		peer, moved := netip.MustParseAddrPort("192.0.2.7:51840"), netip.MustParseAddrPort("198.51.100.7:51840")
		expect("before there was a peer", passed(moved.Addr(), 100), 100)
		a.sent([][]byte{data}, &endpoint{addr: peer})
		expect("the peer", passed(peer.Addr(), 1000), 1000)
		n := 0
		for i := range 1000 {
			n += passed(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 10)
		}
		expect("strangers with a thousand addresses", n, allDataPace.burst)
		expect("the peer beside them", passed(peer.Addr(), 1000), 1000)
		if got := a.drops[StrangerData].Load(); got != uint64(10_000-n) {
			t.Fatalf("%d counted, want %d", got, 10_000-n)
		}
		time.Sleep(time.Second)
		expect("a peer that has moved", passed(moved.Addr(), 100), shareDataPace.burst)
		a.sent([][]byte{data}, &endpoint{addr: moved})
		expect("the peer at its new address", passed(moved.Addr(), 1000), 1000)
	})
}
