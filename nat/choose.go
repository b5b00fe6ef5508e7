package nat

import (
	"net/netip"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Choose gives a connection that the caller carries himself, in a Host's place, the backend that Process would give it: by who asks which
// Service, and by what is remembered of him. It gets none of failed, which have not answered it. The reason says why there is none.
func (e *Engine) Choose(client, service netip.AddrPort, protocol uint8, failed []netip.AddrPort, now Time) (netip.AddrPort, Reason) {
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

// Keeps reports whether a connection that Choose has given to a backend may still go on, as Process would let it: its client is still
// admitted, and the backend is one of the Service's or has not to end with it.
func (e *Engine) Keeps(client, service netip.AddrPort, protocol uint8, backend netip.AddrPort) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	var tr rules.Traversal
	to := hostTuple(client, backend, protocol)
	e.ask(&tr, client, service, protocol, &to)
	return tr.Service != nil && (tr.Service.Has(backend) || !tr.Service.Service.EndsUDP(protocol))
}

// ask takes the first packet of a connection to where a Service is met, or that of one which exists and goes to a backend, to.
func (e *Engine) ask(tr *rules.Traversal, client, service netip.AddrPort, protocol uint8, to *packet.Tuple) {
	from := hostTuple(client, service, protocol)
	tr.Start(&from, nil, rules.HostLink, nil)
	if to != nil {
		tr.Keep(*to, 0)
	}
	tr.Enter(e.snapshot.rules)
}

// hostTuple returns that of a packet out of a Host's kernel. Preconditions: both addresses are of one family.
func hostTuple(source, destination netip.AddrPort, protocol uint8) packet.Tuple {
	t := packet.Tuple{Link: rules.HostLink, Protocol: protocol, IPv6: source.Addr().Is6()}
	t.SetSource(source.Addr())
	t.SetDestination(destination.Addr())
	t.SetSourcePort(source.Port())
	t.SetDestinationPort(destination.Port())
	return t
}
