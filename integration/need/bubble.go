package need

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// bubbles counts the running bubbles, and holds the number of Ps before them.
var bubbles struct {
	sync.Mutex
	running, procs int
}

// Bubble is synctest.Test. Under the race detector it uses one P: all timers of a bubble share one
// context there (runtime.timers.raceCtx), which is corrupted when two Ps fire timers at once, so
// that the process crashes or hangs.
func Bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	if raceDetector {
		bubbles.Lock()
		if bubbles.running++; bubbles.running == 1 {
			bubbles.procs = runtime.GOMAXPROCS(1)
		}
		bubbles.Unlock()
		defer func() {
			bubbles.Lock()
			defer bubbles.Unlock()
			if bubbles.running--; bubbles.running == 0 {
				runtime.GOMAXPROCS(bubbles.procs)
			}
		}()
	}
	synctest.Test(t, test)
}
