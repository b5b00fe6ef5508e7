package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// healthyCauses are the findings that a gateway logs in normal operation.
var healthyCauses = map[string]bool{"handshake-made": true, "node-heard": true}

var CauseOf = regexp.MustCompile(` cause=([\w-]+)`)

// sandboxFaults are possible in gVisor on any machine that is not idle: it counts the time in which
// the sandbox waits for a processor as CPU time of the process (the ticks of a task's CPU clock in
// pkg/sentry/kernel/task_sched.go).
var sandboxFaults = []string{"cpu-procs", "cpu-machine", "cpu-restored"}

// logCheck requires that the logs of both gateways name no fault except those made by earlier
// checks.
func (l *Lab) logCheck(made ...string) Check {
	if l.Options.Sandbox.Runsc != "" {
		made = append(made[:len(made):len(made)], sandboxFaults...)
	}
	return Check{"logs", "both gateways", func(context.Context) (string, error) {
		lines := 0
		var faults []string
		for _, p := range l.Gateways() {
			text, err := ReadLines(p.Log)
			if err != nil {
				return "", err
			}
			for line := range strings.Lines(text) {
				lines++
				m := CauseOf.FindStringSubmatch(line)
				expected := m == nil || healthyCauses[m[1]]
				for _, cause := range made {
					expected = expected || m[1] == cause
				}
				if !expected {
					faults = append(faults, p.Host.Name+": "+strings.TrimSpace(line))
				}
			}
		}
		if len(faults) > 0 {
			return "", fmt.Errorf("the logs name faults:\n%s", strings.Join(faults, "\n"))
		}
		return fmt.Sprintf("no fault in %d lines", lines), nil
	}}
}

// ReadLines returns the lines of a file to which another process may be writing. The kernel stores
// a write page by page, so a reader may find half a line; that is left out until it is complete.
func ReadLines(file string) (string, error) {
	text, err := os.ReadFile(file)
	return string(text[:bytes.LastIndexByte(text, '\n')+1]), err
}
