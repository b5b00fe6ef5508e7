package services

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// A written is a device that records what is written to it, with each packet's header.
type written struct{ all [][]byte }

func (d *written) Write(b []byte) (int, error) {
	d.all = append(d.all, bytes.Clone(b))
	return len(b), nil
}

// newWay returns a way with configuration c, and its output.
func newWay(t *testing.T, c *Config) (*way, *written) {
	t.Helper()
	engine, err := nat.New([16]byte{1}, c.NAT(c.Addresses))
	need.NoError(t, err)
	d := &written{}
	return &way{engine: engine, device: d}, d
}

// One finished checksum in 65,536 equals the sum of its pseudo-header, and so looks like an
// unfinished one. It must still be right in the output, and so must that of a segment that a header
// makes longer.
func TestChecksums(t *testing.T) {
	for _, protocol := range []string{"", "proxyProtocol: v2, "} {
		c, err := parse(t, "name: web,", "name: web, "+protocol)
		need.NoError(t, err)
		w, d := newWay(t, c)
		send := func(flags uint8, payload []byte) []byte {
			t.Helper()
			ip := nattest.IP{Source: "10.244.2.9", Destination: "10.96.0.10", DF: true,
				Body: nattest.TCP{SourcePort: 4000, DestinationPort: 80, Seq: 1000, Flags: flags, Window: 500,
					Payload: payload}}
			if flags&nattest.SYN == 0 {
				body := ip.Body.(nattest.TCP)
				body.Seq = 1001
				ip.Body = body
			}
			b := ip.Bytes()
			buffer := append(make([]byte, headroom), b...)
			d.all = nil
			w.take(buffer, virtioLen+len(b), nat.Time(1))
			if len(d.all) != 1 {
				t.Fatalf("%d packets", len(d.all))
			}
			v, err := nattest.Check(d.all[0][virtioLen:])
			if err != nil {
				t.Fatalf("%v, of %x\n%x", err, b, d.all[0])
			}
			return v.Payload
		}
		send(nattest.SYN, nil)
		looks := func(payload []byte) bool {
			var p packet.Packet
			p.Parse(nattest.IP{Source: "10.244.2.9", Destination: "10.96.0.10", DF: true,
				Body: nattest.TCP{SourcePort: 4000, DestinationPort: 80, Seq: 1001, Flags: nattest.ACK, Window: 500,
					Payload: payload}}.Bytes())
			return p.IsPartial()
		}
		payload, found := []byte{0, 0}, false
		for n := range 1 << 16 {
			if binary.BigEndian.PutUint16(payload, uint16(n)); looks(payload) {
				found = true
				break
			}
		}
		if !found {
			t.Fatal("no payload makes a checksum look unfinished")
		}
		if got := send(nattest.ACK, payload); !bytes.HasSuffix(got, payload) || (len(got) > 2) != (protocol != "") {
			t.Errorf("%q arrives as %q", payload, got)
		}
		if got := send(nattest.ACK, []byte("plain")); !bytes.HasSuffix(got, []byte("plain")) {
			t.Errorf("%q arrives", got)
		}
	}
}

