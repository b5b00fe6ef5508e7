package deploy

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// awaitPause is the time between two looks.
const awaitPause = 500 * time.Millisecond

// errInterrupted is the message for a user who has interrupted a change.
var errInterrupted = errors.New("interrupted; the same command goes on")

// stuckTime is how long a pod may be unable to start. A registry may be away for a moment.
const stuckTime = 20 * time.Second

// Await calls look until nothing is missing. It calls say whenever what is missing changes. An
// error of look counts as missing, because an API server may be away for a moment; a StuckError
// ends the wait if it lasts. When ctx ends, Await returns an error that says what was missing last.
func Await(ctx context.Context, say func(missing string), look func(context.Context) (missing string,
	err error)) error {
	last := ""
	var stuck time.Time // since when
	for {
		missing, err := look(ctx)
		switch now := time.Now(); {
		case !errors.As(err, new(*StuckError)):
			stuck = time.Time{}
		case stuck.IsZero():
			stuck = now
		case now.Sub(stuck) >= stuckTime:
			return fmt.Errorf("%w; correct it, for example by another --image, and run the same command again", err)
		}
		if err == nil && missing == "" {
			return nil
		}
		if ctx.Err() == nil || last == "" {
			if err != nil {
				missing = err.Error()
			}
			if missing != last {
				last = missing
				say(missing)
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return errInterrupted
			}
			return fmt.Errorf("still missing: %s", last)
		case <-time.After(awaitPause):
		}
	}
}
