package inspect

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/echo"
	"culvert/gateway/health"
	"culvert/gateway/monitor"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Trace implements control.Source.
func (src *Source) Trace(o *control.TraceOptions, yield func(*control.Trace) bool) error {
	v := src.view()
	if o.Connection != 0 {
		return src.traceConnection(v, o.Connection, yield)
	}
	in, err := v.sender(o)
	if err != nil {
		return err
	}
	b, err := described(o)
	if err == nil {
		yield(src.Explain(b, in))
	}
	return err
}

// sender returns the link by which a described packet arrives.
func (v *view) sender(o *control.TraceOptions) (nat.Link, error) {
	name := o.From
	if name == config.Tunnel {
		return nat.Tunnel, nil
	}
	if name == "" {
		name = monitor.Owner(v.config, o.Source.Addr())
	}
	if link, ok := v.links[name]; ok {
		return link, nil
	}
	nodes := some(slices.Sorted(maps.Keys(v.links)))
	if name == "" {
		return 0, fmt.Errorf("from: no node has pods with the address %s; say where the packet comes in, by one of %s",
			o.Source.Addr(), nodes)
	}
	return 0, fmt.Errorf("from: no node %q; there are %s", name, nodes)
}

// traceConnection explains the packets that both ends of a connection would send next.
func (src *Source) traceConnection(v *view, id uint64, yield func(*control.Trace) bool) error {
	now := path.Now()
	c, ok := src.Path.Engine.Connection(id, now)
	if !ok {
		return fmt.Errorf("connection %d: there is none, or none any more; culvert connections lists them", id)
	}
	for _, next := range []struct {
		tuple *packet.Tuple
		reply bool
		in    nat.Link
	}{{&c.Original, false, c.Original.Link}, {&c.Reply, true, c.Out[0]}} {
		b, err := ofConnection(next.tuple, next.reply)
		if err != nil {
			return err
		}
		if !yield(src.explain(v, b, next.in, now)) {
			break
		}
	}
	return nil
}

// A tracer records the steps of the engine.
type tracer struct {
	names  *view
	places config.Places
	trace  *control.Trace
	routed netip.Addr // destination of the last route lookup
}

// LinkName implements rules.Tracer.
func (t *tracer) LinkName(l nat.Link) string { return t.names.link(l) }

// Trace implements rules.Tracer.
func (t *tracer) Trace(s rules.Step) {
	step := control.TraceStep{Kind: s.Kind.String(), Name: s.Name, Passed: s.Passed, Detail: s.Detail}
	if s.Origin != (rules.Origin{}) {
		step.Origin, step.Field = s.Origin.Key.String(), s.Origin.Field
		rule := ""
		if parts := strings.SplitN(s.Name, "/", 3); len(parts) == 3 { // table/chain/rule
			rule = parts[2]
		}
		if field := t.places.Field(s.Origin.Key, rule); field != "" {
			step.Field = field
		}
	}
	if s.Kind == rules.StepRoute {
		t.routed = s.Destination.Addr()
	}
	if s.Source.IsValid() {
		step.From, step.To = monitor.EndText(s.Source.Addr(), s.Source.Port()), monitor.EndText(s.Destination.Addr(),
			s.Destination.Port())
		if strings.HasPrefix(t.trace.Packet.Protocol, "icmp") { // a connection has the identifier in place of ports
			step.From, step.To = s.Source.Addr().String(), s.Destination.Addr().String()
		}
	}
	t.add(step)
}

func (t *tracer) add(s control.TraceStep) { t.trace.Steps = append(t.trace.Steps, s) }

// Explain returns what the gateway would do with packet b from link in. It changes nothing but b.
func (src *Source) Explain(b []byte, in nat.Link) *control.Trace {
	return src.explain(src.view(), b, in, path.Now())
}

// explain implements Explain.
func (src *Source) explain(v *view, b []byte, in nat.Link, now nat.Time) *control.Trace {
	t := &control.Trace{From: v.link(in), Packet: packetOf(b), Steps: []control.TraceStep{}}
	steps := &tracer{names: v, places: v.places(), trace: t}
	if !src.traceDecode(steps, in) {
		return t
	}
	var p packet.Packet
	p.Parse(b)
	d := src.Path.Engine.Explain(&p, in, now, steps)
	t.Verdict, t.Asymmetric = d.Action.String(), d.Asymmetric
	switch d.Action {
	case nat.Forward:
		src.traceForward(steps, &p, &d)
	case nat.Deliver:
		src.traceDelivery(t, &p, in)
	case nat.Drop:
		t.Reason, t.Told = d.Reason.String(), told(&p, &d)
		if d.MTU > 0 {
			t.MTU = d.MTU
		}
		if o, ok := path.Observe(&p, in); ok {
			drop := monitor.DropOf(v.config, &o, t.From)
			drop.Reason = t.Reason
			drop.Rule = lastRule(t.Steps)
			t.Why = drop.Why(&health.Peer{Name: v.config.Peer, Liqo: v.config.Liqo, Peering: v.config.Peering,
				Role: v.config.WireGuard.Role.String()})
		}
		src.traceNearest(steps, d.Reason)
	}
	return t
}

