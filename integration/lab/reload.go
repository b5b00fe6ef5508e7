package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What a gateway logs after SIGHUP.
const (
	appliedText = "configuration applied"
	refusedText = "configuration refused"
)

// reload writes the configuration of the gateway of clusters[i], modified by change, and waits until the gateway has applied it.
func (l *Lab) reload(ctx context.Context, i int, change func(config object)) error {
	config := l.gatewayConfig(i)
	if change != nil {
		change(config)
	}
	if err := l.writeYAML(clusters[i].Name, "gateway.yaml", config); err != nil {
		return err
	}
	return l.sendHangup(ctx, i, appliedText)
}

// sendHangup sends SIGHUP to a gateway and waits for its log line.
func (l *Lab) sendHangup(ctx context.Context, i int, want string) error {
	p := l.gateway(i)
	before, err := p.said(want)
	if err != nil {
		return err
	}
	other := appliedText
	if want == other {
		other = refusedText
	}
	wrong, err := p.said(other)
	if err != nil {
		return err
	}
	if err := p.signal(unix.SIGHUP); err != nil {
		return err
	}
	for began := time.Now(); ; {
		n, err := p.said(want)
		if err != nil {
			return err
		}
		if n > before {
			return nil
		}
		if w, err := p.said(other); err != nil || w > wrong {
			return errors.Join(fmt.Errorf("%s: want %q, its log says: %s", p.Name(), want, tail(p.Log, 1)), err)
		}
		if ctx.Err() != nil || time.Since(began) > startTimeout {
			return fmt.Errorf("%s: no %q in its log %v after SIGHUP", p.Name(), want, time.Since(began).Round(time.Millisecond))
		}
		time.Sleep(pollInterval)
	}
}

// gateway returns the gateway process of clusters[i].
func (l *Lab) gateway(i int) *Process { return l.process(clusters[i].Name + "/gateway") }

// said counts a text in the process's log.
func (p *Process) said(text string) (int, error) {
	log, err := ReadLines(p.Log)
	return strings.Count(log, text), err
}

// lastSaid returns the last line of the process's log that contains a text. Lines about other things may follow it.
func (p *Process) lastSaid(text string) (last string, err error) {
	log, err := ReadLines(p.Log)
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) {
			last = strings.TrimSpace(line)
		}
	}
	return last, err
}

func (l *Lab) reloadChecks(p *plan) []Check {
	return []Check{
		{"reload, rules", "milan/pod1 → rome/pod1", func(ctx context.Context) (string, error) { return l.checkRules(ctx, p) }},
		{"reload under load", "both gateways, 8 streams", func(ctx context.Context) (string, error) { return l.checkReload(ctx, p) }},
	}
}

// checkRules adds and removes rules, and requires each to take effect at once, even for an existing connection.
func (l *Lab) checkRules(ctx context.Context, p *plan) (string, error) {
	e := l.pairOf(p, "milan/pod1", "rome/pod1")
	server, err := newNameServer(e.to, backendPort)
	if err != nil {
		return "", err
	}
	defer server.close()
	to := netip.AddrPortFrom(e.target, backendPort)
	old, err := newCall(ctx, e.from, to)
	if err != nil {
		return "", err
	}
	defer old.conn.Close()
	if _, _, err := old.ask(); err != nil {
		return "", fmt.Errorf("before any rule: %w", err)
	}
	rule := func(action string) func(object) {
		return func(config object) {
			config["rules"] = []object{{"name": "check", "from": "remote", "protocol": "tcp", "ports": fmt.Sprint(backendPort), "action": action}}
		}
	}
	// A lost packet is noticed by a missing answer in less time than the first retransmission; a new connection then waits for its second SYN.
	for _, step := range []struct {
		change func(object)
		want   error
		what   string
	}{
		{rule("reject"), unix.ENETUNREACH, "reject"}, // as in Liqo's rules
		{nil, nil, "no rule"},
		{rule("drop"), os.ErrDeadlineExceeded, "drop"},
		{nil, nil, "no rule again"},
	} {
		if err := l.reload(ctx, 0, step.change); err != nil {
			return "", err
		}
		c, err := newCall(ctx, e.from, to)
		if err == nil {
			_, _, err = c.ask()
			c.conn.Close()
		}
		if errors.Is(err, context.DeadlineExceeded) || os.IsTimeout(err) {
			err = os.ErrDeadlineExceeded
		}
		if !errors.Is(err, step.want) {
			return "", fmt.Errorf("%s: new connection: %v, want %v", step.what, err, step.want)
		}
	}
	if _, _, err := old.ask(); err != nil {
		return "", fmt.Errorf("the connection from before: %w", err)
	}
	return "reject, drop and no rule take effect", nil
}

const (
	reloadBytes = 24 << 20 // each way, of a stream under reloads
	minReloads  = 12       // while all streams run
)

