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
	"sync"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/gateway/node/links"
	"culvert/gateway/node/page"
	"culvert/gateway/node/remote"
	"culvert/kube/peering"
)

// nodeMachine is this node as the source of its Peerings sees it.
type nodeMachine struct {
	links   *links.Set
	routes  *remote.Keeper
	remotes *remotes
}

// Apply makes links and routes the desired ones.
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

// run gives the node the links and routes that Peerings ask for until ctx ends, and runs beside, which serves Services and may be nil, meanwhile.
func (p *nodePeerings) run(ctx context.Context, k *nodeKube, status *linkStatus, beside func(context.Context) error) error {
	chooseCollection()
	client, err := newClient(k.kubeconfig)
	if err != nil {
		return err
	}
	klog.SetLogger(klog.Logger{}) // what matters of it, the source says
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	entry := log.WithField("node", k.name)
	set := links.New(uint16(p.links.port), entry)
	set.Alone()
	seen, err := page.New("--links-metrics", p.links.metrics, nil, set.Metrics, set.Fault)
	if err != nil {
		return err
	}
	defer seen.Close()
	if beside == nil { // which says so, too
		entry.WithField("version", control.ReadVersion()).Info("node starting")
	}
	source := peering.NewNodeSource(client, k.name, p.gateways, p.own, p.apiServer(k.kubeconfig), entry)
	m := nodeMachine{set, remote.New(entry), &k.remotes}
	nodeLoad.Devices(set.Devices)
	nodeLoad.Socket("gateways", set.Socket)
	err = both(ctx, beside, func(ctx context.Context) error {
		var tasks sync.WaitGroup
		running, stop := context.WithCancel(ctx)
		tasks.Go(seen.Serve)
		tasks.Go(func() { nodeLoad.Run(running, k.name, true, entry) })
		tasks.Go(func() { source.Run(running, m) })
		tasks.Go(func() { status.show(running, k.name, entry, set.Show, source.Show) })
		tasks.Go(func() { m.routes.Run(running, source.ReportRoutes) })
		err := set.Run(running, func(all []links.Status) {
			m.routes.Look() // a link may have come
			source.ReportLinks(all)
		})
		stop()
		seen.Close()
		tasks.Wait()
		return err
	})
	if err != nil {
		return cli.Failed(err)
	}
	return p.links.leave(context.WithoutCancel(ctx), client, entry, beside != nil, removeAll)
}

// apiServer returns the addresses of the API server that the configuration names. Others have Services or Nodes that name them.
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

// removeAll removes what runs with --kube have made, and nothing while one runs.
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

// removePeerings removes what earlier runs have left, and prints it.
func removePeerings(w io.Writer) error {
	removed, err := removeAll()
	for _, what := range removed {
		fmt.Fprintf(w, "removed %s\n", what)
	}
	if err != nil {
		return cli.Failed(err)
	}
	return nil
}
