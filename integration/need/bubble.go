package need

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// bubbles are those that run, and the Ps there were before them.
var bubbles struct {
	sync.Mutex
	running, procs int
}

// Bubble is synctest.Test, under the race detector on one P: all timers of a bubble have one context there (runtime.timers.raceCtx), which two
// Ps that fire timers at once corrupt, so that the process crashes or hangs.
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
