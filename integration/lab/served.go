package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
)

// Node ports of the Services served by rome's first node, by externalTrafficPolicy.
const (
	clusterNodePort = 30090
	localNodePort   = 30091
)

// mostCalls is how often a Service is called until each of its three endpoints has answered: the
// chance that one does not is 1 in 2^56.
const mostCalls = 100

// servedCheck calls Services of rome's first node, which culvert node serves meanwhile. Their
// endpoints are both pods of rome and one of milan.
type servedCheck struct {
	lab       *Lab
	plan      *plan.Plan
	endpoints []*netns.Host
}

// servedChecks call the Services that a node serves, from pods, from the node and from a client
// outside.
func (l *Lab) servedChecks(p *plan.Plan) []Check {
	rome, s := &p[0], &servedCheck{lab: l, plan: p}
	for _, name := range []string{"rome/pod1", "rome/pod2", "milan/pod1"} {
		s.endpoints = append(s.endpoints, l.HostOf(p, name))
	}
	// everything that the node masquerades is an unknown source
	node, u := l.HostOf(p, "rome/node1"), rome.Seen(rome.UnknownSource())
	pod, other, client := s.endpoints[0], s.endpoints[1], l.HostOf(p, "rome/client")
	at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	var checks []Check
	for _, c := range []struct {
		name string
		from *netns.Host
		to   netip.AddrPort
		sees []netip.Addr // by endpoint; the zero Addr: it must not answer; nil: the call is refused
	}{
		// a pod reaches itself through the node
		{"serve clusterIP", pod, at(rome.Served, ServicePort), []netip.Addr{node.Address, pod.Address, u}},
		{"serve clusterIP", node, at(rome.Served, ServicePort), []netip.Addr{node.Address, node.Address, u}},
		{"serve nodePort", client, at(node.Address, clusterNodePort), []netip.Addr{node.Address, node.Address, u}},
		{"serve nodePort", other, at(node.Address, clusterNodePort), []netip.Addr{node.Address, node.Address, u}},
		{"serve Local", client, at(node.Address, localNodePort), []netip.Addr{client.Address, {}, {}}},
		{"serve no port", pod, at(rome.Served, BackendPort), nil}, // endpoints would answer there if packets arrived
		{"serve no port", node, at(rome.Served, BackendPort), nil},
	} {
		checks = append(checks, Check{c.name, c.from.Name + " → " + c.to.String(),
			func(ctx context.Context) (string, error) {
				return s.withEndpoints(ctx, func() (string, error) { return s.answers(ctx, c.from, c.to, c.sees) })
			}})
	}
	if err := netns.Probe("tun"); err != nil {
		return []Check{{"serve", node.Name, func(context.Context) (string, error) {
			return fmt.Sprintf("%d checks not made: %v", len(checks), err), nil
		}}}
	}
	return checks
}

// withEndpoints runs a check while the node serves and all endpoints answer.
func (s *servedCheck) withEndpoints(ctx context.Context, run func() (string, error)) (figure string, err error) {
	for _, h := range s.endpoints {
		server, err := probe.NewNameServer(h, BackendPort)
		if err != nil {
			return "", err
		}
		defer server.Close()
	}
	rome := &s.plan[0]
	endpoints := []Object{{"address": s.plan[1].Seen(s.endpoints[2].Address), "port": BackendPort}}
	for _, n := range rome.Nodes {
		endpoints = append(endpoints, Object{"address": n.Pod, "port": BackendPort, "node": n.Name})
	}
	err = s.lab.ServeOn(ctx, rome, []Object{
		{"name": "web", "clusterIP": rome.Served, "port": ServicePort, "nodePort": clusterNodePort,
			"endpoints": endpoints},
		{"name": "near", "port": ServicePort, "nodePort": localNodePort, "externalTrafficPolicy": "Local",
			"endpoints": endpoints},
	}, func() error {
		figure, err = run()
		return err
	})
	return figure, err
}

// ServeOn calls do while the first node of c serves Services by a second culvert node, beside the
// one with the tunnel.
func (l *Lab) ServeOn(ctx context.Context, c *plan.Cluster, serve []Object, do func() error) (err error) {
	const file = "services.yaml"
	err = l.WriteYAML(c.Name, file, Object{"name": c.Nodes[0].Name,
		"services": Object{"addresses": []netip.Addr{c.Nodes[0].Underlay},
			"pods": []netip.Prefix{c.PodCIDR}, "serviceCIDRs": []netip.Prefix{c.Services}, "metrics": MetricsAddress,
			"serve": serve}})
	if err != nil {
		return err
	}
	p, err := l.startProgram(l.Host(c.Name+"/"+c.Nodes[0].Name), l.Options.Culvert, true, "node", "--config",
		l.Path(c.Name, file))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(p)) }()
	p.ready = func(ctx context.Context, h *netns.Host) error {
		_, err := gatewayGet(ctx, h, "/healthz") // answered only once everything is served
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	if err := p.waitReady(ctx); err != nil {
		return err
	}
	return do()
}

// answers calls until all expected endpoints have answered, and requires each to see the expected
// source. If an endpoint must not answer, it makes all mostCalls calls.
func (s *servedCheck) answers(ctx context.Context, from *netns.Host, to netip.AddrPort, sees []netip.Addr) (string,
	error) {
	if sees == nil {
		return "refused", probe.Refuses(ctx, from, to, unix.ECONNREFUSED)
	}
	want, seen := make(map[string]string), make(map[string]int)
	var sources []string
	for i, a := range sees {
		if a.IsValid() {
			want[s.endpoints[i].Name] = a.String()
			sources = append(sources, a.String())
		}
	}
	calls := 0
	for ; calls < mostCalls && (len(want) < len(sees) || len(seen) < len(want)); calls++ {
		c, err := probe.NewCall(ctx, from, to)
		if err != nil {
			return "", fmt.Errorf("call %d to %s: %w", calls+1, to, err)
		}
		name, source, err := c.Ask()
		if err = errors.Join(err, c.End()); err != nil {
			return "", fmt.Errorf("call %d to %s: %w", calls+1, to, err)
		}
		if source != want[name] {
			return "", fmt.Errorf("call %d to %s: %s answered and saw %s, want %v", calls+1, to, name, source, want)
		}
		seen[name]++
	}
	if len(seen) < len(want) {
		return "", fmt.Errorf("%d calls to %s: %s, want all of %v", calls, to, count(seen), want)
	}
	figure := "seen: " + strings.Join(sources, ", ")
	if len(want) == 1 {
		figure = "calls: " + count(seen) + ", " + figure
	}
	return figure, nil
}
