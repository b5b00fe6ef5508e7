package sockets

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"culvert/nat"
)

const (
	maxConnections = 4096 // of a protocol
	minConnections = 16
	// A connection of TCP has two sockets and, while bytes pass, a pipe for each way: six descriptors. One of UDP has a socket. So an eighth of
	// what there may be, for each protocol, leaves an eighth for all else.
	descriptorsEach = 8
	sourceBits6     = 64 // of an IPv6 address tell sources apart
)

// A crowd bounds how many connections there are at a time: those of TCP, and streams of UDP. A source has no more of them than are free: alone
// it gets half of all, and whoever comes later finds room.
type crowd struct {
	max int

	mu sync.Mutex
	// +checklocks:mu
	total int
	// +checklocks:mu
	sources map[netip.Prefix]int
}

// room returns how many connections of a protocol the descriptors of this process are enough for.
func room() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return minConnections
	}
	return int(min(max(limit.Cur/descriptorsEach, minConnections), maxConnections))
}

func newCrowd(n int) *crowd { return &crowd{max: n, sources: map[netip.Prefix]int{}} }

func sourceOf(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = sourceBits6
	}
	p, _ := a.Prefix(bits) // which fails for more bits than there are
	return p
}

// take counts a connection of a, or says why there is no place for it.
func (c *crowd) take(a netip.Addr) nat.Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	source := sourceOf(a)
	switch free := c.max - c.total; {
	case free <= 0:
		return nat.ReasonTableFull
	case c.sources[source] >= free:
		return nat.ReasonConnectionShare
	}
	c.total++
	c.sources[source]++
	return nat.ReasonNone
}

// give takes back what take has counted.
func (c *crowd) give(a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	source := sourceOf(a)
	c.total--
	if c.sources[source]--; c.sources[source] == 0 {
		delete(c.sources, source)
	}
}

func (c *crowd) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}
