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

// vote is a pod's part in an election and in copies of the table: it starts and ends with the
// gateway.
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
	before   time.Duration // until when it knew that when it was last looked at
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
	v := &vote{pod: p, gateway: p.gateway, own: own, role: role.Standby, began: p.w.now(), rested: p.knows,
		hindered: e.lines.deserted(at)}
	v.ctx, p.vote = ctx, v
	log := logrus.NewEntry(silent())
	v.elector = election.New(election.Options{
		Client: &apiClient{server: e.api, vote: v}, Namespace: "sim", Name: leaseName, Pod: p.name, Retry: retryTime,
		Deadline: 2 * time.Second,
		Times:    role.Times{Lease: leaseTime, Patience: peerPatience}, Label: election.Label{Selector: "app=gateway",
			Name: labelName},
		ReplicaPort: gateway.ReplicaPort, Log: log, Causes: kube.NewCauses(log),
	})
	dial := func(ctx context.Context, to netip.AddrPort) (net.Conn, error) { return e.lines.dial(ctx, v, at, to) }
	v.replica = p.gateway.ReplicateOver(gateway.ReplicateOptions{Name: p.name, Heard: v.elector.Heard},
		e.lines.listen(v, at), dial)
	return v.run
}

// line is where the pod's table is copied.
func (p *pod) line() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(p.side.index), byte(1 + p.number)}),
		gateway.ReplicaPort)
}

func (v *vote) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer v.tasks.Wait()
	defer cancel()
	v.tasks.Go(func() { v.elector.Run(ctx) })
	learned := func() bool { return true }
	v.elector.CatchUp(ctx, v.replica, learned)
	v.driven.Store(true)
	v.elector.Drive(v, v.replica)
	v.tasks.Go(func() { v.elector.Copy(ctx, v.replica, learned) })
	return v.gateway.Run(ctx)
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

// step is called before and after whatever a pod does that others can see. It reports whether the
// pod is dead.
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

// die ends all that others can see of the pod. Unless all of its machine ends, its connections are
// reset.
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
