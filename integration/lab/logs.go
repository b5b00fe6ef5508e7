package lab

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
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
