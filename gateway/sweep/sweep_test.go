package sweep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"culvert/integration/need"
)

// A table that is never completely swept, as during a series of reloads, delays neither the duties
// of each second nor packets.
func TestSweepBesideDuties(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sweeps, duties := 0, 0
		go Beside(ctx, func() bool { sweeps++; return false }, func() { duties++ })
		time.Sleep(60*time.Second + Pause/2)
		synctest.Wait()
		if duties != 60 {
			t.Errorf("duties were done %d times in 60 s", duties)
		}
		if rounds := int(60 * time.Second / Pause); sweeps < rounds-100 || sweeps > rounds+100 {
			t.Errorf("%d sweeps in 60 s, want one each %v", sweeps, Pause)
		}
		cancel()
		synctest.Wait()
	})
}

// A clean table is swept once a second.
func TestSweepRests(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sweeps := 0
		go Beside(ctx, func() bool { sweeps++; return true }, func() {})
		time.Sleep(60*time.Second + Pause/2)
		synctest.Wait()
		if sweeps != 61 {
			t.Errorf("%d sweeps in 60 s", sweeps)
		}
		cancel()
		synctest.Wait()
	})
}
