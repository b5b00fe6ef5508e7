package wg

import (
	"net/netip"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/device"
)

// Talk counts the messages by which two gateways make a session: each initiation is answered by a response or a cookie. All are totals.
type Talk struct {
	SentInitiations, ReceivedInitiations uint64
	SentAnswers, ReceivedAnswers         uint64
}

// handshakeStats counts handshake messages, and keeps one sender of each kind of unwanted message.
type handshakeStats struct {
	sentInitiations, receivedInitiations atomic.Uint64
	sentAnswers, receivedAnswers         atomic.Uint64

	initiator atomic.Pointer[netip.Addr]             // of the last initiation
	unknown   [NumReasons]atomic.Pointer[netip.Addr] // nil = none since Strangers
}

// sent counts the handshake messages in bufs.
func (t *handshakeStats) sent(bufs [][]byte) {
	for _, m := range bufs {
		switch kind := kindOf(m); {
		case kind == handshakeMessage && m[0] == device.MessageInitiationType:
			t.sentInitiations.Add(1)
		case kind == handshakeMessage || kind == cookieMessage:
			t.sentAnswers.Add(1)
		}
	}
}

// received counts a message that is passed to wireguard-go.
func (t *handshakeStats) received(kind messageKind, m []byte, from netip.Addr) {
	switch {
	case kind == handshakeMessage && m[0] == device.MessageInitiationType:
		kept := from // the parameter stays off the heap
		t.initiator.Store(&kept)
		t.receivedInitiations.Add(1)
	case kind == handshakeMessage || kind == cookieMessage:
		t.receivedAnswers.Add(1)
	}
}

// addUnknown keeps the sender of a dropped message, unless there is one already.
func (t *handshakeStats) addUnknown(r Reason, from netip.Addr) {
	if slot := &t.unknown[r]; slot.Load() == nil {
		kept := from // the parameter stays off the heap
		slot.Store(&kept)
	}
}

func (t *handshakeStats) totals() Talk {
	return Talk{
		SentInitiations: t.sentInitiations.Load(), ReceivedInitiations: t.receivedInitiations.Load(),
		SentAnswers: t.sentAnswers.Load(), ReceivedAnswers: t.receivedAnswers.Load(),
	}
}

// Initiator returns the sender of an initiation since the last call; the zero Addr is none.
func (d *Device) Initiator() (from netip.Addr) {
	if a := d.bind.admission.handshakes.initiator.Swap(nil); a != nil {
		from = a.Unmap()
	}
	return from
}

// Strangers calls yield for each reason for which messages were dropped since the last call, with one unknown sender.
func (d *Device) Strangers(yield func(Reason, netip.Addr)) {
	t := &d.bind.admission.handshakes
	for r := range t.unknown {
		if a := t.unknown[r].Swap(nil); a != nil {
			yield(Reason(r), a.Unmap())
		}
	}
}