// checkReload changes both configurations again and again while streams of every kind run: between pods, from behind a pod, to and from mapped hosts.
func (l *Lab) checkReload(ctx context.Context, p *plan) (string, error) {
	rome, milan := &p[0], &p[1]
	u := func(e *ends, local netip.Addr, c *Cluster) *ends {
		e.local, e.wantSource = local, c.Seen(c.UnknownSource())
		return e
	}
	mapped := &ends{from: l.host(p, "milan/pod1"), to: l.Host("rome/client").at(rome.Mapped), target: rome.Seen(rome.MappedAs)}
	mapped.wantSource = milan.Seen(mapped.from.Address)
	back := &ends{from: l.host(p, "milan/client"), local: milan.Mapped, to: l.host(p, "rome/pod2"), wantSource: milan.Seen(milan.MappedAs)}
	back.target = rome.Seen(back.to.Address)
	streams := []*ends{
		l.pairOf(p, "rome/pod1", "milan/pod1"), l.pairOf(p, "rome/pod2", "milan/pod2"), l.pairOf(p, "milan/pod1", "rome/pod2"),
		u(l.pairOf(p, "rome/pod1", "milan/pod2"), rome.BehindFirst, rome), u(l.pairOf(p, "rome/node2", "milan/pod1"), rome.Nodes[1].Underlay, rome),
		u(l.pairOf(p, "rome/client", "milan/pod1"), rome.Client, rome), mapped, back,
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bulk := int64(reloadBytes)
	switch {
	case l.options.Sandbox.Runsc != "":
		bulk /= lessPart
	case l.options.Inside != IPv4:
		bulk /= 2
	}
	ended := make(chan error, len(streams))
	for _, e := range streams {
		go func() {
			_, err := e.stream(ctx, bulk, bulk)
			if err != nil {
				err = fmt.Errorf("%s: %w", e.path(), err)
			}
			ended <- err
		}()
	}
	reloads, whole, left := 0, 0, len(streams)
	for left > 0 {
		i := reloads % len(clusters)
		if err := l.reload(ctx, i, l.change(i, reloads/len(clusters))); err != nil {
			return "", err
		}
		reloads++
		if left == len(streams) {
			whole++
		}
		for more := true; more && left > 0; {
			select {
			case err := <-ended:
				if err != nil {
					return "", fmt.Errorf("after %d reloads: %w", reloads, err)
				}
				left--
			default:
				more = false
			}
		}
	}
	if whole < minReloads {
		return "", fmt.Errorf("%d reloads while all streams ran, want %d: make the streams longer", whole, minReloads)
	}
	for i := range clusters {
		if err := l.reload(ctx, i, nil); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d reloads, %d MiB, SHA-256 equal", reloads, 2*int64(len(streams))*bulk>>20), nil
}

// thirdNode is a node of clusters[i] that exists in no lab.
func (l *Lab) thirdNode(i int) object {
	var address []netip.Addr
	var pods []netip.Prefix
	for _, p := range l.plans() {
		internal, pod := netip.MustParseAddr("10.80.0.77"), netip.MustParsePrefix("10.0.77.0/24")
		if p.is6() {
			internal, pod = netip.MustParseAddr("fd80::77"), netip.MustParsePrefix("fd00:10:0:77::/64")
		}
		address, pods = append(address, internal), append(pods, pod)
	}
	outer := &l.outer()[i]
	return object{"name": outer.Name + "-node3", "vni": 77, "underlay": spare(outer.Underlay), "address": oneOrBoth(address), "podCIDRs": pods}
}

// spare is an address of a network that no host of a lab has.
func spare(of netip.Prefix) netip.Addr {
	if of.Addr().Is6() {
		return remap(netip.MustParseAddr("::99"), of)
	}
	return remap(netip.MustParseAddr("0.0.0.99"), of)
}

// change returns one of several changes that affect none of the streams.
func (l *Lab) change(i, n int) func(config object) {
	c := &l.plans()[0][i]
	return []func(object){
		func(config object) {
			config["rules"] = []object{
				{"name": "no-ssh", "from": "remote", "protocol": "tcp", "ports": "22", "action": "drop"},
				{"name": "no-dns", "protocol": "udp", "ports": "53", "action": "reject"},
			}
		},
		func(config object) {
			geneve := config["geneve"].(object)
			geneve["nodes"] = append(geneve["nodes"].([]object), l.thirdNode(i))
		},
		func(config object) {
			nat := config["nat"].(object)
			nat["addresses"] = append(nat["addresses"].([]object), object{"external": spare(c.External), "internal": spare(c.Outside)})
			nat["services"] = nat["services"].([]object)[:1]
		},
		func(config object) {
			// The same nodes in another order: their connections must not be affected.
			nodes := config["geneve"].(object)["nodes"].([]object)
			nodes[0], nodes[1] = nodes[1], nodes[0]
		},
		func(config object) { delete(config["nat"].(object), "services") },
		func(config object) { config["cpus"] = min(2, runtime.NumCPU()) },
		nil,
	}[n%7]
}

// cpusStreams is how many TCP streams run at full rate while the number of Ps changes.
const cpusStreams = 8

// checkCPUs gives both gateways a second P beside connections and streams at full rate, and takes it back.
func (l *Lab) checkCPUs(ctx context.Context, n int, pause time.Duration) (string, error) {
	return l.besideFlows(ctx, n, func(c *flowSet, exchange func() error) (figure string, err error) {
		streams, err := l.pair("rome/pod2", "milan/pod2").startBulk(cpusStreams, 0)
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, streams.stop()) }()
		if err := c.measureUndisturbed(); err != nil {
			return "", err
		}
		undisturbed := time.Duration(streams.pause.Swap(0))
		figure, err = l.eachGateway(c, pause, func(p *Process) error {
			i := clusters.index(p.Host.Name)
			if err := l.reload(ctx, i, func(config object) { config["cpus"] = 2 }); err != nil {
				return err
			}
			return l.reload(ctx, i, nil)
		}, exchange)
		longest := time.Duration(streams.pause.Load())
		if err == nil && longest > pause {
			err = fmt.Errorf("a stream paused for %v, want at most %v", longest.Round(time.Millisecond), pause)
		}
		return fmt.Sprintf("%s; %d streams at full rate ≤ %d ms, undisturbed %d ms", figure, cpusStreams, longest.Milliseconds(), undisturbed.Milliseconds()), err
	})
}
