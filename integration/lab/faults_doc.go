package lab

import (
	"fmt"
	"regexp"
	"strings"

	"culvert/gateway/health"
)

// FaultReference is the page of all faults, with what culvert status says about each. Only the paragraphs are wrapped.
func FaultReference() string {
	var b, others strings.Builder
	named, made := 0, make(map[string]bool)
	for i := range faults {
		f := &faults[i]
		fmt.Fprintf(&b, "- `%s`: %s\n", f.Name, f.Does)
		if f.Named == nil {
			fmt.Fprintf(&b, "  - not named: %s\n", f.Untold)
		} else {
			named++
			for n := f.Named; n != nil; n = n.Or {
				made[n.Cause] = true
				fmt.Fprintf(&b, "  - `%s` of %s: %s\n", n.Cause, n.Cluster, n.sentence())
			}
		}
		fmt.Fprintf(&b, "  - fix: %s\n", f.Remedy)
	}
	for _, c := range health.Causes() {
		if c.Level == health.Warning && !made[c.Name] {
			fmt.Fprintf(&others, "- `%s`: %s\n", c.Name, blank.ReplaceAllString(c.Sentence(), "…"))
		}
	}
	return fmt.Sprintf(`# Faults

This page lists ways to break the path between pods of two clusters, and how culvert names them.
While packets flow in both directions, or somebody tries to send them, `+"`culvert status`"+` names a
fault within %d seconds and the gateway's log within %d: %d of %d are named. … stands for counts,
times and other values that vary. This page is generated.

`+"`culvert-lab check --named all --mode vxlan --offloads on`"+` makes each fault, reads the status and
the log, and fixes it. `+"`culvert-lab break FAULT`"+` makes it in a running lab, to learn from.

%s
## Other warnings

`+"`culvert status`"+` and the log also warn of conditions that none of these faults causes, such as too
little CPU time:

%s`, int(namedWithin.Seconds()), int(loggedWithin.Seconds()), named, len(faults), b.String(), others.String())
}

var blank = regexp.MustCompile(`\{\w+\}`)

// sentence returns what a status says, with its remedy.
func (n *Named) sentence() string {
	for _, c := range health.Causes() {
		if c.Name != n.Cause || c.Remedy == "" {
			continue
		}
		remedy := c.Remedy
		if c.Server != "" && clusterOf(n.Cluster+"/gateway").Role == "server" {
			remedy = c.Server
		}
		return n.Says + ": " + blank.ReplaceAllString(remedy, "…")
	}
	return n.Says
}
