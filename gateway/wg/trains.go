package wg

import (
	"net/netip"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/geneve/udp"
)

// peerTrains is what the bind knows of trains on the way to the peer.
type peerTrains struct {
	sent  atomic.Uint64                  // trains, probes not counted
	to    atomic.Pointer[netip.AddrPort] // where the last train went; nil = none yet
	lost  atomic.Pointer[netip.AddrPort] // the endpoint that trains do not reach; nil = none
	probe atomic.Bool                    // the next probe is to leave as a train all the same
}

// lostTo reports whether trains to an endpoint are lost.
func (t *peerTrains) lostTo(to netip.AddrPort) bool {
	lost := t.lost.Load()
	return lost != nil && *lost == to
}

// note counts a train, sent as one or not.
func (t *peerTrains) note(to netip.AddrPort, train [][]byte) {
	if isProbe(train) && len(train) == 2 {
		return
	}
	if last := t.to.Load(); last == nil || *last != to {
		changed := to // the parameter stays off the heap
		t.to.Store(&changed)
	}
	t.sent.Add(1)
}

// takeProbe reports whether bufs begin with the probe that is waited for. It answers
// so once.
func (t *peerTrains) takeProbe(bufs [][]byte) bool {
	return t.probe.Load() && isProbe(bufs) && t.probe.CompareAndSwap(true, false)
}

// isProbe reports whether bufs begin with two datagrams as a probe has them. The
// peer's answers to its own probes look the same, which is as well: they must not
// make us probe either. What else is of that size costs one round more or less.
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

// Sizes of the echo requests in bytes. The single one is shorter, so that it cannot
// be put into a train with the others.
const (
	singleEcho   = 32
	trainEcho    = 64 // a multiple of WireGuard's padding
	probeMessage = trainEcho + device.MessageTransportSize
)

// peerProbe finds out whether trains arrive at the peer: see udp.TrainProbe. The
// probes are ICMP echo requests from our tunnel address to the peer's, the last two
// of which are sent one after the other, so that WireGuard sends them in one batch
// and the bind as one train. A peer that answers no echo is not judged.
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

// probeIdent is the identifier of our echo requests. Nobody else sends echo requests
// from the tunnel address.
const probeIdent = 0x6376

func newPeerProbe(b *bind, own, peer netip.Addr) *peerProbe {
	return &peerProbe{bind: b, own: own, peer: peer}
}

// ProbeTrains looks whether trains arrive at the peer; Stats tells. It is called once a
// second by one goroutine.
func (d *Device) ProbeTrains(now time.Duration) { d.probe.look(now) }

// EchoAnswered takes note of an answer to a probe or a ping; false if b, a packet to our
// tunnel address, is none.
func (d *Device) EchoAnswered(b []byte, now time.Duration) bool {
	sequence, ok := d.probe.answer(b)
	if ok && sequence >= pingSequence {
		d.pings.answer(sequence-pingSequence, now)
	}
	return ok
}

// look is called once a second by one goroutine.
func (p *peerProbe) look(now time.Duration) (changed bool) {
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
		// The peer has another endpoint: another path, of which nothing is known.
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
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(size), TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber),
		SrcAddr: tcpip.AddrFrom4(p.own.As4()), DstAddr: tcpip.AddrFrom4(p.peer.As4()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	icmp := header.ICMPv4(ip.Payload())
	icmp.SetType(header.ICMPv4Echo)
	icmp.SetIdent(probeIdent)
	icmp.SetSequence(sequence)
	icmp.SetChecksum(^checksum.Checksum(icmp, 0))
	p.send(b)
}

// Hello sends the peer an echo request. Its source tells a peer with our own role that
// there are two of us. It is called by the goroutine that calls ProbeTrains.
func (d *Device) Hello() { d.probe.echo(helloSequence, singleEcho) }

// Sequence numbers behind those of the probes.
const (
	helloSequence = uint16(udp.NumProbes)
	pingSequence  = helloSequence + 1 // and pingSequences - 1 more
)

// answer takes note of an answer to a probe, and returns which echo request b answers;
// false if b, a packet to the tunnel address, answers none.
func (p *peerProbe) answer(b []byte) (sequence uint16, ok bool) {
	ip := header.IPv4(b)
	if header.IPVersion(b) != header.IPv4Version || ip.TransportProtocol() != header.ICMPv4ProtocolNumber || ip.More() ||
		ip.FragmentOffset() != 0 || ip.SourceAddress() != tcpip.AddrFrom4(p.peer.As4()) {
		return 0, false
	}
	icmp := header.ICMPv4(ip.Payload())
	if len(icmp) < header.ICMPv4MinimumSize || icmp.Type() != header.ICMPv4EchoReply || icmp.Ident() != probeIdent || icmp.Sequence() >= pingSequence+pingSequences {
		return 0, false
	}
	if sequence = icmp.Sequence(); sequence < helloSequence {
		p.Answered(udp.Probe(sequence))
	}
	return sequence, true
}
