package inspect

import (
	"testing"
	"time"

	"culvert/gateway/health"
)

// TestDropRateOfYounger: packets that were counted before the sample that they are compared with
// have no rate.
func TestDropRateOfYounger(t *testing.T) {
	key := dropKey{"inbound", "no-route"}
	r := dropRates{newer: dropSample{time.Second, map[dropKey]uint64{key: 6}}}
	if _, inbound := r.of(map[dropKey]uint64{key: 5}, time.Second, health.ByFile); len(inbound) != 1 ||
		inbound[0].Rate != 0 {
		t.Errorf("%+v", inbound)
	}
}

// TestDropRates: a rate covers the last 10 to 20 s, whatever happened before.
func TestDropRates(t *testing.T) {
	var r dropRates
	key := dropKey{"inbound", "no-route"}
	total := uint64(0)
	drops := func() map[dropKey]uint64 { return map[dropKey]uint64{key: total} }
	for second := range 60 {
		now := time.Duration(second) * time.Second
		if second < 30 {
			total += 100
		}
		r.note(now, drops)
		outbound, inbound := r.of(drops(), now, health.ByFile)
		if len(outbound) != 0 || len(inbound) != 1 || inbound[0].Packets != total {
			t.Fatalf("after %v: %v, %v", now, outbound, inbound)
		}
		switch rate := inbound[0].Rate; {
		case second > 1 && second < 30 && (rate < 90 || rate > 110), second >= 50 && rate != 0:
			t.Errorf("after %v: %.1f per second", now, rate)
		}
	}
}
