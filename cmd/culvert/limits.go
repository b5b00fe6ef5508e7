package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"culvert/gateway"
	"culvert/gateway/procs"
	"culvert/gateway/state"
)

// setLimits sets the limits of Go's runtime, and returns the gateway's Budget. cpus is the value in
// the configuration.
func setLimits(cpus int) gateway.Budget {
	chooseProcs(cpus)
	chooseCollection()
	budget := gateway.ReadBudget()
	if budget.Heap > 0 {
		debug.SetMemoryLimit(budget.Heap)
	}
	return budget
}

func chooseProcs(cpus int) {
	procs.Use(cpus)
	state.Wait = procs.Apart
}

// checkCPUs refuses more CPUs than this process may use, and adds a warning about a number without
// effect.
func checkCPUs(file string, cpus int, warnings *[]string) error {
	if a := procs.Allowed(); cpus > a.Most() {
		return fmt.Errorf("--config: %s: cpus: %d, and this process may use %s; write at most %d", file,
			cpus, a, a.Most())
	}
	if fixed := procs.Fixed(); fixed != "" && cpus > 1 {
		*warnings = append(*warnings, fmt.Sprintf("cpus: %d has no effect: GOMAXPROCS=%s in the environment wins",
			cpus, fixed))
	}
	return nil
}

// chooseCollection makes Go collect when the heap has grown by half, not when it has doubled.
// Packets of known connections allocate nothing, so collections are rare: one every few seconds
// while twenty pods change a second. GOGC in the environment takes precedence.
func chooseCollection() {
	const growth = 50 // percent
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(growth)
	}
}
