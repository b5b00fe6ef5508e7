package need

import (
	"testing"
	"time"
)

// NoError ends the test if err is not nil.
func NoError(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Eventually calls check until it returns nil, and ends the test if that takes longer than limit.
func Eventually(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for deadline := time.Now().Add(limit); ; <-pause.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
	}
}
