package fault

import (
	"fmt"
	"strings"
)

// Page is the page of all faults, with what culvert status says about each. Its
// paragraphs and the elements of its lists are lines, which cli.WrapLines wraps.
func Page() string {
	var b strings.Builder
	named, made := 0, make(map[string]string) // the fault that has each finding first
	for _, s := range symptoms {
		fmt.Fprintf(&b, "\n## %s\n\n", s.heading)
		for i := range faults {
			f := &faults[i]
			if f.Symptom != s {
				continue
			}
			fmt.Fprintf(&b, "- `%s`: %s\n", f.Name, f.Does)
			if f.Named == nil {
				fmt.Fprintf(&b, "  - not named: %s\n", f.Untold)
			} else {
				named++
				for n := f.Named; n != nil; n = n.Or {
					finding := fmt.Sprintf("`%s` of %s: %s", n.Cause, n.Cluster, n.Says)
					if made[finding] != "" {
						finding = fmt.Sprintf("`%s` of %s, as for `%s`", n.Cause, n.Cluster, made[finding])
					} else {
						made[finding] = f.Name
					}
					fmt.Fprintf(&b, "  - %s\n", finding)
				}
			}
			fmt.Fprintf(&b, "  - fix: %s\n", f.Remedy)
		}
	}
	return fmt.Sprintf(`# Faults

This page says by symptom what breaks the path between pods of two clusters, and how culvert names it. `+
		"While packets flow in both directions, or somebody tries to send them, `culvert status` names a fault within "+
		`%d seconds and the gateway's log within %d, with a remedy: %d of %d are named. `+
		"[logs.md](logs.md#findings) has every warning, also of what no fault here causes. In the examples, rome and "+
		`milan are the clusters, node1 is a node of rome, and pod1 a pod there. … stands for values that vary.

`+"`culvert-lab break FAULT` makes a fault in a running lab, to learn from. `culvert-lab check --named all --mode "+
		"vxlan --offloads on` makes each, reads the status and the log, and fixes it. This page is generated."+`
%s`, int(namedWithin.Seconds()), int(loggedWithin.Seconds()), named, len(faults), b.String())
}
