package lab

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

const (
	handPause = 50 * time.Millisecond
	handRow   = 10 // hand-overs in a row
)

// handOver starts a gateway that takes over from p, and waits until p has ended.
func (l *Lab) handOver(ctx context.Context, p *Process) (_ *Process, err error) {
	defer step.Catch(&err)
	p.stopped.Store(true)
	args := append(slices.DeleteFunc(slices.Clone(p.Args), func(a string) bool { return a == "--takeover" }),
		"--takeover")
	next := step.Must(l.startProgram(p.Host, l.Options.Culvert, false, args...))
	next.ready = p.ready
	select {
	case <-p.ended:
	case <-next.ended:
		return nil, fmt.Errorf("%s does not take over (%w): %s", next.Name(), next.HowEnded(), Tail(next.Log, 3))
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("%s does not end: %w", p.Name(), ctx.Err()), end(next))
	}
	l.add(next)
	if p.err != nil {
		return nil, fmt.Errorf("%s: ended with %w; see %s", p.Name(), p.err, p.Log)
	}
	cut := step.Must(next.lastCut())
	l.cut = max(l.cut, cut)
	return next, next.waitReady(ctx)
}

var pauseOf = regexp.MustCompile(` pause="?([^" \n]+)`)

// lastCut returns how long neither process carried packets in the last hand-over, as the process
// that has taken over logged it.
func (p *Process) lastCut() (time.Duration, error) {
	log, err := ReadLines(p.Log)
	if err != nil {
		return 0, err
	}
	said := pauseOf.FindAllStringSubmatch(log, -1)
	if len(said) == 0 {
		return 0, fmt.Errorf("%s: no line with %s", p.Log, pauseOf)
	}
	return time.ParseDuration(said[len(said)-1][1])
}

// checkHandOver replaces both gateways again and again, with the same configuration and with
// others.
func (l *Lab) checkHandOver(ctx context.Context, n, row int, pause time.Duration) (string, error) {
	times := func(n int) func(*Process) error {
		return func(p *Process) (err error) {
			defer step.Catch(&err)
			for range n {
				p = step.Must(l.handOver(ctx, p))
			}
			return nil
		}
	}
	l.cut = 0
	return l.besideFlows(ctx, n, func(c *flowSet, exchange func() error) (figure string, err error) {
		for _, way := range []struct {
			name string
			hand func(*Process) error
		}{
			{"", times(1)},
			{"another configuration: ", func(p *Process) error { return l.handOverChanged(ctx, p) }},
			{fmt.Sprintf("%d in a row: ", row), times(row)},
		} {
			more, err := l.eachGateway(c, pause, way.hand, exchange)
			if err != nil {
				return "", fmt.Errorf("%s%w", way.name, err)
			}
			figure += way.name + more + "; "
		}
		return fmt.Sprintf("%sneither process carried packets for ≤ %d ms", figure, l.cut.Milliseconds()), nil
	})
}

// handOverChanged hands over to a gateway with rules, and then to one with its nodes in another
// order.
func (l *Lab) handOverChanged(ctx context.Context, p *Process) (err error) {
	defer step.Catch(&err)
	i := plan.V4.Index(p.Host.Name)
	for _, k := range []int{0, 3} {
		config := l.GatewayConfig(i)
		l.change(i, k)(config)
		step.Try(l.WriteYAML(plan.V4[i].Name, "gateway.yaml", config))
		p = step.Must(l.handOver(ctx, p))
	}
	return l.WriteYAML(plan.V4[i].Name, "gateway.yaml", l.GatewayConfig(i))
}
