package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
	"culvert/ipam"
)

const (
	streamBytes = 104 << 20 // each way, of a TCP check
)

// lessPart is the fraction of a check's bytes that is sent through gVisor, which is much slower,
// and in labs with IPv6, which test addresses.
const lessPart = 4

// amount returns n bytes, or the fraction of it for labs that send less.
func (l *Lab) amount(n int64) int64 {
	if l.Options.Sandbox.Runsc != "" || l.Options.Inside != IPv4 {
		return n / lessPart
	}
	return n
}

// Pair is the ends from one pod to another in the other cluster, over the family of l.plan.
func (l *Lab) Pair(from, to string) *probe.Ends { return l.PairOf(l.Plan(), from, to) }

// PairOf is pair over the family of a plan.
func (l *Lab) PairOf(p *plan.Plan, from, to string) *probe.Ends {
	e := &probe.Ends{From: l.HostOf(p, from), To: l.HostOf(p, to)}
	e.Target, e.WantSource = p.Of(to).Seen(e.To.Address), p.Of(from).Seen(e.From.Address)
	return e
}

// StandardChecks are the promises of a lab with consistent MTUs.
func StandardChecks(l *Lab) []Check {
	checks := []Check{
		{"unprivileged", "both gateways", l.checkCapabilities},
		{"remap: auto", "both gateways", l.checkRemaps},
	}
	checks = append(checks, l.OfFamilies(l.trafficChecks)...)
	checks = append(checks, Check{"socket offloads", "both gateways", l.checkOffloads}, l.logCheck())
	if l.Options.Sandbox.Runsc != "" {
		checks = append(checks, l.sandboxChecks()...)
	}
	return checks
}

// OfFamilies returns the checks of one list for each family of the lab. A dual lab tests IPv4,
// which others cover, only briefly.
func (l *Lab) OfFamilies(list func(*plan.Plan) []Check) (checks []Check) {
	for _, p := range l.Plans() {
		if l.Options.Inside == IPv4AndIPv6 && !p.Is6() {
			e := l.PairOf(p, "rome/pod2", "milan/pod2")
			e.Size = min(l.Options.Rome.MTU, l.Options.Milan.MTU)
			checks = append(checks, firstContact(e),
				Check{"ping", e.Path(), e.CheckPing}, Check{"tcp both ways", e.Path(),
					func(ctx context.Context) (string, error) {
						return e.CheckStream(ctx, probe.SmallStream, probe.SmallStream+1)
					}})
			continue
		}
		for _, c := range list(p) {
			if p.Is6() {
				c.Path += " IPv6"
			}
			checks = append(checks, c)
		}
	}
	return checks
}

// trafficChecks are the promises to pods of one family.
func (l *Lab) trafficChecks(p *plan.Plan) []Check {
	first := l.PairOf(p, "rome/pod1", "milan/pod1")
	bulk := l.amount(streamBytes)
	checks := []Check{firstContact(first)}
	for _, from := range []string{"pod1", "pod2"} {
		for _, to := range []string{"pod1", "pod2"} {
			for _, e := range []*probe.Ends{l.PairOf(p, "rome/"+from, "milan/"+to), l.PairOf(p, "milan/"+to,
				"rome/"+from)} {
				checks = append(checks, Check{"ping", e.Path(), e.CheckPing})
			}
		}
	}
	for i := range p {
		c := &p[i]
		for _, host := range []string{c.Nodes[0].Name, c.Nodes[1].Name, c.Nodes[0].PodName} {
			h := l.HostOf(p, c.Name+"/"+host)
			checks = append(checks, Check{"ping gateway", h.Name + " → " + c.Internal.String(),
				func(context.Context) (string, error) { return probe.CheckInternal(h, c.Internal) }})
		}
	}
	for i := range p {
		checks = append(checks, l.traceChecks(p, i)...)
	}
	for _, e := range []*probe.Ends{first, l.PairOf(p, "milan/pod2", "rome/pod2")} {
		checks = append(checks,
			Check{"udp echo", e.Path(), e.CheckUDP},
			Check{"udp trains", e.Path(), e.CheckTrains},
			Check{"tcp upload", e.Path(), func(ctx context.Context) (string, error) {
				return e.CheckStream(ctx, bulk, 0)
			}},
			Check{"tcp download", e.Path(), func(ctx context.Context) (string, error) {
				return e.CheckStream(ctx, 0, bulk)
			}},
		)
	}
	cross := l.PairOf(p, "rome/pod2", "milan/pod1")
	// Under gVisor a gateway's socket has room for 512 KiB, which one stream fills when the sandbox
	// waits for a processor.
	lossy := l.Options.Sandbox.Runsc != ""
	return append(checks,
		Check{"tcp both ways", cross.Path(), func(ctx context.Context) (string, error) {
			return cross.CheckStream(ctx, bulk, bulk)
		}},
		Check{"ping under load", first.Path(), func(ctx context.Context) (string, error) {
			return first.CheckPingUnderLoad(ctx, bulk, lossy)
		}},
		Check{"outer ecn", first.Path(), func(ctx context.Context) (string, error) {
			return first.CheckECN(ctx, l.HostOf(l.Outer(), "milan/node1"), l.Outer()[1].Gateway)
		}})
}