// lastRule names the last rule that matched. If a rule drops the packet, it is that rule.
func lastRule(steps []control.TraceStep) (name string) {
	for i := range steps {
		if s := &steps[i]; s.Kind == rules.StepRule.String() && s.Passed {
			name = s.Name
		}
	}
	return name
}

// packetOf describes an IP packet, which may be malformed.
func packetOf(b []byte) control.TracePacket {
	x := control.TracePacket{Length: len(b), Bytes: bytes.Clone(b)}
	var p packet.Packet
	if p.Parse(b) == packet.NoFault {
		var t packet.Tuple
		p.Tuple(&t, 0)
		x.Protocol, x.Tuple, x.Length = control.ProtocolName(t.Protocol), tupleOf(&t), p.Len()
	}
	return x
}

func dropped(t *control.Trace, reason, why string) {
	t.Verdict, t.Reason, t.Why = nat.Drop.String(), reason, why
}

// traceDecode adds the step that identifies the link of a packet, and reports whether there is such
// a tunnel.
func (src *Source) traceDecode(steps *tracer, in nat.Link) bool {
	if in == nat.Tunnel {
		steps.add(control.TraceStep{Kind: "decode", Name: "wireguard", Passed: true,
			Detail: "as a session with the peer brings it"})
		return true
	}
	s, ok := src.Path.Endpoint.TunnelStats(uint16(in))
	step := control.TraceStep{Kind: "decode", Name: "geneve", Passed: ok}
	if i := slices.IndexFunc(steps.names.config.Geneve.Nodes,
		func(n config.Node) bool { return n.Name == steps.trace.From }); i >= 0 {
		n := &steps.names.config.Geneve.Nodes[i]
		step.Detail = fmt.Sprintf("%s has VNI %d and sends from %s", n.Name, n.VNI, n.Underlay)
		key := rules.Key{Kind: "node", Name: n.Name}
		step.Origin, step.Field = key.String(), steps.places.Field(key, "")
	}
	if ok && s.Encap == geneve.VXLAN {
		step.Name = s.Encap.String()
	}
	steps.add(step)
	if !ok {
		dropped(steps.trace, geneve.UnknownNode.String(),
			"there is no tunnel to the node: it has gone, or has no addresses yet")
	}
	return ok
}

// traceForward cuts a forwarded packet as the packet path does, and adds what happens after the
// decision.
func (src *Source) traceForward(steps *tracer, p *packet.Packet, d *nat.Verdict) {
	t, v := steps.trace, steps.names
	t.To, t.MTU = v.link(d.Out), d.MTU
	var cutter packet.Cutter
	cutter.Start(p, d.SegmentSize, d.MTU)
	room := make([]byte, max(p.Len(), 1<<16))
	for n := cutter.Next(room); n > 0; n = cutter.Next(room) {
		t.Sent = append(t.Sent, packetOf(room[:n]))
	}
	if d.Out == nat.Tunnel {
		t.Egress = src.tunnelEgress()
		return
	}
	n := &config.Node{}
	if i := slices.IndexFunc(v.config.Geneve.Nodes, func(n config.Node) bool { return n.Name == t.To }); i >= 0 {
		n = &v.config.Geneve.Nodes[i]
	}
	s, ok := src.Path.Endpoint.TunnelStats(uint16(d.Out))
	switch {
	case !ok:
		t.Sent = nil
		dropped(t, geneve.UnknownTunnel.String(),
			"there is no tunnel to the node: it has gone, or has no addresses yet")
	case n.Inner == geneve.Ethernet && s.MAC == nil:
		asked := "ARP"
		if !n.Address.V4.IsValid() {
			asked = "neighbour discovery"
		}
		t.Egress = fmt.Sprintf("waits until %s answers %s for %s; if it does not, the packet is dropped as %s", n.Name,
			asked, n.Address.First(), geneve.Unresolved)
	default:
		t.Egress = fmt.Sprintf("%s with VNI %d to %s", s.Encap, n.VNI, n.Underlay)
	}
}

