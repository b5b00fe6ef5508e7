package wg

import (
	"encoding/binary"
	"testing"

	"golang.zx2c4.com/wireguard/device"
)

// TestVoice: which messages each Voice lets out.
func TestVoice(t *testing.T) {
	message := func(kind uint32, size int) []byte {
		m := make([]byte, size)
		binary.LittleEndian.PutUint32(m, kind)
		return m
	}
	initiation := message(device.MessageInitiationType, device.MessageInitiationSize)
	answer := message(device.MessageResponseType, device.MessageResponseSize)
	cookie := message(device.MessageCookieReplyType, device.MessageCookieReplySize)
	keepalive := message(device.MessageTransportType, device.MessageKeepaliveSize)
	packet := message(device.MessageTransportType, device.MessageKeepaliveSize+64)

	b := newBind(newWindow(), newWindow(), nil)
	all := [][]byte{initiation, answer, cookie, keepalive, packet}
	lets := func(v Voice) (out [5]bool) {
		for i, m := range all {
			out[i] = len(b.withhold(v, [][]byte{m})) == 1
		}
		return out
	}
	if out := lets(Answering); out != [5]bool{false, true, true, false, true} {
		t.Errorf("answering, and no packet was read: %v", out)
	}
	b.voice.is.Store(int32(Answering))
	b.voice.read()
	if out := lets(Answering); out != [5]bool{true, true, true, false, true} {
		t.Errorf("answering, and a packet was read: %v", out)
	}
	b.voice.born = b.voice.born.Add(-device.RekeyTimeout)
	if out := lets(Answering); out != [5]bool{false, true, true, false, true} {
		t.Errorf("answering, and a packet was read some time ago: %v", out)
	}
	if out := lets(Calling); out != [5]bool{false, true, true, false, false} {
		t.Errorf("calling, without a call: %v", out)
	}
	b.voice.calls.Store(1)
	if out := lets(Calling); out != [5]bool{true, true, true, false, false} {
		t.Errorf("calling: %v", out)
	}
	if out := lets(Calling); out != [5]bool{false, true, true, false, false} {
		t.Errorf("calling, the second time: %v", out)
	}
	if left := b.withhold(Answering, all); len(left) != 3 {
		t.Errorf("%d of five messages in one batch", len(left))
	}
}
