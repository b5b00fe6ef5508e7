//go:build !nokube

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"culvert/cmd/internal/cli"
	"culvert/gateway/node/links"
	"culvert/gateway/node/remote"
	"culvert/kube/peering"
)

// nodeMachine adapts this node for the source of its Peerings.
type nodeMachine struct {
	links   *links.Set
	routes  *remote.Keeper
	remotes *remotes
}

// Apply sets the desired links and routes.
func (m nodeMachine) Apply(all []links.Link, peers []remote.Peer) {
	m.links.Apply(all)
	peers = slices.Clone(peers)
	var led []netip.Prefix
	for i := range peers {
		peers[i].Services = m.remotes.services
		led = append(led, peers[i].Remote...)
	}
	m.routes.Apply(peers)
	m.remotes.set(led)
}

// SourceTo returns the address from which this node sends to another.
func (m nodeMachine) SourceTo(to netip.Addr) (netip.Addr, error) { return remote.SourceTo(to) }

// run gives the node the links and routes that Peerings request; see runLinks.
func (p *nodePeerings) run(ctx context.Context, k *nodeKube, status *linkStatus,
	beside func(context.Context) error) error {
	return p.links.carry(ctx, k, status, beside, func(client dynamic.Interface, set *links.Set,
		log *logrus.Entry) linkSource {
		set.Alone()
		s := peering.NewNodeSource(client, k.name, p.gateways, p.own, p.apiServer(k.kubeconfig), log)
		m := nodeMachine{set, remote.New(log), &k.remotes}
		report := func(all []links.Status) {
			m.routes.Look() // a link may have appeared
			s.ReportLinks(all)
		}
		return linkSource{s.Show, report, m.routes, []func(context.Context){
			func(ctx context.Context) { s.Run(ctx, m) },
			func(ctx context.Context) { m.routes.Run(ctx, s.ReportRoutes) },
		}}
	})
}

// apiServer returns the API server's addresses from the configuration. Its other addresses belong
// to Services or Nodes.
func (p *nodePeerings) apiServer(kubeconfig string) (all []netip.Addr) {
	hosts := []string{p.host}
	if kubeconfig != "" {
		if c, err := clientcmd.BuildConfigFromFlags("", kubeconfig); err == nil {
			if u, err := url.Parse(c.Host); err == nil {
				hosts = append(hosts, u.Hostname())
			}
		}
	}
	for _, host := range hosts {
		if a, err := netip.ParseAddr(host); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// removeAll removes what runs with --kube or --liqo have made. It removes nothing while one is
// running.
func removeAll() (removed []string, err error) {
	names, err := links.Remove()
	for _, name := range names {
		removed = append(removed, "link "+name)
	}
	if errors.Is(err, links.ErrHeld) {
		return removed, err
	}
	rest, e := remote.Remove()
	return append(removed, rest...), errors.Join(err, e)
}

// removeLinks removes what earlier runs left, and prints it.
func removeLinks(w io.Writer) error {
	removed, err := removeAll()
	for _, what := range removed {
		fmt.Fprintf(w, "removed %s\n", what)
	}
	if err != nil {
		return cli.Failed(err)
	}
	return nil
}
