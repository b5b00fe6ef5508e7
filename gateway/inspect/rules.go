package inspect

import (
	"context"

	"culvert/gateway/control"
	"culvert/nat"
	"culvert/nat/rules"
)

// link returns the name of a link.
func (v *view) link(p nat.Link) string { return v.names[p] }

// Rules implements control.Source.
func (src *Source) Rules(ctx context.Context, yield func(*control.Rule) bool) error {
	pace, v := newPacer(), src.view()
	src.Path.Engine.ListRules(v.link, func(r *rules.RuleInfo) bool {
		rule := control.Rule{Origin: r.Origin.String(), Field: v.places().Field(r.Origin, r.Rule), Stage: r.Stage,
			Priority: r.Priority, Table: r.Table, Chain: r.Chain, Name: r.Rule,
			Match: r.Match, Action: r.Action}
		if r.Counted {
			rule.Packets, rule.Bytes = &r.Packets, &r.Bytes
		}
		return pace.rest(ctx) && yield(&rule)
	})
	return ctx.Err()
}

// Routes implements control.Source.
func (src *Source) Routes(ctx context.Context, yield func(*control.Route) bool) error {
	pace, v := newPacer(), src.view()
	src.Path.Engine.ListRoutes(v.link, func(r *rules.RouteInfo) bool {
		route := control.Route{Origin: r.Origin.String(), Field: v.places().Field(r.Origin, ""), Rule: r.Rule,
			Priority: r.Priority, In: r.In, Mark: r.Mark, Destination: r.Destination.String(), To: r.To}
		if r.Source.IsValid() {
			route.Source = r.Source.String()
		}
		if r.Via.IsValid() {
			route.Via = r.Via.String()
		}
		return pace.rest(ctx) && yield(&route)
	})
	return ctx.Err()
}
