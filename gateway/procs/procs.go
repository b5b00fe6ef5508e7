// Package procs owns the number of Ps of this process: how many threads run Go code at once
// (GOMAXPROCS).
//
// One P is the default on any machine. The goroutines of a gateway hand packets to each other all
// the time. On one P that costs a queue operation; on several it wakes a thread, and the packet
// moves from one CPU's cache to another's. A gateway that needs more gets more by its
// configuration, even while packets pass.
package procs

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// An owner decides how many Ps there are.
type owner struct {
	procs atomic.Int32 // argument of the last Use, at least 1; 0 = Use was not called yet

	mu      sync.Mutex
	waiting int // calls of Apart in progress
}

var own owner

// Fixed returns GOMAXPROCS of the environment, "" for none. It overrides Use.
func Fixed() string { return os.Getenv("GOMAXPROCS") }

// Use makes Go code run on n Ps, or on one if n is 0. If the environment fixes the number, it
// stays.
func Use(n int) {
	if Fixed() != "" {
		n = runtime.GOMAXPROCS(0)
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	own.procs.Store(int32(max(n, 1)))
	own.set()
}

// Chosen returns the number that the last Use has set, 1 before that. It is cheap enough for the
// packet path.
func Chosen() int { return max(int(own.procs.Load()), 1) }

// Count returns the number of Ps on which Go code runs, not counting those that Apart adds.
func Count() int {
	if n := own.procs.Load(); n > 0 {
		return int(n)
	}
	return runtime.GOMAXPROCS(0)
}

// Apart calls do, which waits for a disk, while Go code has at least two Ps: a long system call
// keeps its P for a while, and packets would wait as long. Calls may overlap. Before the first Use,
// it only calls do.
func Apart(do func() error) error {
	own.apart(1)
	defer own.apart(-1)
	return do()
}

func (o *owner) apart(calls int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting += calls
	o.set()
}

// set applies the number of Ps. Each change stops all goroutines for some microseconds.
func (o *owner) set() {
	n := int(o.procs.Load())
	if n > 0 && o.waiting > 0 {
		n = max(n, 2)
	}
	if n > 0 && runtime.GOMAXPROCS(0) != n {
		runtime.GOMAXPROCS(n)
	}
}

// Used returns the CPU time that this process has used, in user mode and in the kernel.
func Used() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0 // it cannot fail for the process itself
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
