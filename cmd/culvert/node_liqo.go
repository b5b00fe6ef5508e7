//go:build !nokube

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/gateway/node/links"
	"culvert/gateway/node/page"
	"culvert/gateway/node/remote"
	"culvert/gateway/node/services/steer"
	"culvert/kube"
	"culvert/kube/fabric"
	"culvert/kube/objects"
)

// run gives the node the links that Liqo's resources request; see runLinks.
func (l *nodeLiqo) run(ctx context.Context, k *nodeKube, status *linkStatus, beside func(context.Context) error) error {
	return l.carry(ctx, k, status, beside, func(client dynamic.Interface, set *links.Set,
		log *logrus.Entry) linkSource {
		s, guard := fabric.NewSource(client, k.name, log), remote.NewGuard(log)
		return linkSource{s.Show, s.Report, guard, []func(context.Context){
			func(ctx context.Context) { s.Run(ctx, set.Apply) },
			func(ctx context.Context) { guard.Run(ctx, func([]remote.Status) {}) },
		}}
	})
}

// A linkSource decides which links a node has.
type linkSource struct {
	show   func(*control.NodeStatus)
	report func([]links.Status) // called with the states of the links
	keeper *remote.Keeper       // keeps pods out of the links' tunnels
	tasks  []func(context.Context)
}

// carry runs the links that a source requests, and beside, which may be nil, until ctx ends. Then
// it removes what it has made, if that is unwanted; see leave.
func (l *nodeLiqo) carry(ctx context.Context, k *nodeKube, status *linkStatus, beside func(context.Context) error,
	newSource func(dynamic.Interface, *links.Set, *logrus.Entry) linkSource) error {
	chooseCollection()
	client, err := newClient(k.kubeconfig)
	if err != nil {
		return err
	}
	klog.SetLogger(klog.Logger{}) // the source logs what matters
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	entry := log.WithField("node", k.name)
	set := links.New(uint16(l.port), entry)
	if l.daemonSet != "" { // it starts this pod before the one that it replaces has ended
		set.Succeed()
	}
	seen, err := page.New("--links-metrics", l.metrics, nil, set.Metrics, set.Fault)
	if err != nil {
		return err
	}
	defer seen.Close()
	alone := beside == nil // otherwise beside logs its start, and watches the load
	if alone {
		entry.WithField("version", control.ReadVersion()).Info("node starting")
	}
	source := newSource(client, set, entry)
	set.AlsoDropped(source.keeper.Drops)
	protect := func(all []links.Status) {
		source.keeper.Protect(l.tunnels(all))
		source.report(all)
	}
	nodeLoad.Devices(set.Devices)
	nodeLoad.Socket("gateways", set.Socket)
	err = both(ctx, beside, func(ctx context.Context) error {
		var tasks sync.WaitGroup
		running, stop := context.WithCancel(ctx)
		tasks.Go(seen.Serve)
		if alone {
			tasks.Go(func() { nodeLoad.Run(running, k.name, true, entry) })
		}
		tasks.Go(func() { status.show(running, k.name, entry, set.Show, source.show, guardShow(source.keeper)) })
		for _, task := range source.tasks {
			tasks.Go(func() {
				select {
				case <-set.Held():
					task(running)
				case <-running.Done():
				}
			})
		}
		err := set.Run(running, protect)
		stop()
		seen.Close()
		tasks.Wait()
		return err
	})
	if err != nil {
		return cli.Failed(err)
	}
	select {
	case <-set.Held():
	default: // another pod has what is here, and cleans up
		return nil
	}
	return l.leave(context.WithoutCancel(ctx), k, entry, !alone, removeAll)
}

// tunnels returns the tunnels of links.
func (l *nodeLiqo) tunnels(all []links.Status) (tunnels []remote.Tunnel) {
	for _, st := range all {
		t := remote.Tunnel{Gateway: st.Link.Remote, Port: uint16(l.port)}
		if st.State == links.Kernel {
			t.Kernel = st.Link.Name
		}
		if t.Gateway.IsValid() && !slices.Contains(tunnels, t) {
			tunnels = append(tunnels, t)
		}
	}
	return tunnels
}

