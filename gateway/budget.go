package gateway

import (
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"culvert/geneve/udp"
)

// A Budget divides this process's memory. A part of 0 means that its user's own default applies.
type Budget struct {
	Heap          int64 // target of Go's collector in bytes
	Connections   int   // cap of the connection table unless the configuration sets one
	ReceiveBuffer int   // bytes of each of the three sockets' receive buffers
}

const (
	maxAutoConnections = 1 << 20
	bytesPerConnection = 256 // index included; nat.BenchmarkMemory
)

// ReadBudget divides the memory limit of this process: that of its control group, or else the one
// that GOMEMLIMIT implies.
func ReadBudget() Budget {
	group, err := memlimit.FromCgroup()
	if err != nil {
		group = 0 // no limit, or it cannot be read
	}
	heap := debug.SetMemoryLimit(-1)
	if heap == math.MaxInt64 {
		heap = 0
	}
	return divide(int64(min(group, math.MaxInt64)), heap)
}

// divide returns the Budget for the limits of a control group and of the heap; 0 is none.
//
// Go gets 7/10 of the group's limit, unless GOMEMLIMIT says otherwise. The rest is for the kernel,
// above all for socket buffers. The connection table may use a quarter. A flood fills the receive
// buffers, which control groups of version 2 charge as memory: each buffer gets 1/32, and the
// kernel charges up to twice as much for it.
func divide(group, heap int64) Budget {
	b := Budget{Connections: maxAutoConnections, ReceiveBuffer: udp.DefaultSocketBuffer}
	limit := group
	switch {
	case heap == 0:
		b.Heap = group / 10 * 7
	case group == 0 || heap/7*10 < group:
		limit = heap / 7 * 10
	}
	if limit > 0 {
		b.Connections = int(min(max(limit/4/bytesPerConnection, 1), maxAutoConnections))
		b.ReceiveBuffer = int(min(max(limit/32, minReceiveBuffer), udp.DefaultSocketBuffer))
	}
	return b
}
