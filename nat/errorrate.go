package nat

import (
	"net/netip"
	"time"
)

// The rate limits of errors that we originate (RFC 4443, Section 2.4 (f); RFC 1812, Section 4.3.2.8).
const (
	// In each errorWindow, errorsMost go out. Of these, a link has at most as many as are left.
	errorsMost  = 200
	errorWindow = 200 * time.Millisecond
	// Towards one address, or one /64 of IPv6, errorRateEach go out in a second, errorBurstEach of them at once.
	errorRateEach, errorBurstEach = 20, 20
	// errorDestinations is more than can have been sent errors since a bucket became full again.
	errorDestinations = 4 * errorsMost * int(errorBurstEach*time.Second/errorRateEach/errorWindow)
)

// A limiter counts the errors of a window of time, and has a token bucket for each destination.
type limiter struct {
	window Time // when the next one begins
	sent   int
	links  map[Link]int
	each   map[[16]byte]bucket

	refused uint64
}

// A bucket holds its tokens as the time at which it was, or would have been, empty.
type bucket struct{ empty Time }

func (l *limiter) init() {
	l.window = Time(-1 << 62)
	l.links, l.each = map[Link]int{}, map[[16]byte]bucket{}
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

// allow reports whether an error may be sent through link to destination now.
func (l *limiter) allow(link Link, destination netip.Addr, now Time) bool {
	if now >= l.window {
		l.window, l.sent = now.Add(errorWindow), 0
		clear(l.links)
	}
	key := holderOf(destination)
	b, ok := l.each[key]
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
	l.each[key] = b
	l.links[link]++
	l.sent++
	return true
}

// holderOf returns what a rate or a share is kept by: an address of IPv4, or the /64 of one of IPv6, in which a host has as many as it likes.
func holderOf(a netip.Addr) [16]byte {
	b := a.As16()
	if a.Is6() {
		clear(b[8:])
	}
	return b
}

// purge forgets the buckets that are full again.
func (l *limiter) purge(now Time) {
	for key, b := range l.each {
		if b.empty+Time(errorBurstEach*time.Second/errorRateEach) <= now {
			delete(l.each, key)
		}
	}
}
