package capture

import (
	"context"
	"errors"
	"io"
	"time"
)

// Result is the size of a capture.
type Result struct{ Packets, Lost uint64 }

const (
	// writeInterval is the maximum delay before a packet is written.
	writeInterval = 20 * time.Millisecond
	// writeTurn is how many packets are written in one turn, about 0.2 ms. writePause is between
	// two turns, because forwarding has priority.
	writeTurn  = 200
	writePause = 200 * time.Microsecond
)

// Write writes recorded packets to w, until ctx is done or count packets are written (0 = no
// limit), and then how many packets each interface has lost. It calls sent when w has all of a
// turn.
func (s *Session) Write(ctx context.Context, w io.Writer, count uint64, sent func() error) (r Result, err error) {
	file, index, err := s.begin(w)
	if err != nil {
		return r, err
	}
	tick := time.NewTicker(writeInterval)
	defer tick.Stop()
	var received [NumStages]uint64
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true // except for packets already recorded
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
			if err := file.packet(index[x.stage], x.at, full.data[from:x.end], x.length, x.outbound,
				x.note); err != nil {
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
			writeStatistics(file, index, received, lost)
		}
		if err := file.flush(); err != nil {
			return r, err
		}
		if err := sent(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// begin writes the section and an interface for each recorded stage.
func (s *Session) begin(w io.Writer) (file *pcapngWriter, index [NumStages]int, err error) {
	file = newPcapngWriter(w, "culvert")
	n := 0
	for stage := range NumStages {
		index[stage] = -1
		if s.stages[stage] {
			file.addInterface(stage.String(), stageTexts[stage], s.snaplen)
			index[stage] = n
			n++
		}
	}
	if n == 0 {
		return nil, index, errors.New("capture: no stage")
	}
	return file, index, file.flush()
}

func writeStatistics(file *pcapngWriter, index [NumStages]int, received, lost [NumStages]uint64) {
	for stage, i := range index {
		if i >= 0 {
			file.statistics(i, time.Now(), received[stage]+lost[stage], lost[stage])
		}
	}
}