// A super-frame that leaves segmentation and checksum to a network card goes on as one, and so does
// a train of datagrams. Only if a PROXY protocol header makes it longer is it cut into segments of
// the sender's size.
func TestSuperFrames(t *testing.T) {
	const segment, payloadLen = 1300, 20_000
	payload := nattest.Payload(payloadLen, 1)
	tcp := func(source string, flags uint8, seq uint32, payload []byte) nattest.IP {
		return nattest.IP{Source: "10.244.2.9", Destination: source, DF: true, Body: nattest.TCP{SourcePort: 4000,
			DestinationPort: 80, Seq: seq,
			Flags: flags, Window: 500, Payload: payload, Partial: true}}
	}
	for name, test := range map[string]struct {
		change [2]string // of the configuration
		kind   byte      // of segmentation
		first  *nattest.IP
		packet nattest.IP
		cut    bool
		own    bool // only segmentation is left to a network card
	}{
		"TCP": {kind: unix.VIRTIO_NET_HDR_GSO_TCPV4, first: new(tcp("10.96.0.10", nattest.SYN, 1000, nil)),
			packet: tcp("10.96.0.10", nattest.ACK, 1001, payload)},
		"TCP with a PROXY header": {change: [2]string{"name: web,", "name: web, proxyProtocol: v2,"},
			kind: unix.VIRTIO_NET_HDR_GSO_TCPV4, first: new(tcp("10.96.0.10", nattest.SYN, 1000, nil)),
			packet: tcp("10.96.0.10", nattest.ACK, 1001, payload), cut: true},
		"UDP": {change: [2]string{"loadBalancerIPs:",
			"endpoints: [{address: 10.244.1.5, port: 8080}], loadBalancerIPs:"}, kind: unix.VIRTIO_NET_HDR_GSO_UDP_L4,
			packet: nattest.IP{Source: "10.244.2.9", Destination: "10.96.0.10",
				Body: nattest.UDP{SourcePort: 4000, DestinationPort: 80, Payload: payload, Partial: true}}},
		"UDP with a checksum that looks unfinished": {change: [2]string{"loadBalancerIPs:",
			"endpoints: [{address: 10.244.1.5, port: 8080}], loadBalancerIPs:"},
			kind: unix.VIRTIO_NET_HDR_GSO_UDP_L4, own: true, cut: true, packet: nattest.IP{Source: "10.244.2.9",
				Destination: "10.96.0.10",
				Body:        nattest.UDP{SourcePort: 4000, DestinationPort: 80, Payload: payload, Partial: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parse(t, test.change[:]...)
			need.NoError(t, err)
			w, d := newWay(t, c)
			send := func(ip nattest.IP, kind byte, sumAt uint16) virtio {
				b := ip.Bytes()
				buffer := append(make([]byte, headroom), b...)
				h := header(buffer)
				if h[1] = kind; !test.own {
					h[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
				}
				if kind != 0 {
					binary.NativeEndian.PutUint16(h[4:], segment)
				}
				binary.NativeEndian.PutUint16(h[6:], 20)
				binary.NativeEndian.PutUint16(h[8:], sumAt)
				came := bytes.Clone(h)
				d.all = nil
				w.take(buffer, virtioLen+len(b), nat.Time(1))
				return came
			}
			sumAt := uint16(6)
			if test.first != nil {
				sumAt = 16
				send(*test.first, 0, sumAt)
				if len(d.all) != 1 {
					t.Fatalf("%d packets for a SYN", len(d.all))
				}
			}
			h := send(test.packet, test.kind, sumAt)
			if !test.cut {
				if len(d.all) != 1 || !bytes.Equal(d.all[0][:virtioLen], h) {
					t.Fatalf("%d packets, the first with header %x, want one with %x", len(d.all),
						d.all[0][:virtioLen], h)
				}
				v, err := nattest.CheckPartial(d.all[0][virtioLen:])
				if err != nil || !bytes.Equal(v.Payload, payload) || v.Destination.String() == "10.96.0.10" {
					t.Fatalf("%d bytes go to %s: %v", len(v.Payload), v.Destination, err)
				}
				return
			}
			var got []byte
			for i, b := range d.all {
				v, err := nattest.Check(b[virtioLen:])
				if err != nil || !bytes.Equal(b[:virtioLen], make([]byte, virtioLen)) {
					t.Fatalf("segment %d with header %x: %v", i, b[:virtioLen], err)
				}
				if len(v.Payload) > segment || i < len(d.all)-1 && len(v.Payload) < segment {
					t.Errorf("segment %d has %d bytes", i, len(v.Payload))
				}
				got = append(got, v.Payload...)
			}
			want := payloadLen
			if test.first != nil {
				want += packet.ProxyHeaderLen(false)
			}
			if len(got) != want || !bytes.HasSuffix(got, payload) {
				t.Errorf("%d bytes arrive, want %d, the last of them the payload", len(got), want)
			}
		})
	}
}