// tunnelEgress says what WireGuard does with a packet to the peer.
func (src *Source) tunnelEgress() string {
	s, err := src.Path.WG.PeerStats()
	switch {
	case err != nil || s.Endpoint == "":
		return fmt.Sprintf("the peer's endpoint is not known: the packet is dropped as %s", wg.TunnelDiscard)
	case s.LastHandshake.IsZero() || time.Since(s.LastHandshake) >= wg.SessionLifetime:
		return fmt.Sprintf("no session with %s: the packet waits for a handshake; if none is made, it is dropped as %s",
			s.Endpoint, wg.TunnelDiscard)
	}
	return fmt.Sprintf("encrypted to %s, handshake %v ago", s.Endpoint, time.Since(s.LastHandshake).Round(time.Second))
}

// traceDelivery adds the gateway's answer to a packet for itself. It rewrites p.
func (src *Source) traceDelivery(t *control.Trace, p *packet.Packet, in nat.Link) {
	t.To = "gateway"
	switch {
	case in == nat.Tunnel && src.Monitor.IsCheck(p.Bytes()):
		t.Egress = "a message of the connection check"
	case in == nat.Tunnel && src.Monitor.IsExports(p.Bytes()):
		t.Egress = "a message about exported Services"
	case path.AnswerEcho(p, src.Path.MTU):
		t.Egress = "the gateway answers the echo request"
	case isEchoReply(p.Bytes()):
		t.Egress = "an answer, if the gateway has asked; else it is dropped as " + path.DropNoService.String()
	default:
		dropped(t, path.DropNoService.String(), "the gateway itself answers pings and no more there")
		v := path.NoService(p)
		t.To, t.Told = "", told(p, &v)
	}
}

// isEchoReply reports whether b may answer a probe of the path MTU or of trains.
func isEchoReply(b []byte) bool {
	_, ok := echo.Parse(b)
	return ok
}

var refusalTexts = map[packet.Refusal]string{
	packet.NetUnreachable: "ICMP: network unreachable", packet.HostUnreachable: "ICMP: host unreachable",
	packet.PortUnreachable: "ICMP: port unreachable",
	packet.Prohibited:      "ICMP: prohibited", packet.TooBig: "ICMP: too big",
	packet.TimeExceeded: "ICMP: time exceeded",
	packet.Reset:        "TCP: reset",
}

// told says which ICMP error the sender of p gets; "" = none.
func told(p *packet.Packet, d *nat.Verdict) string {
	if !p.Refusable(d.Refusal) {
		return ""
	}
	return refusalTexts[d.Refusal]
}

// traceNearest adds the nearest entries of the tables if none fits the packet.
func (src *Source) traceNearest(steps *tracer, r nat.Reason) {
	switch r {
	case nat.ReasonNoRoute:
		src.nearestRoute(steps)
	case nat.ReasonNotAdmitted:
		src.nearestExports(steps)
		fallthrough
	case nat.ReasonNoMapping:
		destination := steps.trace.Packet.Destination
		for key, service := range steps.names.services {
			if key.address == destination {
				steps.add(control.TraceStep{Kind: rules.StepNearest.String(), Name: service.name,
					Detail: fmt.Sprintf("only for protocol %s, dport %d",
						control.ProtocolName(key.protocol), key.port)})
			}
		}
	}
}

// maxNearest limits the exports in a trace.
const maxNearest = 5

// nearestExports adds exports of the packet's destination with another protocol or port.
func (src *Source) nearestExports(steps *tracer) {
	n := 0
	all := steps.names.config.Exports
	for i := range all {
		if x := &all[i]; n < maxNearest && x.Prefix.Contains(steps.trace.Packet.Destination) {
			n++
			steps.add(control.TraceStep{Kind: rules.StepNearest.String(), Name: config.ExportName(x),
				Detail: "another protocol or port", Field: fmt.Sprintf("nat.exports[%d]", i)})
		}
	}
}

// nearestRoute adds the route to the packet's destination with the fewest other conditions.
func (src *Source) nearestRoute(steps *tracer) {
	var nearest rules.RouteInfo
	var least []string
	src.Path.Engine.ListRoutes(steps.names.link, func(r *rules.RouteInfo) bool {
		if !r.Destination.Contains(steps.routed) {
			return true
		}
		var missing []string
		if r.In != "" && r.In != steps.trace.From {
			missing = append(missing, "in "+r.In)
		}
		if r.Source.IsValid() && !r.Source.Contains(steps.trace.Packet.Source) {
			missing = append(missing, "src "+r.Source.String())
		}
		if r.Mark != 0 {
			missing = append(missing, fmt.Sprintf("mark %d", r.Mark))
		}
		if least == nil || len(missing) < len(least) {
			nearest, least = *r, missing
		}
		return true
	})
	if least == nil {
		return
	}
	steps.add(control.TraceStep{
		Kind: rules.StepNearest.String(), Name: nearest.Rule, Detail: fmt.Sprintf("to %s, only for %s", nearest.To,
			strings.Join(least, ", ")),
		Origin: nearest.Origin.String(), Field: steps.places.Field(nearest.Origin, ""),
	})
}
