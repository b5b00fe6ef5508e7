package gateway

import (
	"fmt"
	"net"
	"sync"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/path"
	"culvert/gateway/replica"
	"culvert/gateway/role"
	"culvert/nat"
)

// ReplicaPort is the TCP port at which replicas of a gateway copy its table.
const ReplicaPort = 51841

// ReplicateOptions are how a gateway is copied to its other replicas.
type ReplicateOptions struct {
	Name   string               // of this replica: its pod's
	Listen string               // address and port
	Heard  func(message []byte) // takes messages of other replicas; must not block
}

// replicating is a gateway's part in copying its table between replicas.
type replicating struct {
	*replica.Replica
	listener net.Listener
	unheard  uint64 // unheard() when this gateway last forwarded; guarded by Gateway.applying

	mu   sync.Mutex
	took []byte // the latest facts of the active gateway; nil = none since this one forwarded; +checklocks:mu
}

// Replicate opens the listener at which other replicas of the gateway copy its table, and returns
// the Replica that copies theirs. It must be called once, before Run, which serves and closes both.
// The gateway's configuration must be Elected.
func (g *Gateway) Replicate(o ReplicateOptions) (*replica.Replica, error) {
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listener for the other replicas: %w; free the port", err)
	}
	return g.ReplicateOver(o, l, nil), nil
}

// ReplicateOver is Replicate on a network of the caller's.
func (g *Gateway) ReplicateOver(o ReplicateOptions, l net.Listener, dial replica.Dial) *replica.Replica {
	c, _ := g.current.Get()
	r := &replicating{listener: l}
	r.Replica = replica.New(replica.Options{
		Log: g.log, Key: c.WireGuard.PrivateKey, Name: o.Name, Version: control.ReadVersion().String(),
		Engine: g.engine, Now: path.Now,
		LinkName: func(link nat.Link) string {
			_, links := g.current.Get()
			return links.Name(link)
		},
		Link: func(name string) (nat.Link, bool) {
			_, links := g.current.Get()
			return links.Find(name)
		},
		Config: g.current.Identity, Facts: r.facts(g), Took: func(facts []byte) { g.take(r, facts) },
		Heard: o.Heard, Dial: dial,
		Restored: g.life.RestoredAsOf,
	})
	g.replicating = r
	g.inspect.Replication = r.Status
	return r.Replica
}

// Followers returns the replicas that copy the gateway's table.
func (g *Gateway) Followers() []control.Stream {
	if g.replicating == nil {
		return nil
	}
	return g.replicating.Status().Followers
}

// asOf returns when this table of connections last equalled that of the forwarding gateway.
func (g *Gateway) asOf() time.Time {
	if g.replicating == nil {
		return time.Now()
	}
	return g.replicating.AsOf()
}

// facts returns a function that says what a successor has to know: on a standby, what the active
// gateway has sent.
func (r *replicating) facts(g *Gateway) func() []byte {
	return func() []byte {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.took != nil && g.Role() == role.Standby {
			return r.took
		}
		return g.life.Facts()
	}
}

// take adopts what the active gateway knows besides connections.
func (g *Gateway) take(r *replicating, facts []byte) {
	if err := g.life.Adopt(facts); err != nil {
		g.log.WithError(err).Warn("the table of the active gateway was not copied completely")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = facts
}

// adopt makes this gateway use what it copied from another one, before the sockets send or receive.
func (g *Gateway) adopt() {
	if g.replicating != nil {
		g.replicating.Lead()
	}
	g.engine.Thaw(path.Now())
}

// rested is called once the gateway no longer sends anything.
func (g *Gateway) rested() {
	if r := g.replicating; r != nil {
		r.mu.Lock()
		r.took = nil
		r.mu.Unlock()
		r.Rest()
		r.unheard = g.unheard()
	}
	g.engine.Freeze()
}

// unheard returns how many packets were dropped because another replica forwards.
func (g *Gateway) unheard() uint64 {
	return g.path.Inbound().Dropped(path.DropStandby) + g.path.Outbound().Dropped(path.DropStandby)
}
