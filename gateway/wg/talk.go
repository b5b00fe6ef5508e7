package wg

import (
	"net/netip"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/device"
)

// Talk is what two gateways do to make a session: each initiation is answered by a
// response, or by a cookie. All are totals.
type Talk struct {
	SentInitiations, ReceivedInitiations uint64
	SentAnswers, ReceivedAnswers         uint64
}

// talk counts the messages of handshakes, and keeps one sender of each kind of message that
// was not wanted.
type talk struct {
	sentInitiations, receivedInitiations atomic.Uint64
	sentAnswers, receivedAnswers         atomic.Uint64

	initiator atomic.Pointer[netip.Addr]             // of the last initiation
	strangers [NumReasons]atomic.Pointer[netip.Addr] // nil = none since Strangers
}

// sent counts the messages in bufs that are no data.
func (t *talk) sent(bufs [][]byte) {
	for _, m := range bufs {
		switch kind := kindOf(m); {
		case kind == handshakeMessage && m[0] == device.MessageInitiationType:
			t.sentInitiations.Add(1)
		case kind == handshakeMessage || kind == cookieMessage:
			t.sentAnswers.Add(1)
		}
	}
}

// received counts a message that wireguard-go gets to see.
func (t *talk) received(kind messageKind, m []byte, from netip.Addr) {
	switch {
	case kind == handshakeMessage && m[0] == device.MessageInitiationType:
		t.initiator.Store(&from)
		t.receivedInitiations.Add(1)
	case kind == handshakeMessage || kind == cookieMessage:
		t.receivedAnswers.Add(1)
	}
}

// note keeps who has sent a message that was dropped, unless there is one already.
func (t *talk) note(r Reason, from netip.Addr) {
	if slot := &t.strangers[r]; slot.Load() == nil {
		kept := from // the parameter stays off the heap
		slot.Store(&kept)
	}
}

func (t *talk) totals() Talk {
	return Talk{
		SentInitiations: t.sentInitiations.Load(), ReceivedInitiations: t.receivedInitiations.Load(),
		SentAnswers: t.sentAnswers.Load(), ReceivedAnswers: t.receivedAnswers.Load(),
	}
}

// Initiator returns who has begun a handshake since the last call; the zero Addr is nobody.
func (d *Device) Initiator() (from netip.Addr) {
	if a := d.bind.admission.talk.initiator.Swap(nil); a != nil {
		from = a.Unmap()
	}
	return from
}

// Strangers calls yield for each reason for which messages were dropped since the last
// call, with one of the senders.
func (d *Device) Strangers(yield func(Reason, netip.Addr)) {
	t := &d.bind.admission.talk
	for r := range t.strangers {
		if a := t.strangers[r].Swap(nil); a != nil {
			yield(Reason(r), a.Unmap())
		}
	}
}
