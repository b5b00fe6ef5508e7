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

// SCTP chunk types (RFC 9260, Section 3.2). The kernels of labs need no SCTP:
// the checks are both ends of it, over raw sockets.
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

// expect wants the next packet to be of a kind, from a source, with a tag, and
// returns it.
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

// checkSCTP opens two associations from hosts behind a pod that use the same
// port: both become U, one with another port, so its CRC32c must be made anew.
func (l *Lab) checkSCTP(_ context.Context, p *plan) (string, error) {
	e := l.pairOf(p, "rome/pod1", "milan/pod1")
	rome := &p[0]
	u := rome.Seen(rome.UnknownSource())
	far, err := newSCTPEnd(e.to, e.to.Address)
	if err != nil {
		return "", err
	}
	defer far.conn.Close()
	var near []*sctpEnd
	for _, local := range []netip.Addr{rome.BehindFirst, rome.BehindOther} {
		n, err := newSCTPEnd(e.from, local)
		if err != nil {
			return "", err
		}
		defer n.conn.Close()
		near = append(near, n)
	}
	ports := make([]uint16, len(near))
	tags := [][2]uint32{{0x11111111, 0x21212121}, {0x12345678, 0x87654321}} // of the near and the far end
	// Chunk by chunk for both in turn, so that they are open at once.
	for _, step := range []struct {
		kind   byte
		toward bool // to the far end
	}{{sctpInit, true}, {sctpInitAck, false}, {sctpCookieEcho, true}, {sctpCookieAck, false}, {sctpData, true}, {sctpSack, false}} {
		for i := range near {
			value, tag := sctpValue(step.kind, tags[i]), tags[i][0]
			if step.toward {
				tag = tags[i][1]
			}
			if step.kind == sctpInit {
				tag = 0
			}
			if !step.toward {
				if err := far.send(u, &sctpPacket{sctpPort, ports[i], tag, step.kind, value}); err != nil {
					return "", err
				}
				p, err := near[i].expect(step.kind, e.target, tag, value)
				if err != nil {
					return "", err
				}
				if p.source != sctpPort || p.destination != sctpPort {
					return "", fmt.Errorf("%s: ports %d to %d, want %d to %[4]d", e.from.Name, p.source, p.destination, sctpPort)
				}
				continue
			}
			if err := near[i].send(e.target, &sctpPacket{sctpPort, sctpPort, tag, step.kind, value}); err != nil {
				return "", err
			}
			p, err := far.expect(step.kind, u, tag, value)
			if err != nil {
				return "", err
			}
			if step.kind == sctpInit {
				ports[i] = p.source
			}
			if p.source != ports[i] || p.destination != sctpPort {
				return "", fmt.Errorf("%s: ports %d to %d, want %d to %d", e.to.Name, p.source, p.destination, ports[i], sctpPort)
			}
		}
	}
	if ports[0] != sctpPort || ports[1] == sctpPort {
		return "", fmt.Errorf("%s saw ports %v, want %d and another", e.to.Name, ports, sctpPort)
	}
	return fmt.Sprintf("from %s, port %d kept, then %d", u, ports[0], ports[1]), nil
}

// sctpValue is what a chunk carries.
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
