package services

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
)

// TestChangeLog: the first change is logged at once. Of ten changes a second for two minutes, there
// is one line a minute, which counts them all.
func TestChangeLog(t *testing.T) {
	log, hook := test.NewNullLogger()
	var c ChangeLog
	now := time.Unix(1e9, 0)
	for range 1201 {
		c.Add(log, 7, now)
		now = now.Add(100 * time.Millisecond)
	}
	var got []string
	for _, e := range hook.AllEntries() {
		got = append(got, fmt.Sprint(e.Data["services"], " ", e.Data["changes"]))
	}
	if want := []string{"7 1", "7 600", "7 600"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
