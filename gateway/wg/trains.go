package wg

import (
	"net/netip"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/echo"
	"culvert/geneve/udp"
)

// peerTrains is what the bind knows about trains to the peer.
type peerTrains struct {
	sent  atomic.Uint64                  // trains, not counting probes
	to    atomic.Pointer[netip.AddrPort] // destination of the last train; nil = none yet
	lost  atomic.Pointer[netip.AddrPort] // the endpoint that trains do not reach; nil = none
	probe atomic.Bool                    // the next probe must leave as a train in any case
}

// lostTo reports whether trains to an endpoint are lost.
func (t *peerTrains) lostTo(to netip.AddrPort) bool {
	lost := t.lost.Load()
	return lost != nil && *lost == to
}

// count counts a train, whether sent as one or not.
func (t *peerTrains) count(to netip.AddrPort, train [][]byte) {
	if isProbe(train) && len(train) == 2 {
		return
	}
	if last := t.to.Load(); last == nil || *last != to {
		changed := to // the parameter stays off the heap
		t.to.Store(&changed)
	}
	t.sent.Add(1)
}

// takeProbe reports, once, whether bufs begin with the expected probe.
func (t *peerTrains) takeProbe(bufs [][]byte) bool {
	return t.probe.Load() && isProbe(bufs) && t.probe.CompareAndSwap(true, false)
}

// isProbe reports whether bufs begin with two datagrams that look like a probe's. The peer's
// answers to its own probes look the same, which is good: they must not make us probe either. Other
// datagrams of that size only cause a round more or less.
func isProbe(bufs [][]byte) bool {
	return len(bufs) > 1 && len(bufs[0]) == probeMessage && len(bufs[1]) == probeMessage
}

// offload reports whether any leg sends trains.
func (b *bind) offload() bool {
	if legs := b.current.Load(); legs != nil {
		for _, l := range *legs {
			if s := l.socket; s.GSO(s.LocalAddr().Addr()) {
				return true
			}
		}
	}
	return false
}

// Sizes of the echo requests in bytes. The single one is shorter, so that it cannot join a train
// with the others.
const (
	singleEcho   = 32
	trainEcho    = 64 // a multiple of WireGuard's padding
	probeMessage = trainEcho + device.MessageTransportSize
)

// peerProbe finds out whether trains arrive at the peer: see udp.TrainProbe. The probes are ICMP
// echo requests from our tunnel address to the peer's. The last two are sent one after the other,
// so that WireGuard sends them in one batch and the bind as one train. A peer that does not answer
// pings is not judged.
type peerProbe struct {
	udp.TrainProbe
	bind     *bind
	send     func(packet []byte)
	own      netip.Addr // tunnel addresses
	peer     netip.Addr
	losses   atomic.Uint64 // how often trains were found lost
	endpoint netip.AddrPort
	packet   [trainEcho]byte
}

func newPeerProbe(b *bind, own, peer netip.Addr) *peerProbe {
	return &peerProbe{bind: b, own: own, peer: peer}
}

// ProbeTrains tests whether trains arrive at the peer; Stats has the result. One goroutine must
// call it once a second.
func (d *Device) ProbeTrains(now time.Duration) { d.probe.step(now) }

// EchoAnswered handles an answer to a probe or a ping; false if b, a packet to our tunnel address,
// is neither.
func (d *Device) EchoAnswered(b []byte, now time.Duration) bool {
	sequence, ok := d.probe.answer(b)
	if ok && sequence >= pingSequence {
		d.pings.answer(sequence-pingSequence, now)
	}
	return ok
}

// step is called once a second by one goroutine.
func (p *peerProbe) step(now time.Duration) (changed bool) {
	if !p.bind.offload() {
		return false
	}
	trains := &p.bind.trains
	if trains.probe.Load() {
		p.Void() // the probe has not left as a train
	}
	if to := trains.to.Load(); to != nil {
		p.endpoint = *to
	}
	due, changed := p.Look(now, trains.sent.Load())
	switch {
	case changed && p.Lost():
		p.losses.Add(1)
		lost := p.endpoint
		trains.lost.Store(&lost)
	case changed:
		trains.lost.Store(nil)
	case p.Lost() && !trains.lostTo(p.endpoint):
		// The peer has a new endpoint: a new path, about which nothing is known.
		p.Reset()
		trains.lost.Store(nil)
		return true
	}
	if due {
		trains.probe.Store(p.Lost())
		p.round()
	}
	return changed
}

// round sends the probes of one round.
func (p *peerProbe) round() {
	for probe := range udp.NumProbes {
		size := trainEcho
		if probe == udp.ProbeSingle {
			size = singleEcho
		}
		p.echo(uint16(probe), size)
	}
}

// echo sends an echo request.
func (p *peerProbe) echo(sequence uint16, size int) {
	b := p.packet[:size]
	clear(b)
	(&echo.Request{From: p.own, To: p.peer, ID: echo.OfPeer, Sequence: sequence}).Put(b)
	p.send(b)
}

// Hello sends the peer an echo request. Its source shows a peer with our own role that both have
// the same role. The goroutine that calls ProbeTrains calls it.
func (d *Device) Hello() { d.probe.echo(helloSequence, singleEcho) }

// Sequence numbers after those of the probes.
const (
	helloSequence = uint16(udp.NumProbes)
	pingSequence  = helloSequence + 1 // and pingSequences - 1 more
)

// answer handles an answer to a probe, and returns which echo request b answers; false if b, a
// packet to the tunnel address, answers none.
func (p *peerProbe) answer(b []byte) (sequence uint16, ok bool) {
	a, ok := echo.Parse(b)
	if !ok || a.ID != echo.OfPeer || a.From != p.peer || a.More || a.Sequence >= pingSequence+pingSequences {
		return 0, false
	}
	if a.Sequence < helloSequence {
		p.Answered(udp.Probe(a.Sequence))
	}
	return a.Sequence, true
}
