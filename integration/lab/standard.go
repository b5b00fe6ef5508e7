package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
	"culvert/ipam"
)

const (
	pings       = 100
	streamBytes = 104 << 20 // each way, of a TCP check
)

// lessPart is the fraction of a check's bytes that is sent through gVisor, which is much slower,
// and in labs with IPv6, which test addresses.
const lessPart = 4

// amount returns n bytes, or the fraction of it for labs that send less.
func (l *Lab) amount(n int64) int64 {
	if l.options.Sandbox.Runsc != "" || l.options.Inside != IPv4 {
		return n / lessPart
	}
	return n
}

// ends is a pair of pods in different clusters, with their names for a table.
type ends struct {
	from, to           *netns.Host
	local              netip.Addr // source address of from, or the zero Addr for its kernel's choice
	target, wantSource netip.Addr // how each sees the other
	size               int        // bytes of the largest ping; 0: the pods' MTU
	port               uint16     // the first port at which to listens in benches; 0: its kernel's choice
}

func (e *ends) path() string { return e.from.Name + " → " + e.to.Name }

// pair is the ends from one pod to another in the other cluster, over the family of l.plan.
func (l *Lab) pair(from, to string) *ends { return l.pairOf(l.plan(), from, to) }

// pairOf is pair over the family of a plan.
func (l *Lab) pairOf(p *plan.Plan, from, to string) *ends {
	e := &ends{from: l.host(p, from), to: l.host(p, to)}
	e.target, e.wantSource = p.Of(to).Seen(e.to.Address), p.Of(from).Seen(e.from.Address)
	return e
}

// standardChecks are the promises of a lab with consistent MTUs.
func standardChecks(l *Lab) []Check {
	checks := []Check{
		{"unprivileged", "both gateways", l.checkCapabilities},
		{"remap: auto", "both gateways", l.checkRemaps},
	}
	checks = append(checks, l.ofFamilies(l.trafficChecks)...)
	checks = append(checks, Check{"socket offloads", "both gateways", l.checkOffloads}, l.logCheck())
	if l.options.Sandbox.Runsc != "" {
		checks = append(checks, l.sandboxChecks()...)
	}
	return checks
}

