package lab

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"culvert/gateway/health"
)

// healthyCauses are those of the findings that a gateway logs when nothing is wrong.
var healthyCauses = map[string]bool{"handshake-made": true, "node-heard": true}

var causeOf = regexp.MustCompile(` cause=([\w-]+)`)

// logCheck wants the logs of both gateways to name no fault but those that the checks
// before it have made.
func (l *Lab) logCheck(made ...string) Check {
	return Check{"logs", "both gateways", func(context.Context) (string, error) {
		lines := 0
		var faults []string
		for _, p := range l.processes {
			if p.Args[0] != "gateway" {
				continue
			}
			text, err := os.ReadFile(p.Log)
			if err != nil {
				return "", err
			}
			for line := range strings.Lines(string(text)) {
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
			return "", fmt.Errorf("faults are named:\n%s", strings.Join(faults, "\n"))
		}
		return fmt.Sprintf("no fault named in %d lines", lines), nil
	}}
}

// logSizes returns how long the logs of both gateways are, by host.
func (l *Lab) logSizes() map[string]int64 {
	sizes := make(map[string]int64)
	for i := range clusters {
		host := clusters[i].Name + "/gateway"
		if info, err := os.Stat(l.process(host).Log); err == nil {
			sizes[host] = info.Size()
		}
	}
	return sizes
}

// waitLogged waits until a log has a line about the fault that was not there when the logs were
// so long: at level info or above, in the words of the status, with the remedy.
func (l *Lab) waitLogged(ctx context.Context, f *Fault, sizes map[string]int64, began time.Time) error {
	for {
		lines := 0
		for n := f.Named; n != nil; n = n.Or {
			host := n.Cluster + "/gateway"
			text, err := os.ReadFile(l.process(host).Log)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text[min(sizes[host], int64(len(text))):])) {
				if lines++; n.logs(line) {
					return nil
				}
			}
		}
		if time.Since(began) > loggedWithin {
			return fmt.Errorf("%s: no line of the log of %s, of %d, says in %v: %s", f.Does, f.Named.Cluster, lines, loggedWithin, f.Named.sentence())
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var messageOf = regexp.MustCompile(` level=(?:info|warning) msg=("(?:[^"\\]|\\.)*") `)

// logs reports whether a line of a log is that of n, from its beginning to its remedy's end.
func (n *Named) logs(line string) bool {
	cause, message := causeOf.FindStringSubmatch(line), messageOf.FindStringSubmatch(line)
	if cause == nil || message == nil || cause[1] != n.Cause {
		return false
	}
	text, err := strconv.Unquote(message[1])
	i := slices.IndexFunc(health.Causes(), func(c *health.Cause) bool { return c.Name == n.Cause })
	if err != nil || i < 0 {
		return false
	}
	words := regexp.QuoteMeta(n.Says)
	if remedy := health.Causes()[i].Remedy; remedy != "" {
		words += ": " + regexp.QuoteMeta(blank.ReplaceAllString(remedy, "…"))
	}
	return regexp.MustCompile("^" + strings.ReplaceAll(words, "…", ".+?") + "$").MatchString(text)
}
