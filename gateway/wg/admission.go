package wg

import (
	"bytes"
	"encoding/binary"
	"hash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/wgkey"
	"culvert/geneve/share"
)

// admission decides which datagrams wireguard-go may see. Each message in its queues, up to 1024
// handshakes and 65536 keepalives, pins a buffer of 64 KiB, and wireguard-go does not report when
// it is done with one, so the window cannot limit them. Anybody can send such messages, so they
// pass only at the rate that a peer could need.
//
// A flood must not lock out the peer, even if the peer's address has changed. Handshakes count only
// if their sender knows our public key (MAC1; WireGuard paper, Section 5.4.4). The address that we
// send to has its own rate, and so has each other source; all others together have one more,
// because only a cookie could tell many addresses from forged ones.
//
// Data messages of other sources are limited too. A peer that has moved needs one to pass: it
// proves the new address. An eavesdropper who knows the index of our session can forge more, and
// each forged one takes a place in the window until it times out.
type admission struct {
	drops      [NumReasons]atomic.Uint64
	peer       atomic.Pointer[endpoint] // nil = nothing sent yet
	handshakes handshakeStats
	asked      atomic.Uint32 // index in our last initiation, which the response to it has

	mu sync.Mutex
	// mac1 and sum check MAC1 without an allocation, which wireguard-go's own check needs
	mac1 hash.Hash          // +checklocks:mu
	sum  [blake2s.Size]byte // +checklocks:mu
	// rates of the peer's address
	known [numKinds]pace // +checklocks:mu
	// rates of all others together
	others [numKinds]pace // +checklocks:mu
	// rates of each of the others that sent something recently
	shares map[rate]pace // +checklocks:mu
	// when the last response to our last initiation was passed to wireguard-go
	answered time.Time // +checklocks:mu
}

// A rate identifies the limit for one kind of messages from one source.
type rate struct {
	source netip.Prefix
	kind   messageKind
}

func newAdmission(own wgkey.Key) *admission {
	key := blake2s.Sum256(append([]byte(device.WGLabelMAC1), own[:]...))
	mac1, _ := blake2s.New128(key[:]) // fails only for longer keys
	return &admission{mac1: mac1, shares: make(map[rate]pace)}
}

