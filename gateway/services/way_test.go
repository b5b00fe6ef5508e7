package services

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.zx2c4.com/wireguard/tun"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// A written is a device that keeps what is written to it.
type written struct {
	tun.Device
	all [][]byte
}

func (d *written) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		d.all = append(d.all, bytes.Clone(b[offset:]))
	}
	return len(bufs), nil
}

// One finished checksum in 65,536 is the sum of its pseudo-header, which is how an unfinished one looks. It leaves as right as it came, and
// so does a segment that a header makes longer.
func TestChecksums(t *testing.T) {
	for _, protocol := range []string{"", "proxyProtocol: v2, "} {
		c, err := parse(t, "name: web,", "name: web, "+protocol)
		if err != nil {
			t.Fatal(err)
		}
		p := c.plan(c.Addresses)
		engine, err := nat.New([16]byte{1}, &p.nat)
		if err != nil {
			t.Fatal(err)
		}
		d := &written{}
		w := &way{engine: engine, device: d}
		send := func(flags uint8, payload []byte) []byte {
			t.Helper()
			ip := nattest.IP{Source: "10.244.2.9", Destination: "10.96.0.10", DF: true,
				Body: nattest.TCP{SourcePort: 4000, DestinationPort: 80, Seq: 1000, Flags: flags, Window: 500, Payload: payload}}
			if flags&nattest.SYN == 0 {
				body := ip.Body.(nattest.TCP)
				body.Seq = 1001
				ip.Body = body
			}
			b := ip.Bytes()
			buffer := append(make([]byte, headroom), b...)
			d.all = nil
			w.take([][]byte{buffer}, []int{len(b)}, nat.Time(1))
			if len(d.all) != 1 {
				t.Fatalf("%d packets", len(d.all))
			}
			v, err := nattest.Check(d.all[0])
			if err != nil {
				t.Fatalf("%v, of %x\n%x", err, b, d.all[0])
			}
			return v.Payload
		}
		send(nattest.SYN, nil)
		looks := func(payload []byte) bool {
			var p packet.Packet
			p.Parse(nattest.IP{Source: "10.244.2.9", Destination: "10.96.0.10", DF: true,
				Body: nattest.TCP{SourcePort: 4000, DestinationPort: 80, Seq: 1001, Flags: nattest.ACK, Window: 500, Payload: payload}}.Bytes())
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
