package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"time"
)

// SCTP chunk types (RFC 9260, Section 3.2). The labs' kernels need no SCTP: the checks implement both ends over raw sockets.
const (
	sctpData       = 0
	sctpInit       = 1
	sctpInitAck    = 2
	sctpSack       = 3
	sctpCookieEcho = 10
	sctpCookieAck  = 11

	sctpPort       = 3868 // of Diameter, one of SCTP's users
	sctpHeaderSize = 12
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpPacket is a packet of one chunk.
type sctpPacket struct {
	source, destination uint16
	tag                 uint32
	kind                byte
	value               []byte // of the chunk, a multiple of 4 bytes
}

func (p *sctpPacket) marshal() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.source)
	b = binary.BigEndian.AppendUint16(b, p.destination)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0, p.kind, 3, 0, 0) // checksum; type, flags (of data: first and last), length
	binary.BigEndian.PutUint16(b[sctpHeaderSize+2:], uint16(4+len(p.value)))
	b = append(b, p.value...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli)) // RFC 9260, Appendix A
	return b
}

// parseSCTP fails for a packet with a wrong checksum.
func parseSCTP(b []byte) (*sctpPacket, error) {
	if len(b) < sctpHeaderSize+4 || len(b) < sctpHeaderSize+int(binary.BigEndian.Uint16(b[sctpHeaderSize+2:])) {
		return nil, fmt.Errorf("SCTP packet of %d bytes", len(b))
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	copied := append([]byte(nil), b...)
	clear(copied[8:12])
	if want := crc32.Checksum(copied, castagnoli); sum != want {
		return nil, fmt.Errorf("SCTP checksum %#x arrived, want %#x", sum, want)
	}
	return &sctpPacket{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:]), b[sctpHeaderSize], b[sctpHeaderSize+4:]}, nil
}

// sctpEnd is one end of associations: an address of a host.
type sctpEnd struct {
	host *Host
	conn net.PacketConn
}

func newSCTPEnd(h *Host, local netip.Addr) (*sctpEnd, error) {
	conn, err := h.ListenPacket(over("ip", local)+":132", local.String())
	if err != nil {
		return nil, fmt.Errorf("%s: raw SCTP socket: %w", h.Name, err)
	}
	return &sctpEnd{h, conn}, nil
}

func (e *sctpEnd) send(to netip.Addr, p *sctpPacket) error {
	_, err := e.conn.WriteTo(p.marshal(), &net.IPAddr{IP: to.AsSlice()})
	return err
}

// expect requires the next packet to be of this kind, source and tag, and returns it.
func (e *sctpEnd) expect(kind byte, from netip.Addr, tag uint32, value []byte) (*sctpPacket, error) {
	if err := e.conn.SetReadDeadline(time.Now().Add(replyTimeout)); err != nil {
		return nil, err
	}
	buffer := make([]byte, 65536)
	n, source, err := e.conn.ReadFrom(buffer)
	if err != nil {
		return nil, fmt.Errorf("%s: SCTP chunk of type %d: %w", e.host.Name, kind, err)
	}
	p, err := parseSCTP(buffer[:n])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.host.Name, err)
	}
	if p.kind != kind || p.tag != tag || string(p.value) != string(value) {
		return nil, fmt.Errorf("%s: SCTP chunk of type %d with tag %#x and %x, want %d, %#x, %x", e.host.Name, p.kind, p.tag, p.value, kind, tag, value)
	}
	if s := source.(*net.IPAddr).IP.String(); s != from.String() {
		return nil, fmt.Errorf("%s saw SCTP from %s, want %s", e.host.Name, s, from)
	}
	return p, nil
}

func (l *Lab) sctpChecks(p *plan) []Check {
	return []Check{{"sctp, colliding", "rome/pod1 → milan/pod1", func(ctx context.Context) (string, error) { return l.checkSCTP(ctx, p) }}}
}

// sctpPair is two associations to a pod from hosts behind another one that use the same port: both become U, one with another port, so its CRC32c
// must be computed again.
type sctpPair struct {
	near      []*sctpEnd
	far       *sctpEnd
	u, target netip.Addr
	ports     []uint16 // as seen by the far end
}

// sctpTags are the tags of the near and the far end of each association.
var sctpTags = [][2]uint32{{0x11111111, 0x21212121}, {0x12345678, 0x87654321}}

func (l *Lab) newSCTPPair(p *plan) (s *sctpPair, err error) {
	e, rome := l.pairOf(p, "rome/pod1", "milan/pod1"), &p[0]
	s = &sctpPair{u: rome.Seen(rome.UnknownSource()), target: e.target, ports: make([]uint16, len(sctpTags))}
	if s.far, err = newSCTPEnd(e.to, e.to.Address); err != nil {
		return nil, err
	}
	for _, local := range []netip.Addr{rome.BehindFirst, rome.BehindOther} {
		n, err := newSCTPEnd(e.from, local)
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
func (s *sctpPair) step(kind byte) error {
	for i, near := range s.near {
		value, tag := sctpValue(kind, sctpTags[i]), sctpTags[i][1]
		switch kind {
		case sctpInit:
			tag = 0
		case sctpInitAck, sctpCookieAck, sctpSack: // from the far end
			if err := s.back(i, kind, value); err != nil {
				return err
			}
			continue
		}
		if err := near.send(s.target, &sctpPacket{sctpPort, sctpPort, tag, kind, value}); err != nil {
			return err
		}
		p, err := s.far.expect(kind, s.u, tag, value)
		if err != nil {
			return err
		}
		if kind == sctpInit {
			s.ports[i] = p.source
		}
		if p.source != s.ports[i] || p.destination != sctpPort {
			return fmt.Errorf("%s: ports %d to %d, want %d to %d", s.far.host.Name, p.source, p.destination, s.ports[i], sctpPort)
		}
	}
	return nil
}

// back sends a chunk from the far end of an association.
func (s *sctpPair) back(i int, kind byte, value []byte) error {
	tag := sctpTags[i][0]
	if err := s.far.send(s.u, &sctpPacket{sctpPort, s.ports[i], tag, kind, value}); err != nil {
		return err
	}
	p, err := s.near[i].expect(kind, s.target, tag, value)
	if err == nil && (p.source != sctpPort || p.destination != sctpPort) {
		err = fmt.Errorf("%s: ports %d to %d, want %d to %[4]d", s.near[i].host.Name, p.source, p.destination, sctpPort)
	}
	return err
}

// checkSCTP opens two associations that collide.
func (l *Lab) checkSCTP(_ context.Context, p *plan) (string, error) {
	s, err := l.newSCTPPair(p)
	if err != nil {
		return "", err
	}
	defer s.close()
	if err := s.begin(); err != nil {
		return "", err
	}
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
