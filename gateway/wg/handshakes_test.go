package wg

import (
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
)

// TestTalk: handshakes are counted by who begins and who answers, in both directions, and an
// unwanted message of a sender is reported once.
func TestTalk(t *testing.T) {
	own := wgkey.Key{1}
	a, b := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("::ffff:192.0.2.8")
	d := New(Options{PrivateKey: wgkey.NewPrivate()})
	admission := newAdmission(own)
	d.bind.admission = admission
	initiation := message(device.MessageInitiationType, device.MessageInitiationSize, own)
	response := message(device.MessageResponseType, device.MessageResponseSize, own)
	cookie := message(device.MessageCookieReplyType, device.MessageCookieReplySize, own)
	data := message(device.MessageTransportType, 100, own)
	keepalive := message(device.MessageTransportType, device.MessageKeepaliveSize, own)
	for _, m := range [][]byte{initiation, response, cookie, data, keepalive} {
		admission.admit(m, a)
	}
	admission.handshakes.sent([][]byte{data, keepalive, data})
	if got, want := d.Stats().Talk, (Talk{ReceivedInitiations: 1, ReceivedAnswers: 2}); got != want {
		t.Errorf("received: %+v, want %+v", got, want)
	}
	admission.handshakes.sent([][]byte{initiation})
	admission.handshakes.sent([][]byte{response})
	admission.handshakes.sent([][]byte{cookie})
	if got, want := d.Stats().Talk, (Talk{ReceivedInitiations: 1, ReceivedAnswers: 2, SentInitiations: 1,
		SentAnswers: 2}); got != want {
		t.Errorf("sent too: %+v, want %+v", got, want)
	}
	if got := d.Initiator(); got != a {
		t.Errorf("%v has begun a handshake, want %v", got, a)
	}
	if got := d.Initiator(); got.IsValid() {
		t.Errorf("%v is told twice", got)
	}

	for _, from := range []netip.Addr{b, a} {
		admission.admit(nil, from)
		admission.admit(message(device.MessageInitiationType, device.MessageInitiationSize, wgkey.Key{2}), from)
	}
	for _, want := range []int{2, 0} {
		told := 0
		d.Strangers(func(r Reason, from netip.Addr) {
			told++
			if from != b.Unmap() || r != NotWireGuard && r != BadMAC1 {
				t.Errorf("%v for %v", from, r)
			}
		})
		if told != want {
			t.Errorf("%d strangers, want %d", told, want)
		}
	}
}

// TestWitnessesCostNothing: a flood of unwanted messages does not allocate.
func TestWitnessesCostNothing(t *testing.T) {
	a, from := newAdmission(wgkey.Key{1}), netip.MustParseAddr("192.0.2.7")
	if n := testing.AllocsPerRun(100, func() { a.admit(nil, from) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTalkAllocatesNothing: of messages that reach wireguard-go, only the initiator of a handshake
// is kept.
func TestTalkAllocatesNothing(t *testing.T) {
	var k handshakeStats
	from, m := netip.MustParseAddr("2001:db8::7"), message(device.MessageResponseType, device.MessageResponseSize,
		wgkey.Key{1})
	if n := testing.AllocsPerRun(100, func() {
		k.received(handshakeMessage, m, from)
		k.received(dataMessage, m, from)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestOutdated: an initiation that is no newer than one before is refused, and what its sender's
// clock said is told once.
func TestOutdated(t *testing.T) {
	own, peer := wgkey.NewPrivate(), wgkey.NewPrivate()
	log := logrus.New()
	log.SetOutput(io.Discard)
	open := func(key wgkey.Key, of wgkey.Key) *Device {
		d := New(Options{PrivateKey: key, MTU: 1340, Log: logrus.NewEntry(log)})
		t.Cleanup(d.Close)
		need.NoError(t, errors.Join(d.Open(idlePath(), Peer{PublicKey: of.Public(), Endpoint: "127.0.0.1:9"}), d.Up()))
		return d
	}
	here, there := open(own, peer), open(peer, own)
	message, err := there.device.CreateMessageInitiation(there.device.LookupPeer(device.NoisePublicKey(own.Public())))
	need.NoError(t, err)
	if here.device.ConsumeMessageInitiation(message) == nil {
		t.Fatal("the first one is refused")
	}
	if at := here.Outdated(); !at.IsZero() {
		t.Fatalf("the first one is outdated: %v", at)
	}
	if here.device.ConsumeMessageInitiation(message) != nil {
		t.Fatal("the same one is accepted again")
	}
	if at := here.Outdated(); time.Since(at) < 0 || time.Since(at) > time.Minute {
		t.Fatalf("it says %v, which is now", at)
	}
	if at := here.Outdated(); !at.IsZero() {
		t.Fatalf("it is told twice: %v", at)
	}
}
