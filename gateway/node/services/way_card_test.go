package services

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// card returns the packets that a network card makes of a packet with its header, after it has
// checked both.
func card(b []byte) (all [][]byte, err error) {
	h, b := virtio(b[:virtioLen]), b[virtioLen:]
	if h[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 {
		if h.segment() > 0 {
			return nil, fmt.Errorf("header %x wants segments with finished checksums", h)
		}
		_, err := nattest.Check(b)
		return [][]byte{b}, err
	}
	v, err := nattest.CheckPartial(b)
	if err != nil {
		return nil, err
	}
	start, field := int(binary.NativeEndian.Uint16(h[6:])), int(binary.NativeEndian.Uint16(h[8:]))
	tcp := v.Protocol == packet.TCP
	if start != len(v.Header) || tcp != (field == 16) || !tcp && field != 6 {
		return nil, fmt.Errorf("header %x for protocol %d behind %d bytes", h, v.Protocol, len(v.Header))
	}
	head := b[:len(b)-len(v.Payload)]
	payloads := slices.Collect(slices.Chunk(v.Payload, max(h.segment(), 1)))
	if h.segment() == 0 {
		payloads = [][]byte{v.Payload}
	}
	for i, payload := range payloads {
		s := slices.Concat(head, payload)
		transport := s[start:]
		if tcp {
			binary.BigEndian.PutUint32(transport[4:], v.Seq+uint32(i*h.segment()))
			if i > 0 {
				transport[13] &^= nattest.CWR
			}
			if i < len(payloads)-1 {
				transport[13] &^= nattest.FIN | nattest.PSH
			}
		} else {
			binary.BigEndian.PutUint16(transport[4:], uint16(len(transport)))
		}
		pseudo := slices.Concat(v.Source.AsSlice(), v.Destination.AsSlice(), binary.BigEndian.AppendUint32(nil,
			uint32(len(transport))), []byte{0, v.Protocol})
		transport[field], transport[field+1] = 0, 0
		sum := nattest.Checksum(append(pseudo, transport...))
		if sum == 0 && !tcp {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(transport[field:], sum)
		if v.Source.Is4() {
			binary.BigEndian.PutUint16(s[2:], uint16(len(s)))
			binary.BigEndian.PutUint16(s[4:], v.ID+uint16(i))
			nattest.Fix(s)
		} else {
			binary.BigEndian.PutUint16(s[4:], uint16(len(s)-40))
		}
		all = append(all, s)
	}
	return all, nil
}

const cardServices = `
addresses: [172.18.0.2, "fd18::2"]
pods: [10.244.0.0/16, "fd44::/48"]
serviceCIDRs: [10.96.0.0/12, "fd96::/108"]
serve:
- {name: web, PROXYclusterIP: [10.96.0.10, "fd96::10"], port: 80, nodePort: 30080,
   endpoints: [{address: 10.244.1.5, port: 8080, node: n1}, {address: "fd44::5", port: 8080, node: n1}]}
- {name: dns, protocol: udp, clusterIP: [10.96.0.10, "fd96::10"], port: 80, nodePort: 30080,
   endpoints: [{address: 10.244.1.5, port: 8080, node: n1}, {address: "fd44::5", port: 8080, node: n1}]}
`

// cardWay returns a way with cardServices, and its output.
func cardWay(t *testing.T, proxy string) (*way, *written) {
	t.Helper()
	c, err := parseText(t, strings.Replace(cardServices, "PROXY", proxy, 1))
	need.NoError(t, err)
	return newWay(t, c)
}

// offer gives a packet to w, and returns what a network card makes of the output.
func (d *written) offer(w *way, h virtio, b []byte) (all [][]byte, err error) {
	buffer := slices.Concat(make([]byte, headroom-virtioLen), h, b)
	d.all = nil
	w.take(buffer, virtioLen+len(b), nat.Time(1))
	for _, b := range d.all {
		made, err := card(b)
		if err != nil {
			return nil, fmt.Errorf("%x: %w", b[:min(len(b), 90)], err)
		}
		all = append(all, made...)
	}
	return all, nil
}

// A cardFlow is a random flow through two ways: one gets super-frames, the other what a card makes
// of them.
type cardFlow struct {
	t                   *testing.T
	what                string // for messages
	super, single       *way
	superOut, singleOut *written

	proxy        bool // PROXY protocol headers are asked for
	tcp, v6      bool
	ip           nattest.IP
	source, port uint16
	options      []byte // of TCP
	segment      int    // of super-frames
	payload      []byte
}

// newCardFlow chooses a client, a Service and the headers of packets.
func newCardFlow(t *testing.T, r *rand.Rand, proxy bool) *cardFlow {
	f := &cardFlow{t: t, proxy: proxy, tcp: r.IntN(2) == 0, v6: r.IntN(2) == 0}
	field := ""
	if proxy {
		field = "proxyProtocol: v2, "
	}
	f.super, f.superOut = cardWay(t, field)
	f.single, f.singleOut = cardWay(t, field)
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	client, to := pick("10.244.2.9", "10.244.1.5", "198.51.100.7", "172.18.0.2"), pick("10.96.0.10", "172.18.0.2")
	if f.port = 80; to == "172.18.0.2" {
		f.port = 30080
	}
	if f.v6 {
		v6of := map[string]string{"10.244.2.9": "fd44::9", "10.244.1.5": "fd44::5", "198.51.100.7": "fd99::7",
			"172.18.0.2": "fd18::2", "10.96.0.10": "fd96::10"}
		client, to = v6of[client], v6of[to]
	}
	f.ip = nattest.IP{Source: client, Destination: to, DF: r.IntN(2) == 0, TOS: uint8(r.Uint32()),
		ID: uint16(r.Uint32()), TTL: uint8(2 + r.IntN(200))}
	if n := r.IntN(3); !f.v6 && n > 0 {
		f.ip.Options = bytes.Repeat([]byte{1}, 4*n)
	} else if n > 0 {
		f.ip.First, f.ip.Extensions = 60, [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}
	}
	f.source = uint16(1024 + r.IntN(50_000))
	if r.IntN(2) == 0 {
		f.options = []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	}
	f.segment = 1 + r.IntN(3000)
	size := r.IntN(20_000)
	if r.IntN(4) == 0 {
		size = r.IntN(f.segment + 1)
	}
	f.payload = nattest.Payload(size, r.Uint32())
	f.what = fmt.Sprintf("tcp %t, %s > %s, segment %d of %d", f.tcp, client, to, f.segment, size)
	return f
}

func (f *cardFlow) body(flags uint8, seq uint32, payload []byte, partial bool) nattest.Body {
	if f.tcp {
		return nattest.TCP{SourcePort: f.source, DestinationPort: f.port, Seq: seq, Ack: 7, Flags: flags,
			Window: 60_000, Options: f.options, Payload: payload, Partial: partial}
	}
	return nattest.UDP{SourcePort: f.source, DestinationPort: f.port, Payload: payload, Partial: partial}
}

// header is the header with which a TUN device passes b: a partial checksum and, if the payload is
// longer than a segment, what a card has to cut.
func (f *cardFlow) header(b []byte, partial bool) virtio {
	h := make(virtio, virtioLen)
	if !partial {
		return h
	}
	h[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	v, err := nattest.CheckPartial(b)
	need.NoError(f.t, err)
	field := uint16(6)
	if f.tcp {
		field = 16
	}
	binary.NativeEndian.PutUint16(h[6:], uint16(len(v.Header)))
	binary.NativeEndian.PutUint16(h[8:], field)
	if len(v.Payload) <= f.segment {
		return h
	}
	binary.NativeEndian.PutUint16(h[4:], uint16(f.segment))
	binary.NativeEndian.PutUint16(h[2:], uint16(len(b)))
	switch {
	case !f.tcp:
		h[1] = unix.VIRTIO_NET_HDR_GSO_UDP_L4
	case f.v6:
		h[1] = unix.VIRTIO_NET_HDR_GSO_TCPV6
	default:
		h[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4
	}
	if f.tcp && v.Flags&nattest.CWR != 0 {
		h[1] |= unix.VIRTIO_NET_HDR_GSO_ECN
	}
	return h
}

// both gives one way a super-frame, and the other what a card makes of it, and returns what a card
// makes of their outputs.
func (f *cardFlow) both(flags uint8, seq uint32, payload []byte, partial bool) (got, want [][]byte) {
	f.t.Helper()
	f.ip.Body = f.body(flags, seq, payload, partial)
	b := f.ip.Bytes()
	h := f.header(b, partial)
	singles, err := card(slices.Concat(h, b))
	if err != nil {
		f.t.Fatalf("%s: %v", f.what, err)
	}
	if got, err = f.superOut.offer(f.super, h, b); err != nil {
		f.t.Fatalf("%s: %v", f.what, err)
	}
	for _, b := range singles {
		made, err := f.singleOut.offer(f.single, make(virtio, virtioLen), b)
		if err != nil {
			f.t.Fatalf("%s: one by one: %v", f.what, err)
		}
		want = append(want, made...)
	}
	return got, want
}

func (f *cardFlow) requireSame(got, want [][]byte) {
	f.t.Helper()
	if len(got) == 0 || !slices.EqualFunc(got, want, bytes.Equal) {
		f.t.Fatalf("%s: %d packets, one by one %d\n%x\n%x", f.what, len(got), len(want), got, want)
	}
}

// answer makes the flow that of answers to a packet that the ways have let through.
func (f *cardFlow) answer(b []byte) {
	f.t.Helper()
	v, err := nattest.Check(b)
	need.NoError(f.t, err)
	f.ip.Source, f.ip.Destination, f.source, f.port = v.Destination.String(), v.Source.String(),
		v.DestinationPort, v.SourcePort
}

// requireStream requires that segments are a PROXY protocol header and the payload, without a gap
// from first on, and that none is longer than those of a super-frame.
func (f *cardFlow) requireStream(got [][]byte, first uint32, super bool) {
	f.t.Helper()
	var stream []byte
	for i, b := range got {
		v, err := nattest.Check(b)
		if err != nil || v.Seq != first+uint32(len(stream)) || super && len(v.Payload) > f.segment {
			f.t.Fatalf("%s: segment %d of %d bytes: %v", f.what, i, len(v.Payload), err)
		}
		stream = append(stream, v.Payload...)
	}
	if len(stream) != packet.ProxyHeaderLen(f.v6)+len(f.payload) || !bytes.HasSuffix(stream, f.payload) {
		f.t.Fatalf("%s: %d bytes with a header", f.what, len(stream))
	}
}

// Cutting a super-frame after the way or before it gives the same packets: over both families, for
// clients that are masqueraded or not, their answers, and packets of no Service. With a PROXY
// protocol header the stream is the same.
func TestLikeACard(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	const rounds = 200
	for round := range rounds {
		f := newCardFlow(t, r, round%3 == 0)
		f.what = fmt.Sprintf("seed %d, round %d: %s", seed, round, f.what)
		first := r.Uint32()
		if f.tcp {
			f.requireSame(f.both(nattest.SYN, first-1, nil, r.IntN(2) == 0))
		}
		flags := nattest.ACK | uint8(r.IntN(2))*nattest.FIN | uint8(r.IntN(2))*nattest.PSH |
			uint8(r.IntN(2))*nattest.CWR
		partial := r.IntN(8) > 0
		got, want := f.both(flags, first, f.payload, partial)
		if f.tcp && f.proxy {
			f.requireStream(got, first, partial && len(f.payload) > f.segment)
			continue
		}
		f.requireSame(got, want)
		f.answer(got[0])
		f.requireSame(f.both(flags, r.Uint32(), f.payload, r.IntN(8) > 0))
	}
}
