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

	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// What a gateway logs after SIGHUP.
const (
	appliedText = "configuration applied"
	RefusedText = "configuration refused"
)

// Reload writes the configuration of the gateway of clusters[i], modified by change, and waits
// until the gateway has applied it.
func (l *Lab) Reload(ctx context.Context, i int, change func(config Object)) error {
	config := l.GatewayConfig(i)
	if change != nil {
		change(config)
	}
	if err := l.WriteYAML(plan.V4[i].Name, "gateway.yaml", config); err != nil {
		return err
	}
	_, err := l.SendHangup(ctx, i, appliedText)
	return err
}

// SendHangup sends SIGHUP to a gateway and waits for the log line with which it answers, which must
// contain want.
func (l *Lab) SendHangup(ctx context.Context, i int, want string) (line string, err error) {
	defer step.Catch(&err)
	p := l.Gateway(i)
	before := step.Must(ReadLines(p.Log))
	step.Try(p.Signal(unix.SIGHUP))
	step.Try(step.Await(ctx, StartTimeout, step.Poll, func() error {
		log, err := ReadLines(p.Log)
		for line = range strings.Lines(log[min(len(before), len(log)):]) {
			if strings.Contains(line, appliedText) || strings.Contains(line, RefusedText) {
				return nil
			}
		}
		return errors.Join(fmt.Errorf("%s: no %q in its log after SIGHUP", p.Name(), want), err)
	}))
	if !strings.Contains(line, want) {
		return "", fmt.Errorf("%s: want %q, its log says: %s", p.Name(), want, line)
	}
	return line, nil
}

// Gateway returns the gateway process of clusters[i].
func (l *Lab) Gateway(i int) *Process { return l.Process(plan.V4[i].Name + "/gateway") }

func (l *Lab) reloadChecks(p *plan.Plan) []Check {
	return []Check{
		{"reload, rules", "milan/pod1 → rome/pod1", func(ctx context.Context) (string, error) {
			return l.checkRules(ctx, p)
		}},
		{"reload under load", "both gateways, 8 streams", func(ctx context.Context) (string, error) {
			return l.checkReload(ctx, p)
		}},
	}
}

// checkRules adds and removes rules, and requires each to take effect at once, even for an existing
// connection.
func (l *Lab) checkRules(ctx context.Context, p *plan.Plan) (_ string, err error) {
	defer step.Catch(&err)
	e := l.PairOf(p, "milan/pod1", "rome/pod1")
	defer step.Must(probe.NewNameServer(e.To, BackendPort)).Close()
	to := netip.AddrPortFrom(e.Target, BackendPort)
	old := step.Must(probe.NewCall(ctx, e.From, to))
	if _, _, err := old.Ask(); err != nil {
		return "", fmt.Errorf("before any rule: %w", err)
	}
	rule := func(action string) func(Object) {
		return func(config Object) {
			config["rules"] = []Object{{"name": "check", "from": "remote", "protocol": "tcp",
				"ports": fmt.Sprint(BackendPort), "action": action}}
		}
	}
	// A lost packet is noticed by a missing answer in less time than the first retransmission; a
	// new connection then waits for its second SYN.
	for _, stage := range []struct {
		change func(Object)
		want   error
		what   string
	}{
		{rule("reject"), unix.ENETUNREACH, "reject"}, // as in Liqo's rules
		{nil, nil, "no rule"},
		{rule("drop"), os.ErrDeadlineExceeded, "drop"},
		{nil, nil, "no rule again"},
	} {
		step.Try(l.Reload(ctx, 0, stage.change))
		c, err := probe.NewCall(ctx, e.From, to)
		if err == nil {
			_, _, err = c.Ask()
			c.Conn.Close()
		}
		if errors.Is(err, context.DeadlineExceeded) || os.IsTimeout(err) {
			err = os.ErrDeadlineExceeded
		}
		if !errors.Is(err, stage.want) {
			return "", fmt.Errorf("%s: new connection: %v, want %v", stage.what, err, stage.want)
		}
	}
	if _, _, err := old.Ask(); err != nil {
		return "", fmt.Errorf("the connection from before: %w", err)
	}
	return "reject, drop and no rule take effect", nil
}

const (
	reloadBytes = 24 << 20 // each way, of a stream under reloads
	minReloads  = 12       // while all streams run
)

