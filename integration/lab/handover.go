package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	handPause = 50 * time.Millisecond
	handRow   = 10 // hand-overs in a row
	otherPort = 51999
)

// handOver starts a gateway that takes over from p, and waits until p has ended.
func (l *Lab) handOver(ctx context.Context, p *Process) (*Process, error) {
	p.stopped.Store(true)
	args := append(slices.DeleteFunc(slices.Clone(p.Args), func(a string) bool { return a == "--takeover" }), "--takeover")
	next, err := l.startProcess(p.Host, false, args...) // it is appended to the list
	if err != nil {
		return nil, err
	}
	next.ready = p.ready
	select {
	case <-p.ended:
	case <-next.ended:
		l.processes = l.processes[:len(l.processes)-1]
		return nil, fmt.Errorf("%s does not take over (%w): %s", next.Name(), exitError(next.err), tail(next.Log, 3))
	case <-ctx.Done():
		return nil, fmt.Errorf("%s does not end: %w", p.Name(), ctx.Err())
	}
	l.replace(p, next)
	if p.err != nil {
		return nil, fmt.Errorf("%s: ended with %w; see %s", p.Name(), p.err, p.Log)
	}
	cut, err := next.lastCut()
	if err != nil {
		return nil, err
	}
	l.cut = max(l.cut, cut)
	return next, next.waitReady(ctx)
}

// lastCut returns how long neither process carried packets in the last hand-over, as the process that has taken over logged it.
func (p *Process) lastCut() (time.Duration, error) {
	log, err := ReadLines(p.Log)
	if err != nil {
		return 0, err
	}
	const says = " pause="
	i := strings.LastIndex(log, says)
	if i < 0 {
		return 0, fmt.Errorf("%s: no line with%s", p.Log, says)
	}
	value := log[i+len(says):]
	cut, err := time.ParseDuration(strings.Trim(value[:strings.IndexAny(value, " \n")], `"`))
	if err != nil {
		return 0, fmt.Errorf("%s:%s%s: %w", p.Log, says, value[:min(len(value), 20)], err)
	}
	return cut, nil
}

// checkHandOver replaces both gateways again and again, with the same configuration and with others.
func (l *Lab) checkHandOver(ctx context.Context, n, row int, pause time.Duration) (string, error) {
	hand := func(p *Process) error {
		_, err := l.handOver(ctx, p)
		return err
	}
	l.cut = 0
	return l.besideFlows(ctx, n, func(c *flowSet, exchange func() error) (string, error) {
		once, err := l.eachGateway(c, pause, hand, exchange)
		if err != nil {
			return "", err
		}
		changed, err := l.eachGateway(c, pause, func(p *Process) error { return l.handOverChanged(ctx, p) }, exchange)
		if err != nil {
			return "", fmt.Errorf("another configuration: %w", err)
		}
		many, err := l.eachGateway(c, pause, func(p *Process) error {
			for range row {
				var err error
				if p, err = l.handOver(ctx, p); err != nil {
					return err
				}
			}
			return nil
		}, exchange)
		if err != nil {
			return "", fmt.Errorf("%d in a row: %w", row, err)
		}
		return fmt.Sprintf("%s; another configuration: %s; %d in a row: %s; neither process carried packets for ≤ %d ms",
			once, changed, row, many, l.cut.Milliseconds()), nil
	})
}

// handOverChanged hands over to a gateway with rules (for the client also with another port), and then to one with its nodes in another order.
func (l *Lab) handOverChanged(ctx context.Context, p *Process) error {
	i := clusters.index(p.Host.Name)
	for _, k := range []int{0, 3} {
		config := l.gatewayConfig(i)
		l.change(i, k)(config)
		if wireguard := config["wireguard"].(object); k == 0 && fmt.Sprint(wireguard["role"]) == "client" {
			wireguard["listenPort"] = otherPort
		}
		if err := l.writeYAML(clusters[i].Name, "gateway.yaml", config); err != nil {
			return err
		}
		var err error
		if p, err = l.handOver(ctx, p); err != nil {
			return err
		}
	}
	return l.writeYAML(clusters[i].Name, "gateway.yaml", l.gatewayConfig(i))
}
