package nat_test

import (
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// TestSCTPBroken: an SCTP packet that arrives damaged leaves damaged, also if the client's port
// changes.
func TestSCTPBroken(t *testing.T) {
	e := engine(t)
	send := func(from string, chunks []byte, spoil bool) (uint16, error) {
		b := nattest.IP{Source: from, Destination: "10.71.3.9", Body: nattest.SCTP{SourcePort: 2000,
			DestinationPort: 9899, Tag: 7, Chunks: chunks}}.Bytes()
		if spoil {
			b[len(b)-1] ^= 4
		}
		var p packet.Packet
		p.Parse(b)
		if v := e.Process(&p, node1, start); v.Action != nat.Forward {
			t.Fatal(v.Reason)
		}
		got, err := nattest.Check(p.Bytes())
		return got.SourcePort, err
	}
	init := []byte{1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 5}
	data := append([]byte{0, 3, 0, 24, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0}, nattest.Payload(8, 1)...)
	for _, from := range []string{"203.0.113.7", "203.0.113.8"} {
		port, err := send(from, init, false)
		if err != nil {
			t.Error(err)
		}
		if from == "203.0.113.8" && port == 2000 {
			t.Fatal("both have one port")
		}
		for _, chunks := range [][]byte{init, data} {
			if _, err := send(from, chunks, false); err != nil {
				t.Errorf("%s: %v", from, err)
			}
			if _, err := send(from, chunks, true); err == nil {
				t.Errorf("%s: what has arrived broken leaves sound", from)
			}
		}
	}
}
