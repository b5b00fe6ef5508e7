package sockets

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"culvert/geneve/share"
	"culvert/nat"
)

const (
	maxConnections = 4096 // of a protocol
	minConnections = 16
	// A TCP connection has two sockets and, while bytes pass, a pipe for each direction: six
	// descriptors. A UDP one has a socket. With an eighth of the descriptors for each protocol, an
	// eighth remains for everything else.
	descriptorsEach = 8
)

// A connLimiter limits the number of TCP connections, and of UDP streams. Sources share what is
// free.
type connLimiter struct {
	mu     sync.Mutex
	shares *share.Pool[netip.Prefix] // +checklocks:mu
}

// room returns the number of connections of one protocol for which this process has descriptors.
func room() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return minConnections
	}
	return int(min(max(limit.Cur/descriptorsEach, minConnections), maxConnections))
}

func newConnLimiter(n int) *connLimiter { return &connLimiter{shares: share.New[netip.Prefix](n)} }

// take counts a connection from a, or says why there is no room.
func (c *connLimiter) take(a netip.Addr) nat.Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	source := share.Source(a)
	switch {
	case c.shares.Free() <= 0:
		return nat.ReasonTableFull
	case !c.shares.OfFree(source):
		return nat.ReasonConnectionShare
	}
	c.shares.Take(1, source)
	return nat.ReasonNone
}

// size returns the maximum number of connections.
func (c *connLimiter) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shares.Size()
}

// give undoes take.
func (c *connLimiter) give(a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shares.Give(1, share.Source(a))
}

func (c *connLimiter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shares.Used()
}
