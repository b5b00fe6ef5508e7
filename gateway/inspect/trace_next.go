package inspect

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"culvert/gateway/control"
	"culvert/nat"
	"culvert/nat/packet"
)

// A nextTrace waits for a packet to explain, on the packet path.
type nextTrace struct {
	of     *Source
	names  *view
	filter nat.ConnFilter
	all    bool         // filter selects everything
	own    []netip.Addr // addresses of the gateway itself, whose packets are skipped
	found  atomic.Bool
	trace  chan *control.Trace // has room for one
}

// offer explains the current packet just before the engine decides about it, if none was explained yet and the filter
// selects it.
func (n *nextTrace) offer(p *packet.Packet, data []byte, in nat.Link, now nat.Time) {
	if n.found.Load() || n.isOwn(p) || !n.all && !n.selects(p, in, now) || n.found.Swap(true) {
		return
	}
	n.trace <- n.of.explain(n.names, bytes.Clone(data), p.SegmentSize, in, now)
}

// isOwn reports whether a packet is for an address of the gateway itself that the filter does not name. Most such
// packets are answers to probes.
func (n *nextTrace) isOwn(p *packet.Packet) bool {
	if n.own == nil || p.Fault() != packet.NoFault {
		return false
	}
	var t packet.Tuple
	p.Tuple(&t, 0)
	return slices.Contains(n.own, t.Destination())
}

// selects reports whether the filter selects a packet, by its own addresses or by those of its connection.
func (n *nextTrace) selects(p *packet.Packet, in nat.Link, now nat.Time) bool {
	if p.Fault() != packet.NoFault {
		return false
	}
	c := nat.ConnInfo{Out: [2]nat.Link{in, in}}
	p.Tuple(&c.Original, in)
	c.Reply = c.Original.Reply(in)
	if n.filter.Selects(&c) {
		return true
	}
	c, ok := n.of.Path.Engine.FindConnection(&c.Original, now)
	return ok && n.filter.Selects(&c)
}

// traceNext explains the next packet that a filter selects.
func (src *Source) traceNext(ctx context.Context, v *view, f *control.Filter, yield func(*control.Trace) bool) error {
	filter, err := v.filter(f)
	if err != nil {
		return err
	}
	n := &nextTrace{of: src, names: v, filter: filter, all: f.IsZero(), trace: make(chan *control.Trace, 1)}
	if len(f.Addresses) == 0 {
		own, _ := v.config.WireGuard.Role.TunnelAddresses()
		n.own = slices.AppendSeq(slices.Collect(own.All()), v.config.Geneve.GatewayAddress.All())
	}
	v.places() // off the packet path
	busy := false
	src.look(func(l *lookersNow) {
		if busy = l.next != nil; !busy {
			l.next = n
		}
	})
	if busy {
		return errTraces
	}
	defer src.look(func(l *lookersNow) { l.next = nil })
	yield(nil) // tells the client that waiting has started
	select {
	case <-ctx.Done():
	case t := <-n.trace:
		yield(t)
	}
	return nil
}

var errTraces = fmt.Errorf("somebody else waits for a packet already; end that first")