// checkCapabilities fails for a gateway that has any capability.
func (l *Lab) checkCapabilities(ctx context.Context) (string, error) {
	for _, p := range l.Gateways() {
		effective, err := p.capabilities(ctx)
		if err != nil {
			return "", fmt.Errorf("%s: capabilities: %w", p.Name(), err)
		}
		if effective != 0 {
			return "", fmt.Errorf("%s has capabilities %#x, want none", p.Name(), effective)
		}
	}
	return "no capability", nil
}

// checkRemaps reads each gateway's choice for the other cluster's CIDRs.
func (l *Lab) checkRemaps(context.Context) (_ string, err error) {
	defer step.Catch(&err)
	var seen []string
	for _, p := range l.Plans() {
		for i := range p {
			c, peer := &p[i], &p[1-i]
			ledger := step.Must(ipam.Open(l.Path(c.Name, "state/ipam.json")).Read())
			for kind, want := range map[ipam.Kind][2]netip.Prefix{ipam.Pod: {peer.PodCIDR, peer.SeenPods},
				ipam.External: {peer.External, peer.SeenExt}} {
				e, _ := ledger.Find(ipam.Owner{Peer: peer.Name, Kind: kind, Real: want[0].String()})
				if e.Remapped != want[1] {
					return "", fmt.Errorf("%s remembers %q for %s of %s, want %s", c.Name, e.RemappedText(), want[0],
						peer.Name, want[1])
				}
			}
		}
		seen = append(seen, fmt.Sprintf("%s seen as %s, %s", p[0].PodCIDR, p[1].SeenPods, p[0].SeenPods))
	}
	return strings.Join(seen, "; "), nil
}

// traceChecks follow the path hop by hop.
func (l *Lab) traceChecks(p *plan.Plan, i int) []Check {
	c, peer := &p[i], &p[1-i]
	n, far := c.Nodes[0], peer.Nodes[1]
	pod := l.HostOf(p, c.Name+"/"+n.PodName)
	target := peer.Seen(far.Pod)
	u := peer.Seen(peer.UnknownSource())
	trace := func(to netip.Addr, want ...netip.Addr) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return probe.CheckTrace(ctx, pod, to, want) }
	}
	return []Check{
		{"traceroute", pod.Name + " → " + c.Internal.String(), trace(c.Internal, n.PodCIDR.Addr(), c.Internal)},
		// The far gateway and the far node have no address known to this cluster: both answer as
		// the far cluster's unknown source.
		{"traceroute", pod.Name + " → " + peer.Name + "/" + far.PodName,
			trace(target, n.PodCIDR.Addr(), c.Internal, u, u, target)},
	}
}

// firstContact is a check that pings until there is an answer: handshakes and ARP take a moment.
func firstContact(e *probe.Ends) Check {
	return Check{"first contact", e.Path(), func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, StartTimeout)
		defer cancel()
		began := time.Now()
		err := e.Reach(ctx)
		return fmt.Sprintf("first answer after %d ms", time.Since(began).Milliseconds()), err
	}}
}
