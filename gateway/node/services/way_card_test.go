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

// Cutting a super-frame after the way or before it gives the same packets: over both families, for
// clients that are masqueraded or not, their answers, and packets of no Service. With a PROXY
// protocol header the stream is the same.
func TestLikeACard(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	const rounds = 200
	for round := range rounds {
		proxy := ""
		if round%3 == 0 {
			proxy = "proxyProtocol: v2, "
		}
		super, superOut := cardWay(t, proxy)
		single, singleOut := cardWay(t, proxy)
		tcp, v6 := r.IntN(2) == 0, r.IntN(2) == 0
		client, to, port := pick("10.244.2.9", "10.244.1.5", "198.51.100.7", "172.18.0.2"),
			pick("10.96.0.10", "172.18.0.2"), uint16(80)
		if to == "172.18.0.2" {
			port = 30080
		}
		if v6 {
			v6of := map[string]string{"10.244.2.9": "fd44::9", "10.244.1.5": "fd44::5", "198.51.100.7": "fd99::7",
				"172.18.0.2": "fd18::2", "10.96.0.10": "fd96::10"}
			client, to = v6of[client], v6of[to]
		}
		ip := nattest.IP{Source: client, Destination: to, DF: r.IntN(2) == 0, TOS: uint8(r.Uint32()),
			ID: uint16(r.Uint32()), TTL: uint8(2 + r.IntN(200))}
		if n := r.IntN(3); !v6 && n > 0 {
			ip.Options = bytes.Repeat([]byte{1}, 4*n)
		} else if n > 0 {
			ip.First, ip.Extensions = 60, [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}
		}
		source, first := uint16(1024+r.IntN(50_000)), r.Uint32()
		var options []byte
		if r.IntN(2) == 0 {
			options = []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
		}
		segment, size := 1+r.IntN(3000), r.IntN(20_000)
		if r.IntN(4) == 0 {
			size = r.IntN(segment + 1)
		}
		payload := nattest.Payload(size, r.Uint32())
		body := func(flags uint8, seq uint32, payload []byte, partial bool) nattest.Body {
			if tcp {
				return nattest.TCP{SourcePort: source, DestinationPort: port, Seq: seq, Ack: 7, Flags: flags,
					Window: 60_000, Options: options, Payload: payload, Partial: partial}
			}
			return nattest.UDP{SourcePort: source, DestinationPort: port, Payload: payload, Partial: partial}
		}
		header := func(b []byte, partial bool, segment int) virtio {
			h := make(virtio, virtioLen)
			if !partial {
				return h
			}
			h[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
			v, err := nattest.CheckPartial(b)
			need.NoError(t, err)
			field := uint16(6)
			if tcp {
				field = 16
			}
			binary.NativeEndian.PutUint16(h[6:], uint16(len(v.Header)))
			binary.NativeEndian.PutUint16(h[8:], field)
			if len(v.Payload) > segment {
				binary.NativeEndian.PutUint16(h[4:], uint16(segment))
				binary.NativeEndian.PutUint16(h[2:], uint16(len(b)))
				switch {
				case !tcp:
					h[1] = unix.VIRTIO_NET_HDR_GSO_UDP_L4
				case v6:
					h[1] = unix.VIRTIO_NET_HDR_GSO_TCPV6
				default:
					h[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4
				}
				if tcp && v.Flags&nattest.CWR != 0 {
					h[1] |= unix.VIRTIO_NET_HDR_GSO_ECN
				}
			}
			return h
		}
		what := fmt.Sprintf("seed %d, round %d: tcp %t, %s > %s, segment %d of %d", seed, round, tcp, client, to,
			segment, size)
		// both gives one way super-frames, and the other what a card makes of them.
		both := func(flags uint8, seq uint32, payload []byte, partial bool) (got, want [][]byte) {
			ip.Body = body(flags, seq, payload, partial)
			b := ip.Bytes()
			h := header(b, partial, segment)
			singles, err := card(slices.Concat(h, b))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got, err = superOut.offer(super, h, b); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, b := range singles {
				made, err := singleOut.offer(single, make(virtio, virtioLen), b)
				if err != nil {
					t.Fatalf("%s: one by one: %v", what, err)
				}
				want = append(want, made...)
			}
			return got, want
		}
		same := func(got, want [][]byte) {
			t.Helper()
			if len(got) == 0 || !slices.EqualFunc(got, want, bytes.Equal) {
				t.Fatalf("%s: %d packets, one by one %d\n%x\n%x", what, len(got), len(want), got, want)
			}
		}
		if tcp {
			same(both(nattest.SYN, first-1, nil, r.IntN(2) == 0))
		}
		flags := nattest.ACK | uint8(r.IntN(2))*nattest.FIN | uint8(r.IntN(2))*nattest.PSH |
			uint8(r.IntN(2))*nattest.CWR
		partial := r.IntN(8) > 0
		got, want := both(flags, first, payload, partial)
		if !tcp || proxy == "" {
			same(got, want)
			v, err := nattest.Check(got[0])
			need.NoError(t, err)
			ip.Source, ip.Destination, source, port = v.Destination.String(), v.Source.String(),
				v.DestinationPort, v.SourcePort
			same(both(flags, r.Uint32(), payload, r.IntN(8) > 0))
			continue
		}
		var stream []byte
		for i, b := range got {
			v, err := nattest.Check(b)
			if err != nil || v.Seq != first+uint32(len(stream)) || partial && size > segment &&
				len(v.Payload) > segment {
				t.Fatalf("%s: segment %d of %d bytes: %v", what, i, len(v.Payload), err)
			}
			stream = append(stream, v.Payload...)
		}
		if len(stream) != packet.ProxyHeaderLen(v6)+size || !bytes.HasSuffix(stream, payload) {
			t.Fatalf("%s: %d bytes with a header", what, len(stream))
		}
	}
}
