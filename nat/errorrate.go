package nat

import "time"

// The rate limits of errors that we originate (RFC 4443, Section 2.4 (f); RFC 1812, Section
// 4.3.2.8).
const (
	// In each errorWindow, errorsMost go out. A link may not send more of them than are still left.
	errorsMost  = 200
	errorWindow = 200 * time.Millisecond
	// Each host, as defined by hostOf, gets at most errorRateEach a second, with bursts of
	// errorBurstEach.
	errorRateEach, errorBurstEach = 20, 20
	// errorDestinations is more than the number of hosts that can be sent errors before a bucket is
	// full again.
	errorDestinations = 4 * errorsMost * int(errorBurstEach*time.Second/errorRateEach/errorWindow)
)

// A limiter counts errors per time window, and has a token bucket for each destination.
type limiter struct {
	window Time // when the next window begins
	sent   int
	links  map[Link]int
	each   map[[16]byte]bucket

	refused uint64
}

// A bucket represents its tokens by the time at which it was, or would have been, empty.
type bucket struct{ empty Time }

func (l *limiter) init() {
	l.window = Time(-1 << 62)
	l.links, l.each = map[Link]int{}, map[[16]byte]bucket{}
}

// take takes a token if there is one.
func (b *bucket) take(now Time, rate, burst int64) bool {
	token := Time(int64(time.Second) / rate)
	empty := max(b.empty, now-Time(burst)*token)
	if empty+token > now {
		return false
	}
	b.empty = empty + token
	return true
}

// allow reports whether an error may be sent through link to host now.
func (l *limiter) allow(link Link, host [16]byte, now Time) bool {
	if now >= l.window {
		l.window, l.sent = now.Add(errorWindow), 0
		clear(l.links)
	}
	b, ok := l.each[host]
	if !ok {
		b.empty = Time(-1 << 62) // full
	}
	if l.links[link]+l.sent >= errorsMost || !b.take(now, errorRateEach, errorBurstEach) {
		l.refused++
		return false
	}
	if !ok && len(l.each) >= errorDestinations {
		l.purge(now)
	}
	l.each[host] = b
	l.links[link]++
	l.sent++
	return true
}

// purge forgets the buckets that are full again.
func (l *limiter) purge(now Time) {
	for key, b := range l.each {
		if b.empty+Time(errorBurstEach*time.Second/errorRateEach) <= now {
			delete(l.each, key)
		}
	}
}
