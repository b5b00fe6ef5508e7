package gateway

import (
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"culvert/geneve/udp"
)

// A Budget is how much memory this process gives to what. Each part of it that is 0 is
// left to the default of whoever asks.
type Budget struct {
	Heap          int64 // aim of Go's collector in bytes
	Connections   int   // cap of the connection table where the configuration gives none
	ReceiveBuffer int   // bytes of each of the three sockets' receive buffers
}

const (
	maxAutoConnections = 1 << 20
	bytesPerConnection = 256 // index included; nat.BenchmarkMemory
)

// ReadBudget divides the memory limit of this process: that of its control group or,
// where there is none or none to see, what GOMEMLIMIT implies.
func ReadBudget() Budget {
	group, err := memlimit.FromCgroup()
	if err != nil {
		group = 0 // no limit, or no way to know one
	}
	heap := debug.SetMemoryLimit(-1)
	if heap == math.MaxInt64 {
		heap = 0
	}
	return divide(int64(min(group, math.MaxInt64)), heap)
}

// divide makes the Budget of a control group with a limit and of a heap with one; 0 is
// none.
//
// Go gets 7/10 of the group's limit, unless GOMEMLIMIT has given it another share. The
// rest is the kernel's: socket buffers above all. The connection table may hold what
// fits a quarter. A flood fills the receive buffers, and control groups of version 2
// count them: each has a 32nd, for which the kernel books up to twice as much.
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
