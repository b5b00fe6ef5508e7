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
)

// admission decides which datagrams wireguard-go gets to see. Whatever waits in its queues
// pins a buffer of 64 KiB, up to 1024 handshake messages and 65536 keepalives, and it
// tells nobody when it is done with one: the window cannot bound them. Anybody can
// send those, so they pass no more often than a peer could need.
//
// A flood must not shut out the peer, also when the peer has another address than
// before. Handshakes count only if their sender knows our public key (MAC1; WireGuard
// paper, Section 5.4.4). The address that we send to has a pace of its own, and so has
// each sharer among the others, who have one more together: that is for addresses in
// plenty, which only a cookie could tell from forged ones.
//
// Data messages of others have paces too. A peer that has moved needs one: what it proves
// moves the address that we send to. Who has overheard the index of our session can forge
// more, and each forged one takes a place in the window until that has waited in vain.
type admission struct {
	drops [NumReasons]atomic.Uint64
	peer  atomic.Pointer[endpoint] // nil = nothing sent yet
	talk  talk

	mu sync.Mutex
	// not wireguard-go's, which leaves garbage
	mac1 hash.Hash          // +checklocks:mu
	sum  [blake2s.Size]byte // +checklocks:mu
	// of the peer's address
	known [numKinds]pace // +checklocks:mu
	// of all others together
	others [numKinds]pace // +checklocks:mu
	// of each of the others that has lately sent something
	shares map[share]pace // +checklocks:mu
}

// share is whose pace it is, and of which messages.
type share struct {
	of   netip.Addr
	kind messageKind
}

// Sharer is who has a share of what is there for all: an IPv4 address, or the /64 of an
// IPv6 address, in which one host has as many addresses as it likes.
func Sharer(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() {
		p, _ := a.Prefix(64) // never fails for IPv6
		return p.Addr()
	}
	return a
}

func newAdmission(own wgkey.Key) *admission {
	key := blake2s.Sum256(append([]byte(device.WGLabelMAC1), own[:]...))
	mac1, _ := blake2s.New128(key[:]) // fails for longer keys only
	return &admission{mac1: mac1, shares: make(map[share]pace)}
}

// admit returns what kind of message m is and whether it may pass. If not, it has been
// counted.
func (a *admission) admit(m []byte, from netip.Addr) (kind messageKind, ok bool) {
	kind = kindOf(m)
	switch {
	case kind == noMessage:
		a.drops[NotWireGuard].Add(1)
		a.talk.note(NotWireGuard, from)
		return kind, false
	case kind == dataMessage && (a.isPeer(from) || a.peer.Load() == nil):
		return kind, true // without a peer there is no session either, and wireguard-go discards it at once
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if kind == handshakeMessage && !a.knowsKey(m) {
		a.drops[BadMAC1].Add(1)
		a.talk.note(BadMAC1, from)
		return kind, false
	}
	if !a.pass(kind, from, time.Now()) {
		reason := HandshakeRate
		if kind == dataMessage {
			reason = StrangerData
		}
		a.drops[reason].Add(1)
		a.talk.note(reason, from)
		return kind, false
	}
	a.talk.received(kind, m, from)
	return kind, true
}

// dropped returns how many messages did not pass, by reason.
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

// pass takes what a message costs from the pace, or paces, that it falls under, and
// reports whether there was enough. What does not pass costs nothing.
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
	of := share{Sharer(from), kind}
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

// knowsKey checks MAC1 of a handshake message, which has MAC2 behind it.
//
// Preconditions: a.mu is held.
// +checklocks:a.mu
func (a *admission) knowsKey(m []byte) bool {
	m, mac1 := m[:len(m)-2*blake2s.Size128], m[len(m)-2*blake2s.Size128:len(m)-blake2s.Size128]
	a.mac1.Reset()
	a.mac1.Write(m)
	return bytes.Equal(a.mac1.Sum(a.sum[:0]), mac1) // an oracle for MAC1 is worth nothing
}

// sent notes where messages go. Only cookie replies go to senders that need not be the
// peer.
func (a *admission) sent(bufs [][]byte, to *endpoint) {
	if a.peer.Load() != to && kindOf(bufs[0]) != cookieMessage {
		a.peer.Store(to)
	}
}

// messageKind is what a datagram on WireGuard's port is, by its type and size
// (WireGuard paper, Section 5.4).
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

// limit is how fast messages may pass: one every interval, and burst at once after a
// pause.
type limit struct {
	interval time.Duration
	burst    int
}

var (
	// The dearest of these messages costs a fraction of a millisecond.
	allPace = limit{10 * time.Millisecond, 8}
	// A peer has 5 seconds between two attempts (WireGuard paper, Section 6.4).
	sharePace = limit{time.Second, 4}
	// Forged data messages fill the window of 128 in half a second at this pace, and then
	// the window waits 8 ms until they count as gone. A peer that moves and is not answered
	// at once keeps 50 packets a second until the keepalive that is due within 10 s.
	allDataPace   = limit{4 * time.Millisecond, 8}
	shareDataPace = limit{20 * time.Millisecond, 8}
)

// maxShares is more than can have passed and not be rested yet, of all kinds: after
// burst intervals of sharePace without a message, a share is as if it were not there.
const maxShares = 2048

// pace lets messages pass no faster than a limit.
type pace struct {
	due time.Time // when the next could pass if there were no bursts
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

// rested reports whether the whole burst is there again.
func (p *pace) rested(now time.Time) bool { return !p.due.After(now) }
