package nat

import (
	"net/netip"

	"culvert/nat/packet"
)

// AppendError appends to dst the error packet by which v refuses p, to be sent to link in, and
// returns the extended slice. It returns nil if v holds no refusal, Packet.Refusable forbids one,
// or the rate limit is exceeded. p must be as Process left it. AppendError allocates nothing if dst
// has room for 1280 bytes.
func (e *Engine) AppendError(dst []byte, p *packet.Packet, in Link, v Verdict, now Time) []byte {
	if v.Action != Drop || !p.Refusable(v.Refusal) {
		return nil
	}
	var t packet.Tuple
	p.Tuple(&t, in)
	e.mu.Lock()
	from := e.snapshot.refusalSource(in, p.IsIPv6())
	if v.Refusal == packet.Reset || e.snapshot.rules.IsHost() {
		from = t.Destination()
	}
	ok := from.IsValid() && e.limit.allow(in, e.snapshot.hostOf(t.Source(), in), now)
	if ok {
		e.stats.of(in).Answered++
	}
	e.mu.Unlock()
	if !ok {
		return nil
	}
	return p.AppendRefusal(dst, v.Refusal, from, v.MTU)
}

// refusalSource returns the source address of our own errors: towards nodes the gateway's internal
// address; towards an outside link U, or else the gateway's own address there. It returns the zero
// Addr if there is none of the family.
func (s *snapshot) refusalSource(in Link, v6 bool) netip.Addr {
	if !in.Outside() {
		return s.gateway.Of(v6)
	}
	if u := s.unknown.Of(v6); u.IsValid() {
		return u
	}
	return s.rules.Own(in).Of(v6)
}
