package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// serviceCalls is how many connections show how a service balances: the chance that one of two
// backends gets all of them is 1 in 2^39.
const serviceCalls = 40

// serviceCheck reaches services of one cluster from a pod of the other.
type serviceCheck struct {
	lab     *Lab
	plan    *plan.Plan
	cluster int // of the services, in the plan
	from    *netns.Host
	others  *netns.Host // the other pod there
}

// serviceChecks test services with two backends.
func (l *Lab) serviceChecks(p *plan.Plan) []Check {
	var checks []Check
	for i := range p {
		c, peer := &p[i], &p[1-i]
		s := &serviceCheck{lab: l, plan: p, cluster: i, from: l.HostOf(p, peer.Name+"/pod1"),
			others: l.HostOf(p, peer.Name+"/pod2")}
		for _, service := range []struct {
			name    string
			address netip.Addr
			run     func(context.Context, netip.AddrPort) (string, error)
		}{
			{"service balance", c.Balanced, s.balance},
			{"service affinity", c.Sticky, s.affinity},
			{"service removal", c.Balanced, s.removal("balanced", false)},
			{"service reset", c.Strict, s.removal("strict", true)},
		} {
			to := netip.AddrPortFrom(c.Seen(service.address), ServicePort)
			checks = append(checks, Check{service.name, s.from.Name + " → " + to.String(),
				func(ctx context.Context) (_ string, err error) {
					defer step.Catch(&err)
					defer step.Must(l.ServeBackends(p, i))()
					return service.run(ctx, to)
				}})
		}
	}
	return checks
}

// ServeBackends makes both pods of a cluster answer as backends of its services until stop is
// called.
func (l *Lab) ServeBackends(p *plan.Plan, cluster int) (stop func(), err error) {
	var servers []*probe.NameServer
	stop = func() {
		for _, s := range servers {
			s.Close()
		}
	}
	for _, n := range p[cluster].Nodes {
		server, err := probe.NewNameServer(l.HostOf(p, p[cluster].Name+"/"+n.PodName), BackendPort)
		if err != nil {
			stop()
			return nil, err
		}
		servers = append(servers, server)
	}
	return stop, nil
}

// calls makes connections one after another and counts who answered.
func (s *serviceCheck) calls(ctx context.Context, from *netns.Host, to netip.AddrPort, n int) (map[string]int, error) {
	want := s.plan.Of(from.Name).Seen(from.Address).String()
	seen := make(map[string]int)
	for range n {
		c, err := probe.NewCall(ctx, from, to)
		if err != nil {
			return seen, fmt.Errorf("connection %d to %s: %w", len(seen)+1, to, err)
		}
		name, source, err := c.Ask()
		c.Conn.Close()
		if err != nil {
			return seen, fmt.Errorf("%s: %w", to, err)
		}
		if source != want {
			return seen, fmt.Errorf("%s saw source %s, want %s", name, source, want)
		}
		seen[name]++
	}
	return seen, nil
}

func (s *serviceCheck) balance(ctx context.Context, to netip.AddrPort) (_ string, err error) {
	defer step.Catch(&err)
	seen := step.Must(s.calls(ctx, s.from, to, serviceCalls))
	if len(seen) != 2 {
		return "", fmt.Errorf("%d connections: %s, want two backends", serviceCalls, count(seen))
	}
	return count(seen), nil
}

// affinity requires one backend for all connections of each client, even after a change of the
// configuration.
func (s *serviceCheck) affinity(ctx context.Context, to netip.AddrPort) (_ string, err error) {
	defer step.Catch(&err)
	figure := ""
	for _, from := range []*netns.Host{s.from, s.others} {
		seen := step.Must(s.calls(ctx, from, to, serviceCalls/2))
		step.Try(s.lab.Reload(ctx, s.cluster, nil))
		more := step.Must(s.calls(ctx, from, to, serviceCalls/2))
		for name, n := range more {
			seen[name] += n
		}
		if len(seen) != 1 {
			return "", fmt.Errorf("connections of %s: %s, want one backend", from.Name, count(seen))
		}
		if figure != "" {
			figure += "; "
		}
		figure += count(seen)
	}
	return figure, nil
}

// oneEach opens a connection to each backend.
func (s *serviceCheck) oneEach(ctx context.Context, to netip.AddrPort) (map[string]*probe.Call, error) {
	calls := make(map[string]*probe.Call)
	for range serviceCalls {
		c, err := probe.NewCall(ctx, s.from, to)
		if err != nil {
			return calls, err
		}
		name, _, err := c.Ask()
		if err != nil {
			return calls, errors.Join(err, c.Conn.Close())
		}
		if calls[name] == nil {
			calls[name] = c
		}
		if len(calls) == 2 {
			return calls, nil
		}
	}
	return calls, fmt.Errorf("%d connections reached %d backends, want 2", serviceCalls, len(calls))
}

// removal removes the first pod from a service: its connection goes on, or is reset where onRemoval
// says so, and new ones go to the other pod.
func (s *serviceCheck) removal(service string, resets bool) func(context.Context, netip.AddrPort) (string, error) {
	return func(ctx context.Context, to netip.AddrPort) (_ string, err error) {
		defer step.Catch(&err)
		c := &s.plan[s.cluster]
		leaving, staying := c.Name+"/"+c.Nodes[0].PodName, c.Name+"/"+c.Nodes[1].PodName
		calls := step.Must(s.oneEach(ctx, to))
		defer func() { err = errors.Join(err, s.lab.Reload(ctx, s.cluster, nil)) }()
		step.Try(s.lab.Reload(ctx, s.cluster, func(config Object) {
			for _, o := range config["nat"].(Object)["services"].([]Object) {
				if o["name"] == service+c.Suffix() {
					o["backends"] = o["backends"].([]Object)[1:]
				}
			}
		}))
		for name, call := range calls {
			got, _, err := call.Ask()
			if resets && name == leaving {
				if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, io.EOF) {
					return "", fmt.Errorf("connection to %s after it left: %v, want it reset", leaving, err)
				}
			} else if err != nil || got != name {
				return "", fmt.Errorf("connection to %s after %s left: answer from %q: %w", name, leaving, got, err)
			}
		}
		seen := step.Must(s.calls(ctx, s.from, to, serviceCalls/2))
		if len(seen) != 1 || seen[staying] == 0 {
			return "", fmt.Errorf("new connections after %s left: %s", leaving, count(seen))
		}
		if resets {
			return fmt.Sprintf("1 goes on, 1 reset, new ones: %s", count(seen)), nil
		}
		return fmt.Sprintf("2 go on, new ones: %s", count(seen)), nil
	}
}
