package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"
)

// TestReport: the diagram and the capture of a failure have every datagram that is known.
func TestReport(t *testing.T) {
	w := play(t, schedule{15, 1}).world
	var diagram strings.Builder
	var file bytes.Buffer
	w.diagram(&diagram, ringSize)
	if err := w.capture(&file); err != nil {
		t.Fatal(err)
	}
	reader, err := pcapgo.NewNgReader(&file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	lines := make(map[string]bool)
	for line := range strings.Lines(diagram.String()) {
		lines[strings.TrimSpace(line)] = true
	}
	datagrams := 0
	for _, x := range w.records() {
		if x.leg == nil {
			continue
		}
		datagrams++
		data, info, err := reader.ReadPacketData()
		if err != nil || !info.Timestamp.Equal(w.start.Add(x.at)) || !bytes.HasSuffix(data, x.data[nodeHeader:]) {
			t.Fatalf("datagram %d at %v: %d bytes at %v in the capture, %v", datagrams, x.at, len(data),
				info.Timestamp.Sub(w.start), err)
		}
		if line := fmt.Sprintf("%s->>%s: %v %s", x.leg.name[0], x.leg.name[1], x.at, x.String()); !lines[line] {
			t.Fatalf("the diagram misses %s", line)
		}
	}
	if _, _, err := reader.ReadPacketData(); !errors.Is(err, io.EOF) || datagrams < 1000 {
		t.Errorf("%d datagrams, then %v", datagrams, err)
	}
}
