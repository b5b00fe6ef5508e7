package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// chooseProcs runs Go code on one thread at a time where there are at most two
// CPUs: the gateway's goroutines hand packets to each other all the time, and a
// hand-over on one P costs a queue operation instead of waking a thread. Measured
// on two CPUs: a tenth more throughput, a third less idle latency. With more CPUs
// one P would cap the gateway at one core. GOMAXPROCS in the environment wins.
func chooseProcs() {
	const few = 2
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) <= few {
		runtime.GOMAXPROCS(1)
	}
}

// limitMemory makes Go collect garbage when 7/10 of the memory limit of this process's
// control group are in use, and not only when the heap has doubled. The rest is the
// kernel's: socket buffers above all. GOMEMLIMIT in the environment wins.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit, err := memlimit.FromCgroup(); err == nil {
		debug.SetMemoryLimit(int64(limit / 10 * 7))
	}
}
