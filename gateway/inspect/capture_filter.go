package inspect

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"culvert/gateway/path"
	"culvert/nat"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// match reports whether packets with this verdict and reason are recorded.
func (r *recording) match(verdict, reason string) bool {
	return (r.verdict == "" || r.verdict == verdict) && (len(r.reasons) == 0 || slices.Contains(r.reasons, reason))
}

// matchTunnel is match for a datagram of a tunnel, to which rules do not apply.
func (r *recording) matchTunnel(dropped bool, reason string) bool {
	if !dropped {
		return r.rule == "" && r.match("", "")
	}
	return r.rule == "" && r.match(nat.Drop.String(), reason)
}

// check returns an error for an unknown name in the filter.
func (r *recording) check(src *Source) error {
	var errs []error
	if len(r.reasons) > 0 {
		stats, tunnels, tunnel := src.Path.Engine.Stats(), src.Path.Endpoint.Stats(), src.Path.WG.Stats()
		all := make(map[string]bool)
		for key := range src.drops(&stats, &tunnels, &tunnel) {
			all[key.reason] = true
		}
		for _, reason := range r.reasons {
			if !all[reason] {
				errs = append(errs, fmt.Errorf("reason: no reason %q; there are %s", reason, strings.Join(slices.Sorted(maps.Keys(all)), ", ")))
			}
		}
	}
	if r.rule != "" {
		there := false
		src.Path.Engine.ListRules(r.names.link, func(i *rules.RuleInfo) bool {
			there = r.means(strings.TrimSuffix(i.Table+"/"+i.Chain+"/"+i.Rule, "/"))
			return !there
		})
		if !there {
			errs = append(errs, fmt.Errorf("rule: no rule %q; culvert rules lists them", r.rule))
		}
	}
	return errors.Join(errs...)
}

// means reports whether the filter names the rule with this path, table/chain/rule.
func (r *recording) means(path string) bool {
	parts := strings.SplitN(path, "/", 3)
	return path == r.rule || len(parts) == 3 && parts[2] == r.rule
}

// ruleTracer records which rules a packet matches.
type ruleTracer struct {
	of   *recording
	met  bool   // it matched the rule of the filter
	last string // path
}

// LinkName implements rules.Tracer.
func (t *ruleTracer) LinkName(l nat.Link) string { return t.of.names.link(l) }

// Trace implements rules.Tracer.
func (t *ruleTracer) Trace(s rules.Step) {
	if s.Kind == rules.StepRule && s.Passed {
		t.met = t.met || t.of.means(s.Name)
		t.last = s.Name
	}
}

// meets reports whether a packet that is not yet decided matches the rule of the filter.
func (r *recording) meets(data []byte, segment int, in nat.Link) bool {
	return r.rulesOf(data, segment, in).met
}

// ruleText names the rule that refused a packet.
func (r *recording) ruleText(p *packet.Packet, in nat.Link) string {
	t := r.rulesOf(p.Bytes(), p.SegmentSize, in)
	return t.by()
}

// by names the rule that matched last.
func (t *ruleTracer) by() string {
	if t.last == "" {
		return ""
	}
	return ", by rule " + t.last
}

// rulesOf makes the engine explain a copy of a packet.
func (r *recording) rulesOf(data []byte, segment int, in nat.Link) (t ruleTracer) {
	var p packet.Packet
	p.Parse(bytes.Clone(data))
	p.SegmentSize = segment
	t.of = r
	r.engine.Explain(&p, in, path.Now(), &t)
	return t
}