// ofFamilies returns the checks of one list for each family of the lab. A dual lab tests IPv4,
// which others cover, only briefly.
func (l *Lab) ofFamilies(list func(*plan.Plan) []Check) (checks []Check) {
	for _, p := range l.plans() {
		if l.options.Inside == IPv4AndIPv6 && !p.Is6() {
			e := l.pairOf(p, "rome/pod2", "milan/pod2")
			e.size = min(l.options.Rome.MTU, l.options.Milan.MTU)
			checks = append(checks, e.firstContact(),
				Check{"ping", e.path(), e.checkPing}, Check{"tcp both ways", e.path(),
					func(ctx context.Context) (string, error) {
						return e.checkStream(ctx, smallStream, smallStream+1)
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
	first := l.pairOf(p, "rome/pod1", "milan/pod1")
	bulk := l.amount(streamBytes)
	checks := []Check{first.firstContact()}
	for _, from := range []string{"pod1", "pod2"} {
		for _, to := range []string{"pod1", "pod2"} {
			for _, e := range []*ends{l.pairOf(p, "rome/"+from, "milan/"+to), l.pairOf(p, "milan/"+to, "rome/"+from)} {
				checks = append(checks, Check{"ping", e.path(), e.checkPing})
			}
		}
	}
	for i := range p {
		c := &p[i]
		for _, host := range []string{c.Nodes[0].Name, c.Nodes[1].Name, c.Nodes[0].PodName} {
			h := l.host(p, c.Name+"/"+host)
			checks = append(checks, Check{"ping gateway", h.Name + " → " + c.Internal.String(),
				func(context.Context) (string, error) { return checkInternal(h, c.Internal) }})
		}
	}
	for i := range p {
		checks = append(checks, l.traceChecks(p, i)...)
	}
	for _, e := range []*ends{first, l.pairOf(p, "milan/pod2", "rome/pod2")} {
		checks = append(checks,
			Check{"udp echo", e.path(), e.checkUDP},
			Check{"udp trains", e.path(), e.checkTrains},
			Check{"tcp upload", e.path(), func(ctx context.Context) (string, error) {
				return e.checkStream(ctx, bulk, 0)
			}},
			Check{"tcp download", e.path(), func(ctx context.Context) (string, error) {
				return e.checkStream(ctx, 0, bulk)
			}},
		)
	}
	cross := l.pairOf(p, "rome/pod2", "milan/pod1")
	// Under gVisor a gateway's socket has room for 512 KiB, which one stream fills when the sandbox
	// waits for a processor.
	lossy := l.options.Sandbox.Runsc != ""
	return append(checks,
		Check{"tcp both ways", cross.path(), func(ctx context.Context) (string, error) {
			return cross.checkStream(ctx, bulk, bulk)
		}},
		Check{"ping under load", first.path(), func(ctx context.Context) (string, error) {
			return first.checkPingUnderLoad(ctx, bulk, lossy)
		}},
		Check{"outer ecn", first.path(), func(ctx context.Context) (string, error) {
			return first.checkECN(ctx, l.host(l.outer(), "milan/node1"), l.outer()[1].Gateway)
		}})
}

// checkCapabilities fails for a gateway that has any capability.
func (l *Lab) checkCapabilities(ctx context.Context) (string, error) {
	for _, p := range l.gateways() {
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
	for _, p := range l.plans() {
		for i := range p {
			c, peer := &p[i], &p[1-i]
			ledger := step.Must(ipam.Open(l.path(c.Name, "state/ipam.json")).Read())
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

// checkPing sends requests of the default size, and some that fill the MTU.
func (e *ends) checkPing(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	p := step.Must(newPinger(e.from))
	defer p.close()
	wait := step.Must(watchEchoes(e.to, p.id, pings))
	largest := largeMTU
	if e.size > 0 {
		largest = e.size
	}
	rtts, err := p.series(ctx, e.target, pings, []int{84, 84, largest})
	sources, watchErr := wait()
	step.Try(errors.Join(err, watchErr))
	if len(sources) < pings {
		return "", fmt.Errorf("%s saw %d requests, want %d", e.to.Name, len(sources), pings)
	}
	for _, s := range sources {
		if s != e.wantSource {
			return "", fmt.Errorf("%s saw source %s, want %s", e.to.Name, s, e.wantSource)
		}
	}
	return fmt.Sprintf("%s, from %s", percentiles(rtts), e.wantSource), nil
}

// series pings n times with the sizes in turn, until a request has no answer; every answer must be
// a reply.
func (p *pinger) series(ctx context.Context, to netip.Addr, n int, sizes []int) ([]time.Duration, error) {
	var rtts []time.Duration
	for i := range n {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		rtt, err := p.ping(to, sizes[i%len(sizes)])
		if err != nil {
			return rtts, err
		}
		rtts = append(rtts, rtt)
	}
	return rtts, nil
}

// ping sends one request, which must have a reply, and returns the round-trip time.
func (p *pinger) ping(to netip.Addr, size int) (time.Duration, error) {
	a, err := p.echo(to, size, maxTTL)
	if err != nil {
		return 0, err
	}
	if a.message.Type != p.types().reply {
		return 0, fmt.Errorf("%v (code %d) from %s, want an echo reply", a.message.Type, a.message.Code, a.from)
	}
	return a.rtt, nil
}

// checkInternal pings a gateway's internal address.
func checkInternal(h *netns.Host, internal netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	p := step.Must(newPinger(h))
	defer p.close()
	rtts := step.Must(p.series(context.Background(), internal, 20, []int{84}))
	return percentiles(rtts), nil
}

// traceChecks follow the path hop by hop.
func (l *Lab) traceChecks(p *plan.Plan, i int) []Check {
	c, peer := &p[i], &p[1-i]
	n, far := c.Nodes[0], peer.Nodes[1]
	pod := l.host(p, c.Name+"/"+n.PodName)
	target := peer.Seen(far.Pod)
	u := peer.Seen(peer.UnknownSource())
	trace := func(to netip.Addr, want ...netip.Addr) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return checkTrace(ctx, pod, to, want) }
	}
	return []Check{
		{"traceroute", pod.Name + " → " + c.Internal.String(), trace(c.Internal, n.PodCIDR.Addr(), c.Internal)},
		// The far gateway and the far node have no address known to this cluster: both answer as
		// the far cluster's unknown source.
		{"traceroute", pod.Name + " → " + peer.Name + "/" + far.PodName,
			trace(target, n.PodCIDR.Addr(), c.Internal, u, u, target)},
	}
}

// checkTrace sends echo requests with growing TTL and compares who answers.
func checkTrace(ctx context.Context, from *netns.Host, to netip.Addr, want []netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	p := step.Must(newPinger(from))
	defer p.close()
	var hops []netip.Addr
	for ttl := 1; ttl <= len(want)+1 && ctx.Err() == nil; ttl++ {
		a, err := p.echo(to, 84, ttl)
		if err != nil {
			return "", fmt.Errorf("hop %d after %v: %w", ttl, hops, err)
		}
		hops = append(hops, a.from)
		if a.message.Type == p.types().reply {
			break
		}
		if a.message.Type != p.types().timeExceeded {
			return "", fmt.Errorf("hop %d: %v (code %d) from %s, want time exceeded", ttl, a.message.Type,
				a.message.Code, a.from)
		}
		if a.quote.Source != from.Address || a.quote.Destination != to {
			return "", fmt.Errorf("hop %d (%s) quotes a packet from %s to %s, want what was sent: from %s to %s",
				ttl, a.from, a.quote.Source, a.quote.Destination, from.Address, to)
		}
	}
	if !slices.Equal(hops, want) {
		return "", fmt.Errorf("hops %v, want %v", hops, want)
	}
	return fmt.Sprintf("%d hops", len(hops)), nil
}

// checkPingUnderLoad measures latency during a bulk stream. On a lossy path, up to two requests or
// one in twenty may have no answer.
func (e *ends) checkPingUnderLoad(ctx context.Context, bulk int64, lossy bool) (_ string, err error) {
	defer step.Catch(&err)
	p := step.Must(newPinger(e.from))
	defer p.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loaded := make(chan error, 1)
	go func() {
		_, err := e.checkStream(ctx, 2*bulk, 0)
		loaded <- err
	}()
	var rtts []time.Duration
	lost := 0
	for {
		more, err := p.series(ctx, e.target, 10, []int{84})
		rtts = append(rtts, more...)
		if lossy && errors.Is(err, errUnanswered) {
			lost++
		} else if err != nil {
			return "", err
		}
		select {
		case err := <-loaded:
			sent := len(rtts) + lost
			switch {
			case err != nil:
				return "", fmt.Errorf("the stream beside the pings: %w", err)
			case lost > max(2, sent/20) || lost == sent:
				return "", fmt.Errorf("%d of %d echo requests had no answer, at most %d may have none", lost, sent,
					max(2, sent/20))
			case lost > 0:
				return fmt.Sprintf("%s beside a TCP stream, %d of %d lost", percentiles(rtts), lost, sent), nil
			}
			return percentiles(rtts) + " beside a TCP stream", nil
		default:
		}
	}
}
