package nat

import (
	"maps"
	"slices"
	"strings"
)

// A RuleCount is what the rules of one name in a chain have matched.
type RuleCount struct {
	Table, Chain, Rule string
	Packets, Bytes     uint64
}

// RulesTable is the name of the table that Config.Rules become.
const RulesTable = "rules"

// mappingTables is what RuleCounters calls the tables of all address mappings: they are as many as the mappings.
const mappingTables = "remap-ipmapping-gw"

// RuleCounters calls yield for the rules that are counted, chain by chain. Rules that one rule of the configuration became share a
// counter, and yield is called once for them. It keeps neither packets nor, while yield runs, a new configuration waiting.
func (e *Engine) RuleCounters(yield func(RuleCount)) {
	e.apply.Lock()
	pieces := slices.Collect(maps.Values(e.set.pieces))
	e.apply.Unlock()
	for _, p := range pieces {
		for _, c := range p.chains {
			c.counters(yield)
		}
	}
}

func (c *chain) counters(yield func(RuleCount)) {
	table, name, _ := strings.Cut(c.name, "/")
	if strings.HasSuffix(table, "-"+mappingTables) {
		table = mappingTables
	}
	var last *counter
	for i := range c.rules {
		r := &c.rules[i]
		if r.policy || !r.counted || r.counter == last {
			continue
		}
		last = r.counter
		yield(RuleCount{table, name, r.name, r.counter.packets.Load(), r.counter.bytes.Load()})
	}
}
