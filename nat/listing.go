package nat

import "culvert/nat/rules"

// ListRules calls yield for each rule, in the order of evaluation, until it returns false. link names a Link. It keeps neither packets
// nor, while yield runs, a new configuration waiting.
func (e *Engine) ListRules(link func(Link) string, yield func(*rules.RuleInfo) bool) {
	e.ruleList().Each(link, yield)
}

// RuleCounters calls yield for the rules that are counted, as RuleList.Counters does. It makes nobody wait either.
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
