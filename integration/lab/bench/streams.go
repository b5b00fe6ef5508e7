package bench

import (
	"context"
	"errors"
	"time"

	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// bulkFigures are what a bulk measurement yields.
type bulkFigures struct {
	bytes   float64 // received by the pods
	seconds float64
	used    resources // from the first moment to the last
}

// measureBulk measures for duration, after the connections have run for warmUp.
func measureBulk(ctx context.Context, e *probe.Ends, up, down int, t *times, take func() (resources, error)) (
	f bulkFigures, err error) {
	b, err := e.StartBulk(up, down)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.Stop()) }()
	if err := step.Sleep(ctx, t.warmUp); err != nil {
		return f, err
	}
	before, err := take()
	if err != nil {
		return f, err
	}
	began, had := time.Now(), b.Received.Load()
	if err := step.Sleep(ctx, t.bulk); err != nil {
		return f, err
	}
	f.seconds, f.bytes = time.Since(began).Seconds(), float64(b.Received.Load()-had)
	after, err := take()
	f.used = after.minus(before)
	return f, err
}
