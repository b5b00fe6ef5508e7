package nat

import (
	"net/netip"
	"sync"
)

// An Engine translates and filters the packets of one gateway. Its methods may be called from several goroutines; it is built for
// two, one per direction, that share one lock for the tens of nanoseconds that a packet needs it.
type Engine struct {
	key [16]byte // of port choice; constant for the life of the saved state

	mu       sync.Mutex
	snapshot *snapshot
	paths    pathTable
	limit    limiter
	stats    Stats
}

// New returns an Engine that works by c, or every fault of c. key keys the choice of ports: an Engine with the same key gives a
// packet in mid-stream the ports that an earlier one gave its connection.
func New(key [16]byte, c *Config) (*Engine, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	e := &Engine{key: key}
	e.paths.init()
	e.limit.init()
	e.snapshot = compile(c, 1)
	return e, nil
}

// Apply puts c in place of the configuration or, if c has faults, returns them all and changes nothing. Connections survive unless
// what they need is gone.
func (e *Engine) Apply(c *Config) error {
	if err := c.validate(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.snapshot = compile(c, e.snapshot.generation+1)
	return nil
}

// Stats are the counters of an Engine: per direction Received = Forwarded + Delivered + Σ Dropped, in packets after segmentation.
type Stats struct {
	Outbound, Inbound Direction
}

// A Direction counts the packets from the nodes (outbound) or from the tunnel (inbound).
type Direction struct {
	Received, Forwarded, Delivered uint64
	Answered                       uint64 // errors made by AppendError
	Untracked, Asymmetric          uint64 // of the forwarded
	Dropped                        [reasons]uint64
}

// Stats returns the counters.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

func (s *Stats) of(in Port) *Direction {
	if in == Tunnel {
		return &s.Inbound
	}
	return &s.Outbound
}

func (d *Direction) count(v *Verdict) {
	n := uint64(v.Packets)
	d.Received += n
	switch v.Action {
	case Forward:
		d.Forwarded += n
		if v.Untracked {
			d.Untracked += n
		}
		if v.Asymmetric {
			d.Asymmetric += n
		}
	case Deliver:
		d.Delivered += n
	case Drop:
		d.Dropped[v.Reason] += n
	}
}

// Process decides what becomes of the packet p, filled by Parse, that came in at port in at time now. If the verdict is
// Forward, the bytes of p have been rewritten and a Cutter makes of them what goes out at Verdict.Out; otherwise they are as they
// came. now must not run backwards by more than the skew between two callers.
func (e *Engine) Process(p *Packet, in Port, now Time) Verdict {
	e.mu.Lock()
	v := e.process(p, in, now)
	e.stats.of(in).count(&v)
	e.mu.Unlock()
	return v
}

// Refuse counts a packet from port in that Parse refused with reason r.
func (e *Engine) Refuse(in Port, r Reason) {
	v := drop(r)
	e.mu.Lock()
	e.stats.of(in).count(&v)
	e.mu.Unlock()
}

func (e *Engine) process(p *Packet, in Port, now Time) Verdict {
	if !p.parsed {
		return drop(max(p.fault, ReasonMalformed))
	}
	t := p.tuple(in)
	if in == Tunnel {
		return e.fromTunnel(p, &t, now)
	}
	return e.fromNode(p, &t, now)
}

// fromNode handles a packet that leaves the local cluster, in the order of architecture.md, Section 2.1 no. 1.
func (e *Engine) fromNode(p *Packet, t *tuple, now Time) Verdict {
	s := e.snapshot
	source, destination := t.source(), t.destination()
	// No. 7.
	if unusable(source) || s.own(source) || s.seen.Contains(source) {
		return drop(ReasonBadSource)
	}
	if destination == s.gateway {
		return Verdict{Action: Deliver, Packets: 1}
	}
	if unusable(destination) {
		return drop(ReasonBadDestination)
	}
	if !p.forwardable() {
		return drop(ReasonICMPType)
	}
	if p.icmpError {
		return e.relayFromNode(p, t, now)
	}
	pl := s.plan(t, p)
	if r, ok := s.seen.Lookup(destination); ok {
		if !s.pods.Contains(source) && !s.external.Contains(source) {
			return drop(ReasonUnknownSource)
		}
		pl.out = Tunnel
		pl.to.setDestination(r.apply(destination))
	} else if pl.out, ok = s.route(destination); !ok {
		return s.noRoute(destination)
	}
	return e.send(p, t, &pl, now)
}

// fromTunnel handles a packet that enters the local cluster.
func (e *Engine) fromTunnel(p *Packet, t *tuple, now Time) Verdict {
	s := e.snapshot
	source, destination := t.source(), t.destination()
	r, known := s.real.Lookup(source)
	// No. 7; the source of an ICMP error is looked at by relayFromTunnel.
	if !known && source != s.peer && !(p.icmpError && !unusable(source)) {
		return drop(ReasonBadSource)
	}
	if destination == s.tunnel {
		return Verdict{Action: Deliver, Packets: 1}
	}
	if unusable(destination) {
		return drop(ReasonBadDestination)
	}
	if !p.forwardable() {
		return drop(ReasonICMPType)
	}
	if p.icmpError {
		return e.relayFromTunnel(p, t, now)
	}
	if s.external.Contains(destination) {
		return drop(ReasonNoMapping)
	}
	pl := s.plan(t, p)
	if known {
		pl.to.setSource(r.apply(source))
	}
	var ok bool
	if pl.out, ok = s.route(destination); !ok {
		return s.noRoute(destination)
	}
	return e.send(p, t, &pl, now)
}

// plan returns a plan that changes nothing yet.
func (s *snapshot) plan(t *tuple, p *Packet) plan {
	pl := plan{to: *t, mtu: s.mtu, clamp: s.clamp[0]}
	if p.v6 {
		pl.clamp = s.clamp[1]
	}
	return pl
}

// send forwards a packet that has no connection.
func (e *Engine) send(p *Packet, t *tuple, pl *plan, now Time) Verdict {
	pl.translate(t)
	if p.partial && p.protocol == protocolTCP {
		pl.pathMTU = e.paths.lookup(pl.to.destination(), pl.out == Tunnel, now)
	}
	return p.forward(pl)
}

// noRoute is architecture.md, Section 2.1 no. 5.
func (s *snapshot) noRoute(destination netip.Addr) Verdict {
	if s.pods.Contains(destination) {
		return refuse(ReasonNoRoute, AnswerHostUnreachable)
	}
	return refuse(ReasonNoRoute, AnswerNetUnreachable)
}
