package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"culvert/gateway"
)

// setLimits gives Go's runtime its part of the machine, and returns what the gateway has.
func setLimits() gateway.Budget {
	chooseProcs()
	chooseCollection()
	budget := gateway.ReadBudget()
	if budget.Heap > 0 {
		debug.SetMemoryLimit(budget.Heap)
	}
	return budget
}

// chooseProcs runs Go code on one thread at a time where there are at most two
// CPUs: the gateway's goroutines hand packets to each other all the time, and a
// hand-over on one P costs a queue operation instead of waking a thread. Measured
// on two CPUs: a tenth more throughput, a third less idle latency. With more CPUs
// one P would cap the gateway at one core. A node that serves Services by a device moves
// all packets in one goroutine: with another P it had a fifth less throughput, and a third
// fewer connections a second. GOMAXPROCS in the environment wins.
func chooseProcs() {
	const few = 2
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) <= few {
		runtime.GOMAXPROCS(1)
	}
}

// chooseCollection lets the heap grow by half of what is in use, not by all of it, before
// Go collects. Packets of known connections allocate nothing, so that collections are
// rare: one every few seconds while twenty pods change a second. GOGC in the environment
// wins.
func chooseCollection() {
	const growth = 50 // percent
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(growth)
	}
}
