package nat

import "strings"

// A RuleCount is what the rules of one name in a chain have matched.
type RuleCount struct {
	Table, Chain, Rule string
	Packets, Bytes     uint64
}

// RulesTable is the name of the table that Config.Rules become.
const RulesTable = "rules"

// mappingTables is what RuleCounters calls the tables of all address mappings: they are as many as the mappings.
const mappingTables = "remap-ipmapping-gw"

// RuleCounters calls yield for the rules that are counted, in the order of evaluation. Rules that one rule of the configuration
// became share a counter, and yield is called once for them. It takes the engine's lock for a moment and not while yield runs.
func (e *Engine) RuleCounters(yield func(RuleCount)) {
	e.mu.Lock()
	rules := e.snapshot.rules.rules
	e.mu.Unlock()
	var last *counter
	for i := range rules {
		r := &rules[i]
		if r.policy || !r.counted || r.counter == last {
			continue
		}
		last = r.counter
		table, rest, _ := strings.Cut(r.path, "/")
		chain, name, _ := strings.Cut(rest, "/")
		if strings.HasSuffix(table, "-"+mappingTables) {
			table = mappingTables
		}
		yield(RuleCount{table, chain, name, r.counter.packets.Load(), r.counter.bytes.Load()})
	}
}
