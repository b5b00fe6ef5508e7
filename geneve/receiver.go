package geneve

import (
	"encoding/binary"
	"net/netip"
	"time"

	"culvert/geneve/udp"
)

// receiveMessages is the number of 64 KiB messages per recvmmsg call. Measured: 2 to 8 are best;
// more only cost cache.
const receiveMessages = 8

// Packet is one inner IP packet.
type Packet struct {
	// Data is the whole packet, without padding. Its checksums may be partial (the pseudo-header's
	// sum only), and it may be a TCP super-frame of up to 64 KiB. borrowed: until the next Fill; it
	// may be rewritten in place.
	Data []byte
	// Tunnel is the ID of its tunnel.
	Tunnel uint16
	// SegmentSize is not 0 for an inner UDP train: one UDP packet to be split into datagrams with
	// this many payload bytes, the last of which may be shorter.
	SegmentSize int
}

// Receiver is the receiving side of an Endpoint, for use by one goroutine.
type Receiver struct {
	e        *Endpoint
	messages []udp.Message
	received int // messages filled by the last Fill
	next     int // first message not opened
	now      time.Duration

	// The opened message.
	t           *tunnel
	encap       Encap
	source      netip.AddrPort
	rest        []byte // datagrams not handed out
	pieceSize   int    // their size; the last may be shorter
	segmentSize int    // of the inner UDP train, else 0
	tos         uint8
	packets     uint64 // handed out, but not yet in the tunnel's counters
	bytes       uint64
}

// NewReceiver returns the endpoint's Receiver. There must be only one.
func (e *Endpoint) NewReceiver() *Receiver {
	r := &Receiver{e: e, messages: make([]udp.Message, receiveMessages)}
	for i := range r.messages {
		r.messages[i].Buffer = make([]byte, udp.BufferSize)
	}
	return r
}

// Fill blocks until at least one message has arrived. It invalidates all packets handed out before,
// and discards those that Next has not returned. The error is udp.ErrWoken after Wake,
// net.ErrClosed after Close, or an unexpected system error.
func (r *Receiver) Fill() error {
	r.account()
	r.received, r.next, r.rest = 0, 0, nil
	n, err := r.e.socket.Receive(r.messages)
	if err != nil {
		return err
	}
	r.received, r.now = n, r.e.now()
	return nil
}

// Next returns the next inner packet of the last Fill; ok is false if there is none left.
func (r *Receiver) Next() (p Packet, ok bool) {
	for {
		for len(r.rest) == 0 {
			if r.next == r.received {
				r.account()
				return Packet{}, false
			}
			m := &r.messages[r.next]
			r.next++
			r.open(m)
		}
		piece := r.rest[:min(r.pieceSize, len(r.rest))]
		r.rest = r.rest[len(piece):]
		ip, reason := r.e.decap(r.t, r.encap, piece, r.tos, r.now)
		if tap := r.e.tap.Load(); tap != nil {
			(*tap)(&Datagram{Peer: r.source, Tunnel: r.t.ID, Data: piece, Inner: ip, Reason: reason})
		}
		if reason != Accepted {
			r.e.drop(reason, 1)
			r.e.signTunnel(reason, r.t)
			continue
		}
		if ip == nil {
			continue
		}
		r.packets++
		r.bytes += uint64(len(ip))
		return Packet{Data: ip, Tunnel: r.t.ID, SegmentSize: r.segmentSize}, true
	}
}

// account adds the packets handed out from the open message to its tunnel's counters.
func (r *Receiver) account() {
	if r.packets > 0 {
		r.t.receivedPackets.Add(r.packets)
		r.t.receivedBytes.Add(r.bytes)
		r.packets, r.bytes = 0, 0
	}
}

// open finds the tunnel and the shape of a message, and drops the message if either is invalid.
func (r *Receiver) open(m *udp.Message) {
	r.account()
	if len(m.Data) < headerLen {
		r.e.drop(Truncated, 1)
		r.show(m.Source, m.Data, 0, Truncated)
		return
	}
	datagrams := uint64(1)
	if m.SegmentSize > 0 {
		datagrams = uint64((len(m.Data) + m.SegmentSize - 1) / m.SegmentSize)
	}
	// Only configured pairs of VNI and outer source pass. Both encapsulations have the VNI in the
	// same place.
	t := r.e.table.Load().find(parseVNI(m.Data), m.Source.Addr())
	if t == nil {
		r.e.drop(UnknownNode, datagrams)
		r.show(m.Source, m.Data, m.SegmentSize, UnknownNode)
		if r.e.unsigned(UnknownNode) {
			r.e.sign(&Sign{Reason: UnknownNode, Source: m.Source, VNI: parseVNI(m.Data)})
		}
		return
	}
	encap := t.spoken()
	if is := encapOf(m.Data); is != encap && is != Auto { // the parser rejects everything else
		if !t.either(r.now) {
			r.e.drop(WrongEncap, datagrams)
			r.e.signTunnel(WrongEncap, t)
			r.show(m.Source, m.Data, m.SegmentSize, WrongEncap)
			return
		}
		encap = is
	}
	t.heardAt(m.Destination)
	r.t, r.source, r.encap, r.tos = t, m.Source, encap, m.TOS
	r.rest, r.pieceSize, r.segmentSize = m.Data, len(m.Data), 0
	if datagrams > 1 {
		if reason := r.shape(m); reason != Accepted {
			r.e.drop(reason, datagrams)
			r.e.signTunnel(reason, t)
			r.show(m.Source, m.Data, m.SegmentSize, reason)
			r.rest = nil
		}
	}
}

// shape decides what a message with a UDP_GRO size is. The kernel reports the same number for two
// things: the size of the outer datagrams that it has merged, and the payload size of an inner UDP
// train that a pod on this machine sent with UDP_SEGMENT. Cutting the second kind like the first
// would let the pod forge tunnel headers. They differ in the length of the first inner packet,
// which the node's kernel has written: it ends with the first datagram, or with the message.
func (r *Receiver) shape(m *udp.Message) Reason {
	_, _, reason := r.t.header(r.encap, m.Data)
	if reason != Accepted {
		return reason
	}
	vni := parseVNI(m.Data)
	switch r.t.length(r.encap, m.Data) {
	case m.SegmentSize:
		for rest := m.Data; len(rest) > 0; {
			piece := rest[:min(m.SegmentSize, len(rest))]
			if r.t.length(r.encap, piece) != len(piece) || parseVNI(piece) != vni {
				return BadTrain
			}
			rest = rest[len(piece):]
		}
		r.pieceSize = m.SegmentSize
		return Accepted
	case len(m.Data):
		inner, protocol, _ := r.t.header(r.encap, m.Data)
		if protocol == etherTypeEthernet {
			protocol = binary.BigEndian.Uint16(inner[12:])
			inner = inner[ethernetLen:]
		}
		if protocol == etherTypeARP || !isUDPTrain(inner, m.SegmentSize) {
			return BadTrain
		}
		r.segmentSize = m.SegmentSize
		return Accepted
	}
	return BadTrain
}
