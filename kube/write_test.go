package kube

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"culvert/nat/nattest/cost"
)

// TestEventsWait: while the API server is away, Events wait in their order, and no more than
// maxEvents.
func TestEventsWait(t *testing.T) {
	api, away := fake.NewSimpleDynamicClient(apiruntime.NewScheme()), true
	api.PrependReactor("create", "events", func(kubetesting.Action) (bool, apiruntime.Object, error) {
		if away {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	log := logrus.New()
	log.SetOutput(io.Discard)
	entry := logrus.NewEntry(log)
	x := NewTeller(Reporter{Client: api, Causes: NewCauses(entry)}, entry)
	for n := range 3 * maxEvents {
		x.Say(Event{Message: fmt.Sprint(n)})
	}
	x.Flush(t.Context())
	if wait := x.events; len(wait) != maxEvents-1 || wait[0].Message != "1" || wait[1].Message != "2" {
		t.Errorf("%d Events wait, the first of them %+v", len(wait), wait[0])
	}
	away = false
	x.Flush(t.Context())
	if left, n := len(x.events), len(api.Actions()); left > 0 || n != maxEvents {
		t.Errorf("%d Events wait after the API server is back, %d were written", left, n)
	}
}

// TestFaultLimits: each object has its own limit, and one that has long been quiet takes no room.
func TestFaultLimits(t *testing.T) {
	start := time.Date(2026, 11, 27, 14, 0, 0, 0, time.UTC)
	f, told := FaultLimits{}, 0
	for i := range 100 {
		if f.Allow("TunnelNode a", start.Add(time.Duration(i)*time.Second)) {
			told++
		}
	}
	if told != FaultsAtOnce+1 || !f.Allow("TunnelNode b", start) {
		t.Errorf("%d faults told in 100 s", told)
	}
	f.Allow("TunnelNode c", start.Add(time.Hour))
	if n := len(f.used) + len(f.before); n != 1 {
		t.Errorf("%d objects after an hour", n)
	}
}

// TestFaultLimitsAge: a limit counts for as long as it is not as good as a new one.
func TestFaultLimitsAge(t *testing.T) {
	f, at := FaultLimits{}, time.Date(2026, 11, 27, 14, 0, 0, 0, time.UTC)
	for i := range 3 * FaultsAtOnce {
		if told := f.Allow("a", at); told != (i < FaultsAtOnce) {
			t.Errorf("fault %d at once: %t", i, told)
		}
	}
	for i := range 3 * FaultsAtOnce {
		at = at.Add(FaultInterval)
		if !f.Allow("a", at) || f.Allow("a", at) {
			t.Errorf("minute %d: not one fault", i)
		}
	}
}

// TestManyFaultsAtOnce: new faults of twenty times as many objects cost about twenty times as much.
func TestManyFaultsAtOnce(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := time.Date(2026, 11, 27, 14, 0, 0, 0, time.UTC)
	best := func(n int) time.Duration {
		best := time.Hour
		for range 5 {
			f, began := FaultLimits{}, cost.ThreadTime(t)
			for i := range n {
				f.Allow(fmt.Sprint(i), now)
			}
			best = min(best, cost.ThreadTime(t)-began)
		}
		return best
	}
	if few, many := best(500), best(10000); many > 100*few {
		t.Errorf("%v for 500 objects, %v for 10,000", few, many)
	}
}
