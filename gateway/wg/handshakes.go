package wg

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tai64n"
)

// Talk counts the messages by which two gateways make a session: each initiation is answered by a
// response or a cookie. All are totals.
type Talk struct {
	SentInitiations, ReceivedInitiations uint64
	SentAnswers, ReceivedAnswers         uint64
}

// handshakeStats counts handshake messages, and keeps one sender of each kind of unwanted message.
type handshakeStats struct {
	sentInitiations, receivedInitiations atomic.Uint64
	sentAnswers, receivedAnswers         atomic.Uint64

	initiator atomic.Pointer[netip.Addr]             // of the last initiation
	outdated  atomic.Pointer[time.Time]              // what the last initiation that was no newer than one before says
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

// hear looks for a refused timestamp in what wireguard-go logs, which tells nobody otherwise.
func (t *handshakeStats) hear(format string, args []any) {
	if !strings.HasSuffix(format, "handshake replay @ %v") || len(args) == 0 {
		return
	}
	if stamp, ok := args[len(args)-1].(tai64n.Timestamp); ok {
		const base = 1<<62 + 10 // TAI64 of 1970-01-01 UTC, as WireGuard has it
		at := time.Unix(int64(binary.BigEndian.Uint64(stamp[:])-base), int64(binary.BigEndian.Uint32(stamp[8:])))
		t.outdated.Store(&at)
	}
}

// Outdated returns what the peer's clock said in an initiation since the last call that was
// refused, because it was no newer than one before (WireGuard paper, Section 5.1); the zero Time is
// none.
func (d *Device) Outdated() (at time.Time) {
	if a := d.bind.admission.handshakes.outdated.Swap(nil); a != nil {
		at = *a
	}
	return at
}

// Strangers calls yield for each reason for which messages were dropped since the last call, with
// one unknown sender.
func (d *Device) Strangers(yield func(Reason, netip.Addr)) {
	t := &d.bind.admission.handshakes
	for r := range t.unknown {
		if a := t.unknown[r].Swap(nil); a != nil {
			yield(Reason(r), a.Unmap())
		}
	}
}
