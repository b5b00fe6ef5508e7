package sim

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"culvert/gateway"
	"culvert/gateway/replica"
	"culvert/gateway/role"
	"culvert/kube"
	"culvert/kube/election"
)

// Those of an election, shorter than by default, so that a schedule has room for many.
const (
	leaseTime    = 3 * time.Second
	retryTime    = 600 * time.Millisecond
	peerPatience = 3 * time.Second
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// vote is a pod's part in an election and in copies of the table, as cmd/culvert has it: it starts and ends with the gateway.
type vote struct {
	pod     *pod
	gateway *gateway.Gateway
	own     *sockets
	elector *election.Elector
	replica *replica.Replica
	tasks   sync.WaitGroup
	ctx     context.Context
	dead    atomic.Bool  // it was killed: nothing that it still does has an effect
	driven  atomic.Bool  // it may forward
	renewed atomic.Int64 // when it last wrote the Lease, by the world's clock

	// For the goroutine that calls run of the world.
	role     role.Role
	began    time.Duration
	rested   time.Duration // until when it knows what its side has done, as one that has forwarded
	copied   time.Duration // likewise, as one that has a copy
	leaving  bool
	full     bool // it has had a whole table
	hindered bool // at some time it could not have copied the other one's table
	again    bool // it is to be started when it has left

	mu    sync.Mutex
	lines []*line // +checklocks:mu
	steps int     // that it takes until it is killed; 0: any number; +checklocks:mu
}

// campaign returns what runs a gateway that takes part in an election.
func (p *pod) campaign(ctx context.Context, own *sockets) (run func(context.Context) error) {
	e, at := p.side.replicas, p.line()
	v := &vote{pod: p, gateway: p.gateway, own: own, role: role.Standby, began: p.w.now(), rested: p.knows, hindered: e.lines.deserted(at)}
	v.ctx, p.vote = ctx, v
	log := logrus.NewEntry(silent())
	v.elector = election.New(election.Options{
		Client: &apiClient{server: e.api, vote: v}, Namespace: "sim", Name: leaseName, Pod: p.name, Retry: retryTime, Deadline: 2 * time.Second,
		Times: role.Times{Lease: leaseTime, Patience: peerPatience}, Label: election.Label{Selector: "app=gateway", Name: labelName},
		Log: log, Causes: kube.NewCauses(log),
	})
	dial := func(ctx context.Context, to netip.AddrPort) (net.Conn, error) { return e.lines.dial(ctx, v, at, to) }
	v.replica = p.gateway.ReplicateOver(gateway.ReplicateOptions{Name: p.name, Heard: v.elector.Heard}, e.lines.listen(v, at), dial)
	return v.run
}

// line is where the pod's table is copied.
func (p *pod) line() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(p.side.index), byte(1 + p.number)}), gateway.ReplicaPort)
}

func (v *vote) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer v.tasks.Wait()
	defer cancel()
	v.tasks.Go(func() { v.elector.Run(ctx) })
	v.catchUp(ctx)
	v.driven.Store(true)
	v.elector.Drive(v, v.replica)
	v.tasks.Go(func() { v.follow(ctx) })
	return v.gateway.Run(ctx)
}

const (
	followLook  = time.Second
	catchUpTime = 3 * time.Second
)

// catchUp copies the table of another pod, if there is one that has it.
func (v *vote) catchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	if at := v.source(ctx); at.IsValid() {
		v.replica.Follow(at)
		v.replica.Whole(ctx)
	}
}

// follow has a standby copy the pod that has the Lease, and an active one that nobody copies tell the other one that it has it.
func (v *vote) follow(ctx context.Context) {
	tick := time.NewTicker(followLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		is := v.elector.Role()
		if is != role.Standby && (is != role.Active || v.replica.Followed()) {
			continue
		}
		switch at, claim := v.source(ctx), v.elector.Claim(); {
		case !at.IsValid():
		case is == role.Standby:
			v.replica.Follow(at)
		case claim != nil:
			v.replica.Visit(ctx, at, claim)
		}
	}
}

// source returns where the pod is whose table is to be copied.
func (v *vote) source(ctx context.Context) (at netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, followLook)
	defer cancel()
	all, err := v.elector.Client.Resource(podResource).Namespace("sim").List(ctx, metav1.ListOptions{})
	if err != nil {
		return at
	}
	for i := range all.Items { // there are two
		if x := &all.Items[i]; x.GetName() != v.pod.name {
			ip, _, _ := unstructured.NestedString(x.Object, "status", "podIP")
			at = netip.AddrPortFrom(addr(ip), gateway.ReplicaPort)
		}
	}
	return at
}

// Become implements election.Gateway.
func (v *vote) Become(to role.Role) {
	v.own.keepPeer()
	v.gateway.Become(to)
	v.own.keepPeer()
	v.pod.w.after(0, func() { v.became(to) })
}

// Signs implements election.Gateway, and so does Call.
func (v *vote) Signs() role.Signs { return v.gateway.Signs() }
func (v *vote) Call()             { v.gateway.Call() }

// leave ends the gateway as SIGTERM does.
func (v *vote) leave() {
	if v.leaving || v.dead.Load() {
		return
	}
	v.leaving = true
	v.tasks.Go(func() {
		v.elector.Leave(v.ctx)
		v.pod.w.after(0, func() {
			if p := v.pod; p.vote == v && p.stop != nil && !v.dead.Load() {
				if p.halt(); v.again {
					p.resume()
				}
			}
		})
	})
}

// step is called before and after whatever a pod does that others can see. It reports whether the pod is dead.
func (v *vote) step() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.steps > 0 {
		if v.steps--; v.steps == 0 {
			v.dead.Store(true) // from now on
			v.pod.w.after(0, func() {
				if v.pod.vote == v {
					v.pod.w.logEvent("%s dies at this step", v.pod.name)
					v.pod.kill(false)
				}
			})
		}
	}
	return v.dead.Load()
}

// die ends all that others can see of the pod. Unless all of its machine ends, its connections are reset.
func (v *vote) die(machine bool) {
	v.pod.side.sample()
	v.pod.side.extend()
	v.dead.Store(true)
	v.own.close()
	l := v.pod.side.lines
	if machine {
		l.set(func(l *lines) { l.silent[v.pod.line()] = true })
	}
	v.mu.Lock()
	all := slices.Clone(v.lines)
	v.mu.Unlock()
	for _, x := range all {
		if !machine {
			x.out.finish(syscall.ECONNRESET)
		}
		x.Close()
	}
}

// hold notes a line, and release that it is closed.
func (v *vote) hold(l *line) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lines = append(v.lines, l)
}

func (v *vote) release(l *line) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lines = slices.DeleteFunc(v.lines, func(x *line) bool { return x == l })
}
