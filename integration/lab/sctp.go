package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
	"culvert/nat/nattest"
)

// SCTP chunk types (RFC 9260, Section 3.2). The labs' kernels need no SCTP: the checks implement
// both ends over raw sockets.
const (
	sctpData       = 0
	sctpInit       = 1
	sctpInitAck    = 2
	sctpSack       = 3
	sctpCookieEcho = 10
	sctpCookieAck  = 11

	sctpPort = 3868 // of Diameter, one of SCTP's users
)

// sctpPacket is a packet of one chunk, whose value has a multiple of 4 bytes.
type sctpPacket struct {
	source, destination uint16
	tag                 uint32
	kind                byte
	value               []byte
}

// bytes returns the packet for any two addresses, which its checksum does not cover (RFC 9260,
// Appendix A).
func (p *sctpPacket) bytes() []byte {
	const firstAndLast = 3 // flags of data; other chunks have none
	chunk := append([]byte{p.kind, firstAndLast, 0, byte(4 + len(p.value))}, p.value...)
	body := nattest.SCTP{SourcePort: p.source, DestinationPort: p.destination, Tag: p.tag, Chunks: chunk}
	none := netip.IPv4Unspecified()
	return probe.PacketOf(none, none, body).Bytes()[probe.IPHeader(none):]
}

// sctpEnd is one end of associations: an address of a host.
type sctpEnd struct {
	host *netns.Host
	conn net.PacketConn
}

func newSCTPEnd(h *netns.Host, local netip.Addr) (*sctpEnd, error) {
	conn, err := h.ListenPacket(netns.Over("ip", local)+":132", local.String())
	if err != nil {
		return nil, fmt.Errorf("%s: raw SCTP socket: %w", h.Name, err)
	}
	return &sctpEnd{h, conn}, nil
}

func (e *sctpEnd) send(to netip.Addr, p sctpPacket) error {
	_, err := e.conn.WriteTo(p.bytes(), &net.IPAddr{IP: to.AsSlice()})
	return err
}

// expect requires the next packet to be this one, with a correct checksum and from this address. A
// source port of 0 means any, which expect returns.
func (e *sctpEnd) expect(from netip.Addr, want sctpPacket) (port uint16, err error) {
	defer step.Catch(&err)
	step.Try(e.conn.SetReadDeadline(time.Now().Add(probe.ReplyTimeout)))
	buffer := make([]byte, 65536)
	n, source, err := e.conn.ReadFrom(buffer)
	if err != nil {
		return 0, fmt.Errorf("%s: SCTP chunk of type %d: %w", e.host.Name, want.kind, err)
	}
	if want.source == 0 {
		want.source = binary.BigEndian.Uint16(buffer)
	}
	if !bytes.Equal(buffer[:n], want.bytes()) {
		return 0, fmt.Errorf("%s: SCTP packet % x arrived, want % x", e.host.Name, buffer[:n], want.bytes())
	}
	if s := source.(*net.IPAddr).IP.String(); s != from.String() {
		return 0, fmt.Errorf("%s saw SCTP from %s, want %s", e.host.Name, s, from)
	}
	return want.source, nil
}

func (l *Lab) sctpChecks(p *plan.Plan) []Check {
	return []Check{{"sctp, colliding", "rome/pod1 → milan/pod1", func(ctx context.Context) (string, error) {
		return l.checkSCTP(ctx, p)
	}}}
}

// sctpPair is two associations to a pod from hosts behind another one that use the same port: both
// become U, one with another port, so its CRC32c must be computed again.
type sctpPair struct {
	near      []*sctpEnd
	far       *sctpEnd
	u, target netip.Addr
	ports     []uint16 // as seen by the far end
}

// sctpTags are the tags of the near and the far end of each association.
var sctpTags = [][2]uint32{{0x11111111, 0x21212121}, {0x12345678, 0x87654321}}

func (l *Lab) newSCTPPair(p *plan.Plan) (s *sctpPair, err error) {
	e, rome := l.PairOf(p, "rome/pod1", "milan/pod1"), &p[0]
	s = &sctpPair{u: rome.Seen(rome.UnknownSource()), target: e.Target, ports: make([]uint16, len(sctpTags))}
	if s.far, err = newSCTPEnd(e.To, e.To.Address); err != nil {
		return nil, err
	}
	for _, local := range []netip.Addr{rome.BehindFirst, rome.BehindOther} {
		n, err := newSCTPEnd(e.From, local)
		if err != nil {
			s.close()
			return nil, err
		}
		s.near = append(s.near, n)
	}
	return s, nil
}

func (s *sctpPair) close() {
	for _, e := range append(s.near, s.far) {
		e.conn.Close()
	}
}

// begin opens both, chunk by chunk in turn, so that they overlap.
func (s *sctpPair) begin() error {
	for _, kind := range []byte{sctpInit, sctpInitAck, sctpCookieEcho, sctpCookieAck, sctpData, sctpSack} {
		if err := s.step(kind); err != nil {
			return err
		}
	}
	if s.ports[0] != sctpPort || s.ports[1] == sctpPort {
		return fmt.Errorf("%s saw ports %v, want %d and another", s.far.host.Name, s.ports, sctpPort)
	}
	return nil
}

// step sends a chunk over each.
func (s *sctpPair) step(kind byte) (err error) {
	defer step.Catch(&err)
	for i, near := range s.near {
		value, tags := sctpValue(kind, sctpTags[i]), sctpTags[i]
		switch kind {
		case sctpInitAck, sctpCookieAck, sctpSack: // from the far end
			step.Try(s.far.send(s.u, sctpPacket{sctpPort, s.ports[i], tags[0], kind, value}))
			step.Must(near.expect(s.target, sctpPacket{sctpPort, sctpPort, tags[0], kind, value}))
			continue
		case sctpInit:
			tags[1] = 0
		}
		step.Try(near.send(s.target, sctpPacket{sctpPort, sctpPort, tags[1], kind, value}))
		s.ports[i] = step.Must(s.far.expect(s.u, sctpPacket{s.ports[i], sctpPort, tags[1], kind, value}))
	}
	return nil
}

// checkSCTP opens two associations that collide.
func (l *Lab) checkSCTP(_ context.Context, p *plan.Plan) (_ string, err error) {
	defer step.Catch(&err)
	s := step.Must(l.newSCTPPair(p))
	defer s.close()
	step.Try(s.begin())
	return fmt.Sprintf("from %s, port %d kept, then %d", s.u, s.ports[0], s.ports[1]), nil
}

// sctpValue is the content of a chunk.
func sctpValue(kind byte, tags [2]uint32) []byte {
	switch kind {
	case sctpInit, sctpInitAck: // initiate tag, window, streams out and in, first TSN
		own := tags[0]
		if kind == sctpInitAck {
			own = tags[1]
		}
		b := binary.BigEndian.AppendUint32(nil, own)
		b = append(b, 0, 1, 0, 0, 0, 10, 0, 10, 0, 0, 0, 1)
		if kind == sctpInitAck {
			b = append(b, 0, 7, 0, 8, 'c', 'u', 'l', 'v') // State Cookie
		}
		return b
	case sctpCookieEcho:
		return []byte("culv")
	case sctpCookieAck:
		return nil
	case sctpSack: // TSN, window, no gaps, no duplicates
		return []byte{0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0}
	}
	// TSN, stream, number in it, protocol, and bytes that name the association.
	return fmt.Appendf([]byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, "association %08x", tags[0])
}