// checkReload changes both configurations again and again while streams of every kind run: between
// pods, from behind a pod, to and from mapped hosts.
func (l *Lab) checkReload(ctx context.Context, p *plan.Plan) (_ string, err error) {
	defer step.Catch(&err)
	rome, milan := &p[0], &p[1]
	u := func(e *probe.Ends, local netip.Addr, c *plan.Cluster) *probe.Ends {
		e.Local, e.WantSource = local, c.Seen(c.UnknownSource())
		return e
	}
	mapped := &probe.Ends{From: l.HostOf(p, "milan/pod1"), To: l.Host("rome/client").At(rome.Mapped),
		Target: rome.Seen(rome.MappedAs)}
	mapped.WantSource = milan.Seen(mapped.From.Address)
	back := &probe.Ends{From: l.HostOf(p, "milan/client"), Local: milan.Mapped, To: l.HostOf(p, "rome/pod2"),
		WantSource: milan.Seen(milan.MappedAs)}
	back.Target = rome.Seen(back.To.Address)
	streams := []*probe.Ends{
		l.PairOf(p, "rome/pod1", "milan/pod1"), l.PairOf(p, "rome/pod2", "milan/pod2"), l.PairOf(p, "milan/pod1",
			"rome/pod2"),
		u(l.PairOf(p, "rome/pod1", "milan/pod2"), rome.BehindFirst, rome), u(l.PairOf(p, "rome/node2", "milan/pod1"),
			rome.Nodes[1].Underlay, rome),
		u(l.PairOf(p, "rome/client", "milan/pod1"), rome.Client, rome), mapped, back,
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bulk := int64(reloadBytes)
	switch {
	case l.Options.Sandbox.Runsc != "":
		bulk /= lessPart
	case l.Options.Inside != IPv4:
		bulk /= 2
	}
	ended := make(chan error, len(streams))
	for _, e := range streams {
		go func() {
			_, err := e.Stream(ctx, bulk, bulk)
			if err != nil {
				err = fmt.Errorf("%s: %w", e.Path(), err)
			}
			ended <- err
		}()
	}
	reloads, whole, left := 0, 0, len(streams)
	for left > 0 {
		i := reloads % len(plan.V4)
		step.Try(l.Reload(ctx, i, l.change(i, reloads/len(plan.V4))))
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
	for i := range plan.V4 {
		step.Try(l.Reload(ctx, i, nil))
	}
	return fmt.Sprintf("%d reloads, %d MiB, SHA-256 equal", reloads, 2*int64(len(streams))*bulk>>20), nil
}

// ThirdNode is a node of clusters[i] that exists in no lab.
func (l *Lab) ThirdNode(i int) Object {
	var address []netip.Addr
	var pods []netip.Prefix
	for _, p := range l.Plans() {
		address, pods = append(address, netip.MustParseAddr(p.Text("10.80.0.77"))),
			append(pods, netip.MustParsePrefix(p.Text("10.0.77.0/24")))
	}
	outer := &l.Outer()[i]
	return Object{"name": outer.Name + "-node3", "vni": 77, "underlay": Spare(outer.Underlay),
		"address": OneOrBoth(address), "podCIDRs": pods}
}

// Spare is an address of a network that no host of a lab has.
func Spare(of netip.Prefix) netip.Addr {
	return plan.Behind(of.Masked().Addr(), 99)
}

// change returns one of several changes that affect none of the streams.
func (l *Lab) change(i, n int) func(config Object) {
	c := &l.Plans()[0][i]
	return []func(Object){
		func(config Object) {
			config["rules"] = []Object{
				{"name": "no-ssh", "from": "remote", "protocol": "tcp", "ports": "22", "action": "drop"},
				{"name": "no-dns", "protocol": "udp", "ports": "53", "action": "reject"},
			}
		},
		func(config Object) {
			Set(config, "geneve.nodes", append(NodesOf(config), l.ThirdNode(i)))
		},
		func(config Object) {
			nat := config["nat"].(Object)
			nat["addresses"] = append(nat["addresses"].([]Object), Object{"external": Spare(c.External),
				"internal": Spare(c.Outside)})
			nat["services"] = nat["services"].([]Object)[:1]
		},
		func(config Object) {
			// The same nodes in another order: their connections must not be affected.
			nodes := NodesOf(config)
			nodes[0], nodes[1] = nodes[1], nodes[0]
		},
		func(config Object) { Set(config, "nat.services", nil) },
		func(config Object) { config["cpus"] = min(2, runtime.NumCPU()) },
		nil,
	}[n%7]
}

// cpusStreams is how many TCP streams run at full rate while the number of Ps changes.
const cpusStreams = 8

// checkCPUs gives both gateways a second P and takes it back, while connections are open and
// streams run at full rate.
func (l *Lab) checkCPUs(ctx context.Context, n int, pause time.Duration) (string, error) {
	return l.besideFlows(ctx, n, func(c *flowSet, exchange func() error) (figure string, err error) {
		defer step.Catch(&err)
		streams := step.Must(l.Pair("rome/pod2", "milan/pod2").StartBulk(cpusStreams, 0))
		defer func() { err = errors.Join(err, streams.Stop()) }()
		step.Try(c.measureUndisturbed())
		undisturbed := time.Duration(streams.Pause.Swap(0))
		figure, err = l.eachGateway(c, pause, func(p *Process) error {
			i := plan.V4.Index(p.Host.Name)
			if err := l.Reload(ctx, i, func(config Object) { config["cpus"] = 2 }); err != nil {
				return err
			}
			return l.Reload(ctx, i, nil)
		}, exchange)
		longest := time.Duration(streams.Pause.Load())
		if err == nil && longest > pause {
			err = fmt.Errorf("a stream paused for %v, want at most %v", longest.Round(time.Millisecond), pause)
		}
		return fmt.Sprintf("%s; %d streams at full rate ≤ %d ms, undisturbed %d ms", figure, cpusStreams,
			longest.Milliseconds(), undisturbed.Milliseconds()), err
	})
}
