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
	// A TCP connection has two sockets and, while bytes pass, a pipe for each direction: six descriptors. A UDP one has a socket. With an eighth of
	// the descriptors for each protocol, an eighth remains for everything else.
	descriptorsEach = 8
	sourceBits6     = 64 // bits of an IPv6 address that identify a source
)

// A connLimiter limits the number of TCP connections, and of UDP streams. A source may have no more than are free: alone it gets half of all, and
// whoever comes later finds room.
type connLimiter struct {
	max int

	mu sync.Mutex
	// +checklocks:mu
	total int
	// +checklocks:mu
	sources map[netip.Prefix]int
}

// room returns how many connections of a protocol this process has descriptors for.
func room() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return minConnections
	}
	return int(min(max(limit.Cur/descriptorsEach, minConnections), maxConnections))
}

func newConnLimiter(n int) *connLimiter { return &connLimiter{max: n, sources: map[netip.Prefix]int{}} }

func sourceOf(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = sourceBits6
	}
	p, _ := a.Prefix(bits) // fails only for more bits than there are
	return p
}

// take counts a connection from a, or says why there is no room.
func (c *connLimiter) take(a netip.Addr) nat.Reason {
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

// give undoes take.
func (c *connLimiter) give(a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	source := sourceOf(a)
	c.total--
	if c.sources[source]--; c.sources[source] == 0 {
		delete(c.sources, source)
	}
}

func (c *connLimiter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}
