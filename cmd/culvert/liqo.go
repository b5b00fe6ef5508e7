//go:build !nokube

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"culvert/cmd/internal/cli"
	"culvert/gateway"
	"culvert/gateway/control"
	"culvert/gateway/monitor"
	"culvert/kube"
	"culvert/kube/election"
	"culvert/kube/liqo"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// taughtGateway adapts a gateway for a source of resources, of Liqo or of a Peering.
type taughtGateway struct {
	*gateway.Gateway
	pings bool
}

// Check returns the result of the connection check. Without pings, the peer counts as connected.
func (g taughtGateway) Check() kube.Check {
	if !g.pings {
		return kube.Check{State: kube.CheckConnected}
	}
	s := g.Connection()
	states := map[monitor.CheckState]kube.CheckState{monitor.CheckConnected: kube.CheckConnected,
		monitor.CheckError: kube.CheckLost}
	return kube.Check{State: states[s.State], Latency: s.RTT, At: s.Measured}
}

// Speaks reports whether this gateway, of several, is the one that writes the status of resources.
func (g taughtGateway) Speaks() bool { return g.Role().Speaks() }

// liqoSource adapts a source of resources for the gateway's status.
type liqoSource struct {
	*liqo.Source
	name string
}

// Resources implements inspect.Teacher.
func (s liqoSource) Resources() control.Resources {
	waiting, leftOut := s.Source.Resources()
	r := control.Resources{Gateway: s.name, Ready: s.Ready(), Waiting: append([]string{}, waiting...),
		LeftOut: []control.LeftOut{}}
	for _, key := range slices.SortedFunc(maps.Keys(leftOut),
		func(a, b rules.Key) int { return strings.Compare(a.String(), b.String()) }) {
		r.LeftOut = append(r.LeftOut, control.LeftOut{Resource: key.String(), Reason: leftOut[key]})
	}
	return r
}

// runLiqo runs the gateway described by the flags until ctx ends.
func runLiqo(ctx context.Context, flags *liqoFlags) error {
	l, err := flags.read()
	client, clientErr := newClient(*flags.text["kubeconfig"])
	if err := errors.Join(err, clientErr); err != nil {
		return err
	}
	klog.SetLogger(klog.Logger{}) // the source logs what matters
	log, err := newLogger(l.base.Log.Level, l.base.Log.Format)
	if err != nil {
		return err
	}
	g, err := gateway.New(new(liqo.Site).Config(l.base), setLimits(0), log)
	if err != nil {
		return err
	}
	name := l.namespace + "/" + l.name
	source := liqo.NewSource(client, liqo.Identity{
		Self: liqo.Self{
			Name: l.name, Namespace: l.namespace, Remote: l.base.Peer, Node: l.node, Server: l.server(),
			MTU:         int(l.base.MTU),
			KeepUnknown: l.keepUnknown,
		},
		Base: l.base, UID: l.uid, Pod: l.pod, Refresh: l.refresh,
	}, log.WithField("gateway", name))
	for _, note := range l.notes {
		source.Note(note)
	}
	g.LearnFrom(liqoSource{source, name})
	e := l.elect(client, log.WithField("gateway", name))
	if e != nil {
		g.ElectedBy(e)
		e.learned = source.Ready
		e.begin()
	}
	defer e.end()
	// a leaving gateway keeps following the resources until it has left
	sourcing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	tasks.Go(func() { source.Run(sourcing, taughtGateway{g, l.pings}) })
	if err := runElected(ctx, g, e); err != nil {
		return cli.Failed(err)
	}
	return nil
}

// elect returns the election among the replicas of a gateway under Liqo; nil if it has none.
func (l *liqoArgs) elect(client dynamic.Interface, log *logrus.Entry) *electing {
	mode, kind := "client", "GatewayClient"
	if l.server() {
		mode, kind = "server", "GatewayServer"
	}
	return elect(client, l.base, l.election, election.Options{
		Namespace: l.namespace, Name: l.name + "." + l.namespace + "." + mode + ".connections.liqo.io", Pod: l.pod,
		Label: election.Label{Name: "networking.liqo.io/active",
			Selector: "networking.liqo.io/component=gateway,networking.liqo.io/gateway-name=" + l.name +
				",networking.liqo.io/gateway-namespace=" + l.namespace},
	}, kube.Event{Kind: kind, Metadata: objects.Metadata{Name: l.name, Namespace: l.namespace, UID: l.uid}},
		kube.Reporter{Self: l.namespace + "/" + l.name, Node: l.node, Instance: l.pod}, log)
}

// The client makes few requests in steady state; at the start, each resource gets a condition.
const (
	clientQPS   = 100
	clientBurst = 200
)

func newClient(kubeconfig string) (dynamic.Interface, error) {
	c, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kube.NewClient(c)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return client, nil
}

func restConfig(kubeconfig string) (c *rest.Config, err error) {
	if kubeconfig != "" {
		if c, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
	} else if c, err = rest.InClusterConfig(); err != nil {
		return nil, fmt.Errorf("--kubeconfig: missing, and this is no pod with a service account: %w", err)
	}
	c.QPS, c.Burst, c.UserAgent, c.WarningHandler = clientQPS, clientBurst, "culvert", rest.NoWarnings{}
	return c, nil
}
