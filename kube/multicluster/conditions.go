package multicluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"culvert/kube/objects"
)

// conditions returns those of a ServiceExport.
func (s *State) conditions(name types.NamespacedName, all []offer, conflicts []conflict,
	now time.Time) []objects.Condition {
	e, of := s.exports[name], s.services[name]
	valid := objects.Condition{Type: "Valid", Status: "True", Reason: "Valid"}
	ready := objects.Condition{Type: "Ready", Status: "False", Reason: "Pending"}
	conflicting := objects.Condition{Type: "Conflict", Status: "False", Reason: "NoConflicts"}
	switch {
	case of == nil:
		valid.Status, valid.Reason, valid.Message = "False", "NoService", "there is no Service "+name.String()
		ready.Message = valid.Message
	case of.Invalid != "":
		valid.Status, valid.Reason, valid.Message = "False", "InvalidServiceType", of.Invalid
		ready.Message = valid.Message
	case s.cluster == "":
		ready.Message = "this cluster has no Peering"
	case !s.shared(name.Namespace):
		ready.Message = fmt.Sprintf("spec.services.export of no Peering has the namespace %s: culvert join "+
			"with --services sets it", name.Namespace)
	default:
		ready.Status, ready.Reason = "True", "Exported"
		if len(conflicts) > 0 {
			conflicting.Status = "True"
			conflicting.Reason, conflicting.Message = describe(all, conflicts)
		}
	}
	next := slices.Clone(e.Conditions) // others' stay
	for _, c := range []objects.Condition{valid, ready, conflicting} {
		c.Observed, c.Since = e.Generation, now.UTC().Format(time.RFC3339)
		i := slices.IndexFunc(next, func(o objects.Condition) bool { return o.Type == c.Type })
		if i < 0 {
			next = append(next, c)
			continue
		}
		if next[i].Status == c.Status {
			c.Since = next[i].Since
		}
		next[i] = c
	}
	return next
}

// describe returns the reason and the message of a condition about conflicts.
func describe(all []offer, conflicts []conflict) (reason, message string) {
	of, what, reasons := map[string]map[string]bool{}, map[string]string{}, []string{}
	for _, c := range conflicts {
		if of[c.reason] == nil {
			of[c.reason], what[c.reason] = map[string]bool{}, c.what
			reasons = append(reasons, c.reason)
		}
		of[c.reason][c.of] = true
	}
	var texts []string
	for _, r := range reasons {
		differ := "differs"
		if len(of[r]) > 1 {
			differ = "differ"
		}
		texts = append(texts, fmt.Sprintf("%s, and its export is the oldest; %s %s (%d of %d clusters)", what[r],
			strings.Join(slices.Sorted(maps.Keys(of[r])), " and "), differ, len(of[r]), len(all)))
	}
	return strings.Join(reasons, ","), strings.Join(texts, ". ")
}
