package health

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// peerHistory is what is remembered about the peer.
type peerHistory struct {
	began     bool
	started   time.Duration
	handshake int64
	endpoint  netip.AddrPort
	bytes     uint64        // received
	heard     time.Duration // time of the last growth of bytes
	sent      uint64        // handshakes, at the last observation
	answered  uint64        // SentAnswers at the first observation
	packets   uint64        // out of the tunnel
	voice     time.Duration // time of the last message that was more than a handshake
	pings     uint64        // requests sent through the tunnel
	pinged    time.Duration // time of the last one
	deaf      bool          // packets enter the tunnel and none come out
	deafAt    int64         // handshake at the start of that
	missed    int           // requests since the last answer
	missedAt  time.Duration // time of the first of them
	troubled  time.Duration // when it was last deaf, at fault or unanswered
	outdated  int           // observations of refused handshakes since it was last heard
	behind    time.Duration // time of the first of them
	refused   time.Duration // time of the last one
	seen      time.Time     // its clock then

	// The attempt that is still unanswered.
	waiting                   bool
	since                     time.Duration
	sentBefore, answersBefore uint64

	current Finding
	bad     bool          // current is a fault
	faulty  time.Duration // since when
	said    []*Cause      // the causes logged since then: endpoints are tried in turn, each with its own cause
}

// silence is how long a server hears nothing before it reports that: longer than a session lives
// (device.RejectAfterTime of wireguard-go).
const silence = 185 * time.Second

// missedPings is how many requests a peer that has answered before may leave unanswered; mutePings
// is the limit for one that sends packets meanwhile.
const (
	missedPings = 4
	mutePings   = 8
)

// pingMemory is how long after the last request its outcome counts.
const pingMemory = 30 * time.Second

// judge returns the peer's state, and whether it has changed.
func (h *peerHistory) judge(now time.Duration, p *Peer) (Finding, bool) {
	if p.Unknown {
		*h = peerHistory{sent: p.SentHandshakes}
		return Finding{}, false
	}
	if !h.began || p.Handshake == 0 && h.handshake != 0 { // a new peer
		sent := h.sent // 0 at first, because what was sent before the first observation counts
		*h = peerHistory{began: true, started: now, sent: sent, endpoint: p.Endpoint, answered: p.SentAnswers}
	}
	last := *h
	h.handshake, h.bytes, h.sent, h.endpoint = p.Handshake, p.ReceivedBytes, p.SentHandshakes, p.Endpoint
	h.packets, h.pings = p.ReceivedPackets, p.Pings.Sent
	h.listen(now, p, &last)

	heard := (h.handshake != last.handshake || h.bytes != last.bytes) && !h.deaf
	alive := heard && !h.mute() && (h.missed < missedPings || p.Knock == KnockSilent)
	switch {
	case heard:
		h.heard, h.waiting = now, false
	case h.deaf && !h.waiting: // WireGuard itself notices after 15 s
		h.waiting, h.since, h.sentBefore, h.answersBefore = true, h.voice, last.sent, p.ReceivedAnswers
	case !h.waiting && h.sent > last.sent:
		h.waiting, h.since, h.sentBefore, h.answersBefore = true, now, last.sent, p.ReceivedAnswers
	}
	if h.waiting || h.bad {
		h.troubled = now
	}
	switch {
	case h.handshake != last.handshake || h.bytes != last.bytes:
		h.outdated = 0
	case !p.Outdated.IsZero():
		if h.outdated == 0 {
			h.behind = now
		}
		h.outdated, h.refused, h.seen = h.outdated+1, now, p.Outdated
	}
	endpoint := p.Endpoint.String()
	if alive && h.handshake != 0 {
		h.bad = false
		switch {
		case last.bad && last.handshake != 0:
			return h.become(p, TunnelBack, "{endpoint}", endpoint, "{time}", seconds(now-h.faulty))
		case last.handshake == 0:
			return h.become(p, HandshakeMade, "{endpoint}", endpoint)
		case last.endpoint != h.endpoint:
			return h.become(p, PeerMoved, "{before}", last.endpoint.String(), "{endpoint}", endpoint)
		}
	}
	c, since := h.fault(now, p)
	if c == nil || h.bad && h.current.Cause == c {
		return h.current, false
	}
	if !h.bad {
		h.bad, h.faulty, h.said = true, since, nil
	}
	again := slices.Contains(h.said, c)
	if !again {
		h.said = append(h.said, c)
	}
	f, _ := h.become(p, c,
		"{endpoint}", endpoint, "{configured}", p.Configured, "{error}", p.NameError, "{time}", seconds(now-since),
		"{sent}", fmt.Sprint(h.sent-h.sentBefore), "{answers}", fmt.Sprint(p.ReceivedAnswers-h.answersBefore),
		"{seen}", h.seen.UTC().Format(time.DateTime+" UTC"), "{received}", fmt.Sprint(p.ReceivedHandshakes), "{port}",
		fmt.Sprint(p.Endpoint.Port()), "{listen}", fmt.Sprint(p.ListenPort), "{missed}", fmt.Sprint(h.missed))
	return f, !again
}

