package verify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options say what to test, and whom to inform meanwhile.
type Options struct {
	Contexts [2]string // as the user calls the clusters
	AllNodes bool      // every pair of nodes, not a ring of at most ten
	Progress func(string)
}

const (
	bulkBytes  = 10 << 20
	patience   = 8               // seconds until a first answer
	startTime  = time.Minute     // of a pod
	askTime    = 2 * time.Minute // of a pod that asks
	perPod     = 8               // targets: a container's termination message has at most 4096 bytes
	serverName = "server-"
)

// A run is a run in progress.
type run struct {
	o         Options
	clusters  [2]Cluster
	sides     [2]*Side
	chosen    [2][]string // nodes to test
	servers   [2][]Pod
	namespace string
	token     string
	families  []bool // to try, by whether they are IPv6
	report    *Report
	imported  [2]string // namespace in which a cluster has imported the run's Service; "" = none
}

// Run tests two clusters and returns the results. An error means that it could not test, or that
// the removal failed. It removes everything that it created, even when ctx ends.
func Run(ctx context.Context, a, b Cluster, o Options) (report *Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxRun)
	defer cancel()
	r := &run{o: o, clusters: [2]Cluster{a, b}, token: strings.ToLower(rand.Text()[:16]),
		report: &Report{Paths: []Path{}, Findings: []Finding{}}}
	r.namespace = "culvert-verify-" + r.token[:6]
	if o.Progress == nil {
		r.o.Progress = func(string) {}
	}
	if err := errors.Join(r.both(func(i int) error { return r.mayI(ctx, i) })...); err != nil {
		return nil, err
	}
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	early := &judge{} // which the pods of this run need not find
	early.starting(r.sides[0])
	early.starting(r.sides[1])
	for _, f := range early.all {
		r.o.Progress(f.Cluster + ": " + f.Text)
	}
	defer func() { err = errors.Join(err, r.end(context.WithoutCancel(ctx))) }()
	paths, err := r.ask(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.read(ctx); err != nil { // by now, gateways may know about what the pods have met
		return nil, err
	}
	for i := range paths {
		paths[i].from, paths[i].to = r.sides[r.sideOf(paths[i].from)], r.sides[r.sideOf(paths[i].to)]
	}
	r.report.Findings = append(r.report.Findings, Judge(r.sides[0], r.sides[1], paths)...)
	r.report.Paths = append(r.report.Paths, paths...)
	r.report.OK = !slices.ContainsFunc(r.report.Findings, func(f Finding) bool { return f.Wrong }) &&
		!slices.ContainsFunc(paths, func(p Path) bool { return len(p.Faults) > 0 })
	return r.report, nil
}

// both calls do for both clusters at the same time, and returns the errors with the names of their
// clusters.
func (r *run) both(do func(i int) error) []error {
	errs := make([]error, 2)
	var tasks sync.WaitGroup
	for i := range errs {
		tasks.Go(func() {
			if err := do(i); err != nil {
				errs[i] = fmt.Errorf("%s: %w", r.o.Contexts[i], err)
			}
		})
	}
	tasks.Wait()
	return errs
}

func (r *run) mayI(ctx context.Context, i int) error {
	missing, err := r.clusters[i].Missing(ctx, r.namespace)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("you may not %s", strings.Join(missing, "; nor "))
	}
	return err
}

// read reads both clusters, and finds their Peerings.
func (r *run) read(ctx context.Context) error {
	var all [2]*Snapshot
	if err := errors.Join(r.both(func(i int) (err error) {
		all[i],
			err = r.clusters[i].Read(ctx)
		return err
	})...); err != nil {
		return err
	}
	p, q, err := pair(all[0], all[1])
	if err != nil {
		return err
	}
	r.sides = [2]*Side{{r.o.Contexts[0], all[0], p}, {r.o.Contexts[1], all[1], q}}
	return nil
}

// sideOf returns the index of a side, or of the same cluster's earlier Side.
func (r *run) sideOf(s *Side) int {
	if s.name() == r.sides[0].name() {
		return 0
	}
	return 1
}

