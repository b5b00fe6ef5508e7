//go:build !nokube

package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"culvert/cmd/internal/cli"
	"culvert/gateway"
	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/kube"
	"culvert/kube/election"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// peeringGateway adapts a gateway for the source of its Peering.
type peeringGateway struct {
	taughtGateway
	elected *electing
}

// Trouble returns the gateway's latest log message about its peer, or, if the peer answers, about a
// path that not all packets pass.
func (g peeringGateway) Trouble(answers bool) string { return trouble(g.Findings(), answers) }

func trouble(findings []health.Finding, answers bool) string {
	for _, f := range findings {
		narrow := f.Cause == health.NarrowPeer || f.Cause == health.NarrowNode
		if answers && narrow || !answers && f.Kind == health.OfPeer && f.Cause.Level == health.Warning {
			return f.Text
		}
	}
	return ""
}

// closed are the causes that let nothing pass. Others may be one-way traffic or a full link.
var closed = []*health.Cause{health.NeverThere, health.NodeRefuses, health.NodeNobody, health.NodeUnroutable,
	health.NodeSilent, health.NodeDeaf,
	health.WrongUnderlay, health.WrongVNI, health.WrongEncap, health.WrongInner, health.WrongAddress,
	health.WrongGateway}

// NodeTroubles returns the problem, without its remedy, of each node through which nothing passes.
func (g peeringGateway) NodeTroubles() map[string]string {
	all := map[string]string{}
	for _, f := range g.Findings() {
		if slices.Contains(closed, f.Cause) {
			all[f.Of] = f.Problem
		}
	}
	return all
}

// Standbys implements peering.Running.
func (g peeringGateway) Standbys() (all []peering.Standby, alone bool) {
	for _, f := range g.Followers() {
		all = append(all, peering.Standby{Pod: f.Pod, Whole: !f.NoFullCopy, Lacks: f.Lacks()})
	}
	return all, g.elected == nil || len(all) == 0 && g.elected.Alone()
}

// peeringSource adapts the source of a Peering for the gateway's status.
type peeringSource struct {
	*peering.GatewaySource
	name string
}

// Resources implements inspect.Teacher.
func (s peeringSource) Resources() control.Resources {
	return control.Resources{Gateway: s.name, Ready: s.Ready(), Waiting: append([]string{}, s.Waiting()...),
		LeftOut: []control.LeftOut{}}
}

// keyPause is how long a gateway waits before it requests its key again.
const keyPause = 2 * time.Second

// runKube runs the gateway of a Peering until ctx ends.
func runKube(ctx context.Context, flags *kubeFlags) error {
	k, err := flags.read()
	client, clientErr := newClient(k.kubeconfig)
	if err := errors.Join(err, clientErr); err != nil {
		return err
	}
	klog.SetLogger(klog.Logger{}) // the source logs what matters
	log, err := newLogger(k.base.Log.Level, k.base.Log.Format)
	if err != nil {
		return err
	}
	name := k.namespace + "/" + k.name
	entry := log.WithField("peering", name)
	for { // the API server may be away
		keys, err := peering.ReadKeys(ctx, client, k.namespace, peering.SecretName(k.name))
		if err == nil {
			k.base.WireGuard.PrivateKey, k.base.WireGuard.PresharedKey = keys.Private, keys.Preshared
			break
		}
		entry.WithError(err).Warn("no key yet; trying again")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(keyPause):
		}
	}
	source := peering.NewGatewaySource(client, peering.Self{Name: k.name, Namespace: k.namespace, Node: k.node,
		Pod: k.pod, Addresses: k.addresses,
		Elected: k.base.Elected}, k.nodeNamespace, entry)
	e := k.elect(client, source, entry)
	if e != nil {
		e.begin()
	}
	defer e.end()
	base, err := source.Await(ctx, k.base, e.speaks)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	g, err := gateway.New(base, setLimits(0), log)
	if err != nil {
		return err
	}
	g.LearnFrom(peeringSource{source, name})
	if e != nil {
		g.ElectedBy(e)
		e.learned = source.Ready
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	// a leaving gateway keeps following the objects until it has left
	sourcing, stopSource := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSource()
	var tasks sync.WaitGroup
	var anew error
	tasks.Go(func() {
		anew = source.Run(sourcing, peeringGateway{taughtGateway{g, true}, e})
		stop()
	})
	err = runElected(running, g, e)
	if e == nil || e.deserted {
		source.End()
	}
	stopSource()
	tasks.Wait()
	if err := errors.Join(err, anew); err != nil {
		return cli.Failed(err)
	}
	return nil
}

// elect returns the election among the replicas of a Peering's gateway; nil if there are none.
func (k *kubeGateway) elect(client dynamic.Interface, source *peering.GatewaySource, log *logrus.Entry) *electing {
	return elect(client, k.base, k.election, election.Options{
		Namespace: k.namespace, Name: "culvert-" + k.name, Pod: k.pod, Changed: source.Wake,
		Label: election.Label{Name: "culvert.io/active", Selector: "app=culvert-gateway,culvert.io/peering=" + k.name},
	}, kube.Event{APIVersion: objects.Culvert, Kind: peering.KindPeering,
		Metadata: objects.Metadata{Name: k.name, Namespace: k.namespace}},
		kube.Reporter{Self: k.namespace + "/" + k.name, Node: k.node, Instance: k.pod}, log)
}