// listen finds out whether more than handshakes comes through the tunnel. A peer that receives
// packets and has nothing to send sends a keepalive after 10 s (WireGuard paper, Section 6.5), and
// one that has answered requests will do so again.
func (h *peerHistory) listen(now time.Duration, p *Peer, last *peerHistory) {
	if h.pings > last.pings {
		h.pinged = now
	}
	if h.missed = p.Pings.Missed; h.missed == 0 {
		h.missedAt = now
	}
	switch {
	case last.handshake == 0 || h.packets != last.packets || h.bytes != last.bytes && h.handshake == last.handshake:
		h.voice, h.deaf = now, false
	case now-h.pinged > pingMemory:
		h.deaf = false
	case !h.deaf && (p.Pings.Missed >= missedPings || h.pings > last.pings && now-h.voice >= patience):
		h.deaf, h.deafAt = true, h.handshake
	}
}

// mute reports whether the peer, which used to answer requests, sends packets but no answers.
func (h *peerHistory) mute() bool { return h.missed >= mutePings && !h.deaf }

func (h *peerHistory) become(p *Peer, c *Cause, blanks ...string) (Finding, bool) {
	h.current = findingOf(c.by(p.Role), OfPeer, p.Name, blanks...)
	h.current.Cause = c
	return h.current, true
}

// knocks maps the answers to a Knock to causes of silence.
var knocks = map[Knock]*Cause{KnockRefused: Refused, KnockNobody: NoHost, KnockNoRoute: NoRouteThere,
	KnockForbidden: Forbidden}

// fault returns the peer's fault, nil if none is known, and since when it exists.
func (h *peerHistory) fault(now time.Duration, p *Peer) (c *Cause, since time.Duration) {
	waited := now - h.since
	switch {
	case p.NameError != "" && !p.Endpoint.IsValid():
		return NoName, h.started
	case h.outdated >= often && now-h.refused < liveTime: // it is there, perhaps not where it was
		return PeerClock, h.behind
	case h.waiting && p.Knock != KnockSilent && (h.handshake != 0 || waited >= proven):
		// WireGuard has been patient before
		return knocks[p.Knock], h.since
	case h.missed >= missedPings && p.Knock != KnockSilent && h.handshake != 0:
		return knocks[p.Knock], h.missedAt
	case h.deaf && h.handshake != h.deafAt && waited >= patience:
		return DataLost, h.since
	case h.waiting && waited >= patience && p.ReceivedAnswers > h.answersBefore:
		return BadAnswer, h.since
	case h.waiting && waited >= patience && h.handshake != 0:
		return PeerLost, h.since
	case h.waiting && waited >= patience:
		return NoAnswer, h.since
	case !h.waiting && h.handshake != 0 && h.mute():
		return PeerMute, h.missedAt
	case h.waiting || p.Role != "server":
	case h.handshake != 0 && now-h.heard >= silence:
		return PeerSilent, h.heard
	case h.handshake == 0 && now-h.started >= patience && p.ReceivedHandshakes == 0:
		return NobodyCalls, h.started
	case h.handshake == 0 && now-h.started >= patience && p.SentAnswers > h.answered:
		return AnswersLost, h.started
	}
	return nil, 0
}

// seconds formats a duration for a sentence.
func seconds(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", d.Round(time.Second)/time.Second)
	}
	return fmt.Sprintf("%d min", d.Round(time.Minute)/time.Minute)
}
