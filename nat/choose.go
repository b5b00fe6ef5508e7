package nat

import (
	"net/netip"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Choose returns the backend that Process would give a new connection. It is for a caller that
// carries the connection itself, instead of a Host. The choice depends on the client, the Service
// and the client's affinity. Backends in failed did not answer and are left out. The reason says
// why there is no backend.
func (e *Engine) Choose(client, service netip.AddrPort, protocol uint8, failed []netip.AddrPort,
	now Time) (netip.AddrPort, Reason) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var tr rules.Traversal
	if e.ask(&tr, client, service, protocol, nil); tr.Service == nil && tr.Outcome == rules.Passed {
		return netip.AddrPort{}, ReasonNoMapping
	} else if tr.Outcome != rules.Passed {
		return netip.AddrPort{}, reasonOf(tr.Outcome)
	}
	b := tr.Service
	n := e.backend(b, &tr.Client, now)
	if len(failed) > 0 {
		var ok bool
		if n, ok = b.ChooseOther(e.hashKey.Sum(tr.Client[:]...), failed); !ok {
			return netip.AddrPort{}, ReasonNoBackend
		}
	}
	e.remember(b, &tr.Client, n, now)
	return b.Place(n), ReasonNone
}

// Keeps reports whether a connection that Choose gave to a backend may continue, as Process would
// decide: its client is still admitted, and the backend is still one of the Service's or may finish
// its connections.
func (e *Engine) Keeps(client, service netip.AddrPort, protocol uint8, backend netip.AddrPort) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	var tr rules.Traversal
	to := hostTuple(client, backend, protocol)
	e.ask(&tr, client, service, protocol, &to)
	if tr.Service == nil {
		return protocol == packet.TCP && tr.Outcome != rules.Filtered
	}
	return tr.Service.Has(backend) || !tr.Service.Service.EndsUDP(protocol)
}

// ask runs the first packet of a connection up to the lookup of its Service or, for an existing
// connection, of its backend to.
func (e *Engine) ask(tr *rules.Traversal, client, service netip.AddrPort, protocol uint8, to *packet.Tuple) {
	from := hostTuple(client, service, protocol)
	tr.Start(&from, nil, rules.HostLink, nil)
	if to != nil {
		tr.Keep(*to, 0, 0)
	}
	tr.Enter(e.snapshot.rules)
}

// hostTuple returns the tuple of a packet from a Host's kernel. Preconditions: both addresses are
// of one family.
func hostTuple(source, destination netip.AddrPort, protocol uint8) packet.Tuple {
	t := packet.Tuple{Link: rules.HostLink, Protocol: protocol, IPv6: source.Addr().Is6()}
	t.SetSource(source.Addr())
	t.SetDestination(destination.Addr())
	t.SetSourcePort(source.Port())
	t.SetDestinationPort(destination.Port())
	return t
}