// ask runs the pods, and returns their results.
func (r *run) ask(ctx context.Context) ([]Path, error) {
	for i, s := range r.sides {
		nodes, of := s.chosen(r.o.AllNodes)
		r.chosen[i] = nodes
		r.report.Clusters = append(r.report.Clusters, Joined{Context: s.Context, Cluster: s.name(),
			Peering: s.Peering.Metadata.Name,
			Gateway: s.gatewayNode(), Asked: len(nodes), Nodes: of})
		if len(nodes) == 0 {
			r.report.Findings = append(r.report.Findings,
				Finding{s.name(), true,
					"no node that is ready has a tunnel to the gateway yet, so that no pod can ask"})
		}
		if s.deployment(s.Peering.Metadata.Name) == nil { // Judge reports it
			r.chosen[i] = nil
		}
	}
	if len(r.chosen[0]) == 0 || len(r.chosen[1]) == 0 {
		return nil, nil
	}
	err := errors.Join(r.both(func(i int) error {
		removed, err := r.clusters[i].Begin(ctx, r.namespace)
		for _, name := range removed {
			r.o.Progress(fmt.Sprintf("%s: removed namespace %s, which an earlier run has left", r.o.Contexts[i], name))
		}
		return err
	})...)
	if err != nil {
		return nil, err
	}
	r.o.Progress(fmt.Sprintf("starting pods on %d nodes of %s and %d of %s", len(r.chosen[0]), r.sides[0].name(),
		len(r.chosen[1]), r.sides[1].name()))
	if err := errors.Join(r.both(func(i int) error { return r.serve(ctx, i) })...); err != nil {
		return nil, err
	}
	r.families = families(r.sides[0], r.sides[1])
	paths := r.paths()
	exported, err := r.exports(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.both(func(i int) error { return r.nodePorts(ctx, i, paths) })...); err != nil {
		return nil, err
	}
	paths = append(append(paths, exported...), r.names()...)
	r.o.Progress(fmt.Sprintf("asking on %d paths", len(paths)))
	return paths, errors.Join(r.both(func(i int) error { return r.askers(ctx, i, paths) })...)
}

// serve starts the answering pods on one cluster's nodes.
func (r *run) serve(ctx context.Context, i int) error {
	d := r.sides[i].program()
	var objects []map[string]any
	for n, node := range r.chosen[i] {
		objects = append(objects, podObject(d, fmt.Sprint(serverName, n), node, "serve", "--token", r.token,
			"--name", node))
	}
	if _, err := r.clusters[i].Create(ctx, r.namespace, objects...); err != nil {
		return err
	}
	pods, err := r.await(ctx, i, startTime, len(objects), serverName, func(p *Pod) bool {
		return p.Phase == "Running" && p.Ready && p.Addresses.IsValid()
	})
	r.servers[i] = pods
	return err
}

// await waits until done holds for all count pods whose names begin with a text, and returns them
// sorted by the number in their names.
func (r *run) await(ctx context.Context, i int, most time.Duration, count int, beginning string,
	done func(*Pod) bool) ([]Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		pods, err := r.clusters[i].Pods(ctx, r.namespace)
		pods = slices.DeleteFunc(pods, func(p Pod) bool { return !strings.HasPrefix(p.Name, beginning) })
		late := slices.IndexFunc(pods, func(p Pod) bool { return !done(&p) })
		if err == nil && late < 0 && len(pods) == count {
			numbered := make([]Pod, count)
			for _, p := range pods {
				var n int
				if _, err := fmt.Sscanf(p.Name[len(beginning):], "%d", &n); err == nil && n < count {
					numbered[n] = p
				}
			}
			return numbered, nil
		}
		over := err == nil && late >= 0 && (pods[late].Phase == "Failed" || pods[late].Phase == "Succeeded")
		if !over {
			select {
			case <-ctx.Done():
				over = true
			case <-time.After(look):
			}
		}
		switch {
		case !over:
		case errors.Is(ctx.Err(), context.Canceled):
			return nil, ctx.Err()
		case err != nil:
			return nil, err
		case late >= 0:
			p := &pods[late]
			return nil, fmt.Errorf("pod %s on node %s did not do its part within %s: it is %s%s", p.Name, p.Node, most,
				p.Phase, colon(p.Trouble))
		default:
			return nil, fmt.Errorf("%d of %d pods are there: did somebody remove namespace %s?", len(pods),
				count, r.namespace)
		}
	}
}

// end removes everything that the run created.
func (r *run) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxEnd)
	defer cancel()
	r.o.Progress("removing what this run has made")
	err := errors.Join(r.both(func(i int) error { return r.clusters[i].End(ctx, r.namespace) })...)
	var notes [2]string
	err = errors.Join(err, errors.Join(r.both(func(i int) (err error) {
		notes[i], err = r.forget(ctx, i)
		return err
	})...))
	r.note(notes)
	return err
}

// note adds what is to be said of each cluster to the report.
func (r *run) note(notes [2]string) {
	for i, note := range notes {
		if note != "" {
			r.report.Findings = append(r.report.Findings, Finding{r.sides[i].name(), false, note})
		}
	}
}
