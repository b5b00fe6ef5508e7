package kube

import (
	"time"

	"golang.org/x/time/rate"
)

// The owner of an object may change it at any rate, and each change may bring a new fault.
const (
	FaultsAtOnce  = 20          // faults of one object that are reported at once
	FaultInterval = time.Minute // between two further ones
)

// FaultLimits limit how many faults are reported, in the log and by Events: FaultsAtOnce for each object and one more in each FaultInterval, so that
// no object hides the faults of another. The keys name objects.
type FaultLimits map[string]*rate.Limiter

// Allow reports whether a new fault of an object may be reported now.
func (f FaultLimits) Allow(of string, now time.Time) bool {
	if f[of] == nil {
		for other, limit := range f {
			if limit.TokensAt(now) == FaultsAtOnce { // as good as a new one
				delete(f, other)
			}
		}
		f[of] = rate.NewLimiter(rate.Every(FaultInterval), FaultsAtOnce)
	}
	return f[of].AllowN(now, 1)
}
