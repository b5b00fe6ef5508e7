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

// matchTunnel is match for a datagram of a tunnel.
func (r *recording) matchTunnel(dropped bool, reason string) bool {
	if !dropped {
		return r.match("", "")
	}
	return r.match(nat.Drop.String(), reason)
}

// check returns an error for an unknown reason in the filter.
func (r *recording) check(src *Source) error {
	if len(r.reasons) == 0 {
		return nil
	}
	stats, tunnels, tunnel := src.Path.Engine.Stats(), src.Path.Endpoint.Stats(), src.Path.WG.Stats()
	all := make(map[string]bool)
	for key := range src.drops(&stats, &tunnels, &tunnel) {
		all[key.reason] = true
	}
	var errs []error
	for _, reason := range r.reasons {
		if !all[reason] {
			errs = append(errs, fmt.Errorf("reason: no reason %q; there are %s", reason, strings.Join(slices.Sorted(maps.Keys(all)), ", ")))
		}
	}
	return errors.Join(errs...)
}

// ruleTracer keeps the last rule that a packet matches: the one that refused it, if one did.
type ruleTracer struct {
	names *view
	last  string // table/chain/rule
}

// LinkName implements rules.Tracer.
func (t *ruleTracer) LinkName(l nat.Link) string { return t.names.link(l) }

// Trace implements rules.Tracer.
func (t *ruleTracer) Trace(s rules.Step) {
	if s.Kind == rules.StepRule && s.Passed {
		t.last = s.Name
	}
}

// ruleText names the rule that refused a packet.
func (r *recording) ruleText(p *packet.Packet, in nat.Link) string {
	t := ruleTracer{names: r.names}
	var again packet.Packet
	again.Parse(bytes.Clone(p.Bytes()))
	again.SegmentSize = p.SegmentSize
	r.engine.Explain(&again, in, path.Now(), &t)
	return t.by()
}

// by names the rule that matched last.
func (t *ruleTracer) by() string {
	if t.last == "" {
		return ""
	}
	return ", by rule " + t.last
}
