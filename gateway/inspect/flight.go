package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/trace"
	"sync/atomic"
	"time"

	"culvert/gateway/latency"
)

const (
	// flightTime is how far back the flight recorder reaches, if flightBytes suffice.
	flightTime = 5 * time.Second
	// flightBytes is how many bytes it keeps, besides the current second.
	flightBytes = 4 << 20
)

// flightRecorded is how many bytes the process's flight recorder may keep; 0 while nobody waits for a trace.
var flightRecorded atomic.Uint64

var errFlights = errors.New("somebody else waits for a slow batch already; end that first")

// Flight implements control.Source. The flight recorder costs time, so it runs only while somebody waits. It sees the
// batches that are sampled for the histograms.
func (src *Source) Flight(ctx context.Context, over time.Duration, w io.Writer, begun func() error) (took time.Duration, err error) {
	if !flightRecorded.CompareAndSwap(0, flightBytes) {
		return 0, errFlights
	}
	defer flightRecorded.Store(0)
	recorder := trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: flightTime, MaxBytes: flightBytes})
	if err := recorder.Start(); err != nil {
		return 0, fmt.Errorf("flight recorder: %w", err)
	}
	defer recorder.Stop()
	slow, stop, ok := latency.AwaitSlow(over) // a slow batch leaves a mark, which must be recorded
	if !ok {
		return 0, errFlights
	}
	defer stop()
	if err := begun(); err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case took = <-slow:
	}
	_, err = recorder.WriteTo(w)
	return took, err
}
