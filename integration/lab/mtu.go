package lab

import (
	"context"
	"net/netip"

	"culvert/gateway/node"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
)

// UnequalMTU is a lab in which only milan's gateway has the small MTU, so that it must report
// too-big packets to its own nodes and, through the tunnel, to rome's pods. No gateway clamps the
// MSS.
func UnequalMTU(mode node.Mode, offloads bool) Options {
	large := ClusterOptions{MTU: probe.LargeMTU, NodeMTU: probe.LargeMTU, PodMTU: probe.LargeMTU, MSSClamp: "off"}
	small := large
	small.MTU = probe.SmallMTU
	return Options{Mode: mode, Offloads: offloads, Rome: large, Milan: small}
}

// MTUChecks are the promises of a lab with unequal MTUs.
func MTUChecks(l *Lab) []Check { return append(l.OfFamilies(l.sizeChecks), l.logCheck()) }

// sizeChecks are the checks of one family. A pod remembers the learnt path MTU, and reflects it in
// the MSS it sends, so each pair of pods is used for one thing.
func (l *Lab) sizeChecks(p *plan.Plan) []Check {
	far, own := l.PairOf(p, "rome/pod1", "milan/pod1"), l.PairOf(p, "milan/pod2", "rome/pod2")
	farTCP, ownTCP := l.PairOf(p, "rome/pod1", "milan/pod2"), l.PairOf(p, "milan/pod1", "rome/pod2")
	milan := &p[1]
	bulk := l.amount(streamBytes)
	// A gateway that gets super-frames cuts them to its own MTU, and need not notify the pod.
	superFrames := l.Options.Offloads && l.Options.Mode != node.TUN
	tooBig := func(e *probe.Ends, from netip.Addr) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return e.CheckTooBig(ctx, from) }
	}
	fragments := []Check{{"fragments", far.Path(), far.CheckFragments}, {"fragments", own.Path(), own.CheckFragments}}
	checks := []Check{firstContact(far)}
	if !p.Is6() {
		checks = append(checks, fragments...)
	}
	checks = append(checks, []Check{
		{"too big, own mtu", own.Path(), tooBig(own, milan.Internal)},
		{"too big, far mtu", far.Path(), tooBig(far, milan.Seen(milan.UnknownSource()))},
		{"tcp over own mtu", ownTCP.Path(), func(ctx context.Context) (string, error) {
			return ownTCP.CheckSegments(ctx, bulk, superFrames)
		}},
		{"tcp over far mtu", farTCP.Path(), func(ctx context.Context) (string, error) {
			return farTCP.CheckSegments(ctx, bulk, false)
		}},
	}...)
	if p.Is6() { // routers do not fragment (RFC 8200, Section 5), so pods must have learnt what fits
		checks = append(checks, fragments...)
	}
	return checks
}
