package packet_test

import (
	"bytes"
	"testing"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// TCP options are read as far as they are whole, and the MSS is lowered wherever it stands.
func TestSegment(t *testing.T) {
	tests := []struct {
		name    string
		options []byte
		mss     uint16
		shift   uint8
		scaled  bool
		clamped []byte // to 1300
	}{
		{"none", nil, 0, 0, false, nil},
		{"both", []byte{2, 4, 5, 180, 1, 3, 3, 7}, 1460, 7, true, []byte{2, 4, 5, 20, 1, 3, 3, 7}},
		{"below the bound", []byte{2, 4, 4, 176}, 1200, 0, false, []byte{2, 4, 4, 176}},
		{"odd offset", []byte{1, 2, 4, 5, 180, 1, 1, 1}, 1460, 0, false, []byte{1, 2, 4, 5, 20, 1, 1, 1}},
		{"behind others", []byte{3, 3, 20, 4, 2, 2, 4, 5, 180, 0, 9, 9}, 1460, 14, true, []byte{3, 3, 20, 4, 2, 2, 4, 5,
			20, 0, 9, 9}},
		{"behind the end", []byte{0, 2, 4, 5, 180, 3, 3, 7}, 0, 0, false, []byte{0, 2, 4, 5, 180, 3, 3, 7}},
		{"behind a broken one", []byte{9, 1, 2, 4, 5, 180, 1, 1}, 0, 0, false, []byte{9, 1, 2, 4, 5, 180, 1, 1}},
		{"cut off", []byte{1, 1, 2, 4}, 0, 0, false, []byte{1, 1, 2, 4}},
		{"kind without a length", []byte{1, 1, 1, 2}, 0, 0, false, []byte{1, 1, 1, 2}},
		{"of another length", []byte{2, 3, 9, 1, 3, 4, 9, 9}, 0, 0, false, []byte{2, 3, 9, 1, 3, 4, 9, 9}},
	}
	for _, test := range tests {
		for _, partial := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				body := nattest.TCP{Seq: 100, Ack: 200, Flags: nattest.SYN | nattest.FIN, Window: 77,
					Options: test.options, Payload: make([]byte, 10), Partial: partial}
				p := parse(t, endpoints(false, nattest.IP{Body: body}).Bytes())
				var s packet.Segment
				p.Segment(&s)
				want := packet.Segment{Seq: 100, Ack: 200, Length: 12, Window: 77, Flags: packet.SYN | packet.FIN,
					MSS: test.mss, Shift: test.shift, Scaled: test.scaled}
				if s != want {
					t.Errorf("%+v, want %+v", s, want)
				}
				p.ClampMSS(1300)
				v, err := nattest.Check(cut(p, 0, 0)[0])
				if err != nil || !bytes.Equal(v.Options, test.clamped) {
					t.Errorf("clamped to %x, want %x: %v", v.Options, test.clamped, err)
				}
			})
		}
	}
}

func TestChunk(t *testing.T) {
	for _, test := range []struct {
		name   string
		chunks []byte
		want   packet.Chunk
	}{
		{"INIT", []byte{1, 0, 0, 20, 0, 0, 0, 9}, packet.Chunk{Tag: 7, Type: packet.ChunkInit, Initiates: true,
			InitiateTag: 9}},
		{"INIT ACK", []byte{2, 0, 0, 20, 0, 0, 1, 0}, packet.Chunk{Tag: 7, Type: packet.ChunkInitAck, Initiates: true,
			InitiateTag: 256}},
		{"INIT without a tag", []byte{1, 0, 0, 20, 0, 0, 0}, packet.Chunk{Tag: 7, Type: packet.ChunkInit}},
		{"ABORT, T bit", []byte{6, 1, 0, 4}, packet.Chunk{Tag: 7, Type: packet.ChunkAbort, Flags: 1}},
		{"half a chunk", []byte{6, 1, 0}, packet.Chunk{Tag: 7}},
		{"none", nil, packet.Chunk{Tag: 7}},
	} {
		p := parse(t, endpoints(true, nattest.IP{Body: nattest.SCTP{Tag: 7, Chunks: test.chunks}}).Bytes())
		if got := p.Chunk(); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}