// guardShow returns what adds to a status whether pods are kept out of tunnels.
func guardShow(k *remote.Keeper) func(*control.NodeStatus) {
	return func(n *control.NodeStatus) {
		tunnels, fault := k.Guarded()
		for _, t := range tunnels {
			n.Guarded = append(n.Guarded, netip.AddrPortFrom(t.Gateway, t.Port))
		}
		if fault != "" {
			n.Findings = append(n.Findings, control.Finding{Level: "warning", Kind: "node", Of: n.Name, Text: fault})
		}
	}
}

// How a process that ends asks whether its DaemonSet stays. Kubernetes kills it after 30 s.
const (
	leaveTime   = 3 * time.Second        // for an answer
	leavePause  = 250 * time.Millisecond // after a refusal
	refusedTime = 20 * time.Second       // of refusals, after which nobody wants it
)

// leave cleans up if the DaemonSet of this process is unwanted: it calls remove for what this
// process has made and, if it served Services, removes their rules and devices. Otherwise all stays
// for the next process.
func (l *nodeLiqo) leave(
	ctx context.Context, k *nodeKube, log logrus.FieldLogger, served bool, remove func() ([]string, error),
) error {
	config, err := restConfig(k.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kube.NewClient(config)
	if err != nil {
		return err
	}
	if !l.unwanted(ctx, client, readiness(config), log) {
		return nil
	}
	removed, err := remove()
	if served {
		found, e := steer.RemoveRemains(true)
		removed, err = append(removed, fmt.Sprintf("%d rules and devices of Services", found)), errors.Join(err, e)
	}
	for _, what := range removed {
		log.WithField("object", what).Info("removed with the DaemonSet")
	}
	if err != nil {
		return cli.Failed(err)
	}
	return nil
}

// leaveServices removes the rules and devices of Services if the DaemonSet of this process is
// unwanted. If another pod of it still serves, as after a hand-over, that pod removes them.
func (l *nodeLiqo) leaveServices(ctx context.Context, k *nodeKube) error {
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	return l.leave(ctx, k, log.WithField("node", k.name), true, func() ([]string, error) { return nil, nil })
}

// unwanted reports whether the DaemonSet that this process belongs to, or its namespace, is gone or
// being deleted. Without an answer it is not. Uninstalling everything at once may first remove the
// right to ask. So a process is unwanted too if the API server refuses it for refusedTime. One that
// is not ready refuses everybody until it has read all roles and accounts.
func (l *nodeLiqo) unwanted(
	ctx context.Context, client dynamic.Interface, ready func(context.Context) bool, log logrus.FieldLogger,
) bool {
	if l.daemonSet == "" {
		return false
	}
	namespace, name, _ := strings.Cut(l.daemonSet, "/")
	daemonSets := client.Resource(objects.DaemonSets).Namespace(namespace)
	namespaces := client.Resource(objects.Namespaces)
	began, noRight := time.Now(), 0
	for {
		gone, err := deleted(ctx, daemonSets, name)
		if err == nil && !gone && namespace != metav1.NamespaceSystem { // which no API server lets anybody delete
			// The pods of a deleted namespace end before their DaemonSet is deleted.
			if gone, err = deleted(ctx, namespaces, namespace); isRefusal(err) {
				if noRight++; noRight > 1 { // while it may still ask for the DaemonSet
					err = nil
				}
			}
		}
		switch {
		case gone:
			return true
		case err == nil:
			log.Info("everything stays for the next process")
			return false
		case !isRefusal(err) || !ready(ctx):
			log.WithError(err).Info(
				"everything stays for the next process: the API server does not say whether the DaemonSet does")
			return false
		case time.Since(began) >= refusedTime:
			return true
		}
		time.Sleep(leavePause)
	}
}

// deleted reports whether an object is gone or being deleted.
func deleted(ctx context.Context, of dynamic.ResourceInterface, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	o, err := of.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && o.GetDeletionTimestamp() != nil, err
}

func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// readiness returns a function that reports whether the API server does not say that it is still
// starting. It asks without the token, whose account may be deleted, and takes a refusal for a yes.
func readiness(c *rest.Config) func(context.Context) bool {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, leaveTime)
		defer cancel()
		client, err := rest.UnversionedRESTClientFor(dynamic.ConfigFor(rest.AnonymousClientConfig(c)))
		if err == nil {
			_, err = client.Get().AbsPath("/readyz").DoRaw(ctx)
		}
		return err == nil || isRefusal(err)
	}
}
