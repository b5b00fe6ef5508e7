package liqo

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"culvert/kube"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// A Condition is this gateway's condition on a resource. The schema has no room for a reason.
type Condition struct {
	Host   string `json:"host"`
	Type   string `json:"type"`
	Status string `json:"status"`
	Since  string `json:"lastTransitionTime,omitempty"`
}

// applied is the type of the only condition that a gateway writes.
const applied = "Applied"

// conditionStatus is the status of a resource with conditions.
type conditionStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
}

// readCondition reads the gateway's own condition, if there is exactly one.
func (it *item) readCondition(o *objects.Object, self *Self) {
	var status conditionStatus
	if json.Unmarshal(o.Status, &status) != nil {
		return
	}
	for i, c := range status.Conditions {
		if c.Host != self.Name {
			continue
		}
		if it.condition != nil {
			it.condition = nil
			return
		}
		it.condition = &status.Conditions[i]
	}
}

// A Verdict is the condition that a resource should have.
type Verdict struct {
	Key     rules.Key
	Applied bool
}

// Verdicts returns the verdicts that differ from the resources' conditions.
func (s *State) Verdicts() []Verdict {
	var all []Verdict
	for _, kind := range []string{KindFirewall, KindRoute} {
		for key, it := range s.items[kind] {
			if s.dirty[key] {
				continue // the gateway has not seen its latest version
			}
			good := it.why() == ""
			if c := it.condition; c == nil || c.Type != applied || c.Status != conditionWord(good) {
				all = append(all, Verdict{key, good})
			}
		}
	}
	return all
}

func conditionWord(good bool) string {
	word := strconv.FormatBool(good)
	return string(word[0]-'a'+'A') + word[1:]
}

// setCondition returns a resource's conditions with the right one for host. Others' conditions
// stay.
func setCondition(all []any, host string, good bool, now string) []any {
	next := make([]any, 0, len(all)+1)
	mine := map[string]any{"host": host, "type": applied, "status": conditionWord(good), "lastTransitionTime": now}
	for _, c := range all {
		if m, ok := c.(map[string]any); ok && m["host"] == host {
			if m["status"] == mine["status"] && m["type"] == applied && m["lastTransitionTime"] != nil {
				mine["lastTransitionTime"] = m["lastTransitionTime"]
			}
			continue
		}
		next = append(next, c)
	}
	return append(next, mine)
}

// Reports returns why resources are left out, in order.
func (s *State) Reports() (all []kube.Fault) {
	faults := s.Faults()
	for _, key := range slices.SortedFunc(maps.Keys(faults), compareKeys) {
		all = append(all, kube.Fault{Event: kube.Event{Kind: key.Kind, Metadata: s.items[key.Kind][key].meta,
			Message: faults[key]}})
	}
	return all
}
