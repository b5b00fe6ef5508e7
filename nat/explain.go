package nat

import (
	"fmt"
	"net/netip"
	"strconv"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Explain decides about a packet as Process would now, and traces each step to t, which may be nil.
// It rewrites p as Process would, ready for a Cutter, but leaves the Engine unchanged.
func (e *Engine) Explain(p *packet.Packet, in Link, now Time, t rules.Tracer) Verdict {
	d := &decision{trace: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.decide(d, p, in, now)
	d.apply(p)
	return d.verdict
}

// check traces whether a check allows the packet, and returns ok.
func (d *decision) check(name string, ok bool) bool {
	if d.trace != nil {
		d.trace.Trace(rules.Step{Name: name, Passed: ok})
	}
	return ok
}

// traceConnection traces the connection of hit.
func (e *Engine) traceConnection(d *decision, evaluated bool) {
	c := d.hit.conn
	direction, known := "original", "this packet meets the rules"
	if d.hit.direction == reply {
		direction = "reply"
	}
	if evaluated {
		known = "rules and routes as its first packet met them"
	}
	t := e.table.tuple(c, d.hit.direction)
	d.trace.Trace(rules.Step{
		Kind: rules.StepConnection, Name: strconv.FormatUint(e.id(d.hit.number), 10), Passed: true,
		Detail: fmt.Sprintf("%s, direction %s, mark %d; %s", c.state, direction, c.mark, known),
		Source: netip.AddrPortFrom(t.Source(), t.SourcePort()), Destination: netip.AddrPortFrom(t.Destination(),
			t.DestinationPort()),
	})
}
