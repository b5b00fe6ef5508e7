package capture

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"culvert/integration/need"
)

// A written is a packet in a file.
type written struct {
	stage, comment string
	data           []byte
	length         int
	outbound       bool
}

// read returns the packets of a file, and the losses that its interfaces report.
func read(t *testing.T, file []byte) (all []written, lost map[string]uint64) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	need.NoError(t, err)
	for {
		data, ci, options, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		need.NoError(t, err)
		i, err := r.Interface(ci.InterfaceIndex)
		if err != nil || i.LinkType != layers.LinkTypeRaw {
			t.Fatalf("interface %+v, %v", i, err)
		}
		w := written{stage: i.Name, data: data, length: ci.Length}
		if options.Flags != nil {
			w.outbound = options.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound
		}
		if len(options.Comments) > 0 {
			w.comment = options.Comments[0]
		}
		all = append(all, w)
	}
	lost = make(map[string]uint64)
	for n := range r.NInterfaces() {
		i, err := r.Interface(n)
		need.NoError(t, err)
		lost[i.Name] = i.Statistics.PacketsDropped
	}
	return all, lost
}

// finish ends a session and returns its file.
func finish(t *testing.T, s *Session, count uint64) (file []byte, r Result) {
	t.Helper()
	var b bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := s.Write(ctx, &b, count, func() error { return nil })
	need.NoError(t, err)
	return b.Bytes(), r
}

// TestFile: each packet is written to the interface of its stage, cut to what is kept, with
// its comment and direction, in the order of recording.
func TestFile(t *testing.T) {
	s := NewSession([]Stage{WireGuard, Pre}, false, 10)
	s.Add(Pre, true, "forward", 40, bytes.Repeat([]byte{1}, 10))
	s.Add(WireGuard, false, "", 36, bytes.Repeat([]byte{2}, 8), bytes.Repeat([]byte{3}, 28))
	s.Add(Pre, false, "drop: no-route", 7, bytes.Repeat([]byte{4}, 7))
	file, r := finish(t, s, 0)
	all, lost := read(t, file)
	want := []written{
		{"pre", "forward", bytes.Repeat([]byte{1}, 10), 40, true},
		{"wireguard", "", append(bytes.Repeat([]byte{2}, 8), 3, 3), 36, false},
		{"pre", "drop: no-route", bytes.Repeat([]byte{4}, 7), 7, false},
	}
	if len(all) != len(want) || r != (Result{Packets: 3}) || len(lost) != 2 || lost["pre"]+lost["wireguard"] != 0 {
		t.Fatalf("%+v, %+v, %v", all, r, lost)
	}
	for i := range want {
		if w, g := want[i], all[i]; w.stage != g.stage || w.comment != g.comment || !bytes.Equal(w.data, g.data) ||
			w.length != g.length || w.outbound != g.outbound {
			t.Errorf("packet %d: %+v, want %+v", i, g, w)
		}
	}
}

// TestWants: a session takes the stages that were asked for; with drops only, just the dropped
// packets.
func TestWants(t *testing.T) {
	for _, tt := range []struct {
		stages []Stage
		drops  bool
		stage  Stage
		drop   bool
		want   bool
	}{
		{nil, false, Geneve, false, true}, {nil, false, WireGuard, true, true}, {nil, true, Pre, false, false},
		{nil, true, Pre, true, true},
		{[]Stage{Pre}, false, Post, false, false}, {[]Stage{Pre}, true, Geneve, true, false},
		{[]Stage{Pre, Post}, false, Post, false, true},
	} {
		if got := NewSession(tt.stages, tt.drops, 0).Wants(tt.stage, tt.drop); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// TestLoss: packets that do not fit are lost and counted at their stage; memory does not grow.
func TestLoss(t *testing.T) {
	packet := make([]byte, 60_000)
	s := NewSession(nil, false, 0)
	for range blockBytes/len(packet) + 5 {
		s.Add(Pre, true, "", len(packet), packet)
	}
	for range blockRecords {
		s.Add(Post, true, "", 1, packet[:1])
	}
	if cap(s.filling.data) != blockBytes || cap(s.filling.records) != blockRecords {
		t.Fatalf("a block has grown to %d bytes, %d records", cap(s.filling.data), cap(s.filling.records))
	}
	file, r := finish(t, s, 0)
	all, lost := read(t, file)
	if uint64(len(all)) != r.Packets || r.Lost != lost["pre"]+lost["post"] || lost["pre"] != 5 || lost["post"] == 0 ||
		r.Packets+r.Lost != uint64(blockBytes/len(packet)+5+blockRecords) {
		t.Errorf("%d packets, %+v, lost %v", len(all), r, lost)
	}
}

// TestCount: a capture of n packets has n.
func TestCount(t *testing.T) {
	s := NewSession(nil, false, 0)
	for range 1000 {
		s.Add(Post, true, "", 3, []byte{1, 2, 3})
	}
	file, r := finish(t, s, 300)
	if all, _ := read(t, file); len(all) != 300 || r.Packets != 300 {
		t.Errorf("%d packets, %+v", len(all), r)
	}
}
