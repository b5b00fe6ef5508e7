package nat

import (
	"hash/maphash"
	"net/netip"
	"time"
)

// The rate limits of errors that we originate (RFC 4443, Section 2.4 (f); RFC 1812, Section 4.3.2.8), per second and at once.
const (
	errorRate, errorBurst         = 1000, 200
	errorRateEach, errorBurstEach = 20, 20 // towards one destination
	errorSlots                    = 512
)

// A limiter is a token bucket for all errors and one for each destination. Two destinations may share a bucket.
type limiter struct {
	seed  maphash.Seed
	total bucket
	each  [errorSlots]bucket
}

// A bucket holds its tokens as the time at which it was, or would have been, empty.
type bucket struct{ empty Time }

func (l *limiter) init() {
	l.seed = maphash.MakeSeed()
	start := Time(-1 << 62) // full
	l.total.empty = start
	for i := range l.each {
		l.each[i].empty = start
	}
}

// take takes a token, if there is one.
func (b *bucket) take(now Time, rate, burst int64) bool {
	token := Time(int64(time.Second) / rate)
	empty := max(b.empty, now-Time(burst)*token)
	if empty+token > now {
		return false
	}
	b.empty = empty + token
	return true
}

// allow reports whether an error may be sent to destination now.
func (l *limiter) allow(destination netip.Addr, now Time) bool {
	key := destination.As16()
	each := &l.each[maphash.Bytes(l.seed, key[:])%errorSlots]
	return each.take(now, errorRateEach, errorBurstEach) && l.total.take(now, errorRate, errorBurst)
}
