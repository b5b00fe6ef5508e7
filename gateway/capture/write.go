package capture

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Result says how much a capture has.
type Result struct{ Packets, Lost uint64 }

const (
	// writeInterval is how long a packet waits at most to be written.
	writeInterval = 20 * time.Millisecond
	// writeTurn is how many packets are written in one turn, some 0.2 ms. writePause lies
	// between two: packets on their way go first.
	writeTurn  = 200
	writePause = 200 * time.Microsecond
)

// Write writes what is recorded to w, until ctx is done or count packets are written (0 =
// no limit), and then how many packets each interface has lost. sent is called when w has
// all of a turn.
func (s *Session) Write(ctx context.Context, w io.Writer, count uint64, sent func() error) (r Result, err error) {
	ng, index, err := s.begin(w)
	if err != nil {
		return r, err
	}
	tick := time.NewTicker(writeInterval)
	defer tick.Stop()
	var received [NumStages]uint64
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true // but for what is recorded
		case <-tick.C:
		case <-s.half:
		}
		full, lost := s.swap()
		r.Lost = 0
		for _, n := range lost {
			r.Lost += n
		}
		from := 0
		for i := range full.records {
			if count > 0 && r.Packets == count {
				done = true
				break
			}
			x := &full.records[i]
			if err := ng.WritePacketWithOptions(x.packet(full.data[from:x.end], index[x.stage])); err != nil {
				return r, err
			}
			from = x.end
			r.Packets++
			received[x.stage]++
			if r.Packets%writeTurn == 0 {
				time.Sleep(writePause)
			}
		}
		if done {
			if err := writeStatistics(ng, index, received, lost); err != nil {
				return r, err
			}
		}
		if err := ng.Flush(); err != nil {
			return r, err
		}
		if err := sent(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// begin writes the section and an interface for each stage that is recorded.
func (s *Session) begin(w io.Writer) (ng *pcapgo.NgWriter, index [NumStages]int, err error) {
	options := pcapgo.DefaultNgWriterOptions
	options.SectionInfo.Application = "culvert"
	for stage := range NumStages {
		index[stage] = -1
		if !s.stages[stage] {
			continue
		}
		i := pcapgo.NgInterface{Name: stage.String(), Description: stageTexts[stage], LinkType: layers.LinkTypeRaw, SnapLength: uint32(s.snaplen)}
		if ng == nil {
			if ng, err = pcapgo.NewNgWriterInterface(w, i, options); err != nil {
				return nil, index, err
			}
			index[stage] = 0
		} else if index[stage], err = ng.AddInterface(i); err != nil {
			return nil, index, err
		}
	}
	if ng == nil {
		return nil, index, fmt.Errorf("capture: no stage")
	}
	return ng, index, ng.Flush()
}

// packet returns what pcapgo is to write.
func (x *record) packet(data []byte, index int) (gopacket.CaptureInfo, []byte, pcapgo.NgPacketOptions) {
	flags := pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}
	if x.outbound {
		flags.Direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	o := pcapgo.NgPacketOptions{Flags: &flags}
	if x.note != "" {
		o.Comments = []string{x.note}
	}
	return gopacket.CaptureInfo{Timestamp: x.at, CaptureLength: len(data), Length: x.length, InterfaceIndex: index}, data, o
}

func writeStatistics(ng *pcapgo.NgWriter, index [NumStages]int, received, lost [NumStages]uint64) error {
	for stage, i := range index {
		if i < 0 {
			continue
		}
		if err := ng.WriteInterfaceStats(i, pcapgo.NgInterfaceStatistics{
			LastUpdate: time.Now(), PacketsReceived: received[stage] + lost[stage], PacketsDropped: lost[stage],
		}); err != nil {
			return err
		}
	}
	return nil
}