// admit returns the kind of message m and whether it may pass. If not, it has been counted.
func (a *admission) admit(m []byte, from netip.Addr) (kind messageKind, ok bool) {
	kind = kindOf(m)
	switch {
	case kind == noMessage:
		a.drops[NotWireGuard].Add(1)
		a.handshakes.addUnknown(NotWireGuard, from)
		return kind, false
	case kind == dataMessage && (a.isPeer(from) || a.peer.Load() == nil):
		return kind, true // without a peer there is no session, and wireguard-go discards it at once
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if kind == handshakeMessage && !a.knowsKey(m) {
		a.drops[BadMAC1].Add(1)
		a.handshakes.addUnknown(BadMAC1, from)
		return kind, false
	}
	now := time.Now()
	if !a.pass(kind, from, now) {
		reason := HandshakeRate
		if kind == dataMessage {
			reason = StrangerData
		}
		a.drops[reason].Add(1)
		a.handshakes.addUnknown(reason, from)
		return kind, false
	}
	if kind == handshakeMessage && m[0] == device.MessageResponseType &&
		binary.LittleEndian.Uint32(m[receiverAt:]) == a.asked.Load() {
		a.answered = now
	}
	a.handshakes.received(kind, m, from)
	return kind, true
}

// dropped returns how many messages were refused, by reason.
func (a *admission) dropped() (n [NumReasons]uint64) {
	for r := range a.drops {
		n[r] = a.drops[r].Load()
	}
	return n
}

// isPeer reports whether from is the address that we send to.
func (a *admission) isPeer(from netip.Addr) bool {
	p := a.peer.Load()
	return p != nil && p.addr.Addr() == from
}

// pass charges a message to the rate limits that apply, and reports whether all allow it. A refused
// message costs nothing.
//
// Preconditions: a.mu is held.
// +checklocks:a.mu
func (a *admission) pass(kind messageKind, from netip.Addr, now time.Time) bool {
	if a.isPeer(from) {
		return a.known[kind].take(now, allPace)
	}
	all, each := allPace, sharePace
	if kind == dataMessage {
		all, each = allDataPace, shareDataPace
	}
	of := rate{share.Source(from), kind}
	own := a.shares[of]
	if !own.take(now, each) || !a.others[kind].take(now, all) {
		return false
	}
	if len(a.shares) == maxShares {
		for s, p := range a.shares {
			if p.rested(now) {
				delete(a.shares, s)
			}
		}
	}
	a.shares[of] = own
	return true
}

// knowsKey checks MAC1 of a handshake message; MAC2 follows it.
//
// Preconditions: a.mu is held.
// +checklocks:a.mu
func (a *admission) knowsKey(m []byte) bool {
	m, mac1 := m[:len(m)-2*blake2s.Size128], m[len(m)-2*blake2s.Size128:len(m)-blake2s.Size128]
	a.mac1.Reset()
	a.mac1.Write(m)
	return bytes.Equal(a.mac1.Sum(a.sum[:0]), mac1) // timing reveals nothing useful about MAC1
}

// sent records the destination of messages, and the index of an initiation, before they leave. Only
// cookie replies go to senders other than the peer.
func (a *admission) sent(bufs [][]byte, to *endpoint) {
	kind := kindOf(bufs[0])
	if a.peer.Load() != to && kind != cookieMessage {
		a.peer.Store(to)
	}
	if kind == handshakeMessage && bufs[0][0] == device.MessageInitiationType {
		a.asked.Store(binary.LittleEndian.Uint32(bufs[0][senderAt:]))
	}
}

// Where an initiation has its sender's index, and a response that of the initiation (WireGuard
// paper, Section 5.4).
const senderAt, receiverAt = 4, 8

// messageKind is the kind of a datagram on WireGuard's port, by type and size (WireGuard paper,
// Section 5.4).
type messageKind uint8

const (
	noMessage        messageKind = iota
	dataMessage                  // transport message with content
	keepaliveMessage             // transport message without
	handshakeMessage             // initiation or response
	cookieMessage

	numKinds
)

func kindOf(m []byte) messageKind {
	if len(m) < device.MinMessageSize {
		return noMessage
	}
	switch kind, size := binary.LittleEndian.Uint32(m), len(m); {
	case kind == device.MessageTransportType && size > device.MessageKeepaliveSize:
		return dataMessage
	case kind == device.MessageTransportType:
		return keepaliveMessage
	case kind == device.MessageInitiationType && size == device.MessageInitiationSize,
		kind == device.MessageResponseType && size == device.MessageResponseSize:
		return handshakeMessage
	case kind == device.MessageCookieReplyType && size == device.MessageCookieReplySize:
		return cookieMessage
	}
	return noMessage
}

// limit is a rate: one message every interval, and burst at once after a pause.
type limit struct {
	interval time.Duration
	burst    int
}

var (
	// The most expensive of these messages costs a fraction of a millisecond.
	allPace = limit{10 * time.Millisecond, 8}
	// A peer waits 5 seconds between attempts (WireGuard paper, Section 6.4).
	sharePace = limit{time.Second, 4}
	// At this rate forged data messages fill the window of 128 in half a second, and then the
	// window waits 8 ms until they count as lost. A peer that moves and gets no answer keeps 50
	// packets a second until the keepalive, which is due within 10 s.
	allDataPace   = limit{4 * time.Millisecond, 8}
	shareDataPace = limit{20 * time.Millisecond, 8}
)

// maxShares is more than the shares that can be in use, of all kinds: after burst intervals of
// sharePace without a message, a share is full again and can be forgotten.
const maxShares = 2048

// pace enforces a limit.
type pace struct {
	due time.Time // when the next message could pass without bursts
}

func (p *pace) take(now time.Time, l limit) bool {
	if p.due.Sub(now) > time.Duration(l.burst-1)*l.interval {
		return false
	}
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(l.interval)
	return true
}

// rested reports whether the whole burst is available again.
func (p *pace) rested(now time.Time) bool { return !p.due.After(now) }
