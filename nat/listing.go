package nat

import "culvert/nat/rules"

// ListRules calls yield for each rule, in order of evaluation, until it returns false. link names a
// Link. While yield runs, neither packets nor a new configuration wait.
func (e *Engine) ListRules(link func(Link) string, yield func(*rules.RuleInfo) bool) {
	e.ruleList().Each(link, yield)
}

// RuleCounters calls yield for the counted rules, like RuleList.Counters. Nothing waits for it
// either.
func (e *Engine) RuleCounters(yield func(rules.RuleCount)) { e.ruleList().Counters(yield) }

func (e *Engine) ruleList() rules.RuleList {
	e.apply.Lock()
	defer e.apply.Unlock()
	return e.set.Rules()
}

// ListRoutes calls yield for each route, in the order of rules, until it returns false.
func (e *Engine) ListRoutes(link func(Link) string, yield func(*rules.RouteInfo) bool) {
	e.apply.Lock()
	routes := e.set.Routes()
	e.apply.Unlock()
	routes.Each(link, yield)
}
