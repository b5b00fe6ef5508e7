package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

// healthyCauses are the findings that a gateway logs in normal operation.
var healthyCauses = map[string]bool{"handshake-made": true, "node-heard": true}

var causeOf = regexp.MustCompile(` cause=([\w-]+)`)

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
				m := causeOf.FindStringSubmatch(line)
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

// logSizes returns how long the logs of both gateways are, by host.
func (l *Lab) logSizes() map[string]int {
	sizes := make(map[string]int)
	for i := range plan.V4 {
		host := plan.V4[i].Name + "/gateway"
		text, _ := ReadLines(l.process(host).Log) // length 0 if it cannot be read
		sizes[host] = len(text)
	}
	return sizes
}

// waitLogged waits until a log has a line about the fault that is not within sizes: at level info
// or above, in the words of the status, with the remedy.
func (l *Lab) waitLogged(ctx context.Context, f *Fault, sizes map[string]int, began time.Time) error {
	return step.Await(ctx, loggedWithin-time.Since(began), statusPace, func() error {
		lines := 0
		for n := f.Named; n != nil; n = n.Or {
			host := n.Cluster + "/gateway"
			text, err := ReadLines(l.process(host).Log)
			if err != nil {
				return err
			}
			for line := range strings.Lines(text[min(sizes[host], len(text)):]) {
				if lines++; n.logs(line) {
					return nil
				}
			}
		}
		return fmt.Errorf("%s: of %d lines, none of the log of %s says: %s", f.Does, lines, f.Named.Cluster,
			f.Named.sentence())
	})
}

var messageOf = regexp.MustCompile(` level=(?:info|warning) msg=("(?:[^"\\]|\\.)*") `)

// logs reports whether a log line is n's, from its beginning to the end of its remedy.
func (n *Named) logs(line string) bool {
	cause, message := causeOf.FindStringSubmatch(line), messageOf.FindStringSubmatch(line)
	if cause == nil || message == nil || cause[1] != n.Cause {
		return false
	}
	text, err := strconv.Unquote(message[1])
	if err != nil {
		return false
	}
	words := regexp.QuoteMeta(n.sentence())
	return regexp.MustCompile("^" + strings.ReplaceAll(words, "…", ".+?") + "$").MatchString(text)
}
