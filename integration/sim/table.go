package sim

import (
	"net/netip"
	"slices"
	"time"

	"culvert/gateway/path"
	"culvert/nat"
	"culvert/nat/packet"
)

// judgeTable fails the world if a gateway that begins to forward lacks a connection that it has to
// know, where no packet of the other end tells how it is translated: one of a guest, or to a mapped
// address or a service. The judges of traffic seldom see that: the next packet of the client opens
// the connection again, mostly with the same port or server, because both follow from a key that
// the pods share.
func (v *vote) judgeTable() {
	s, w, due := v.pod.side, v.pod.w, v.due()
	if s.config.MaxConnections == fewConnections {
		return // connections make room for others
	}
	has := v.pod.flows()
	for _, c := range w.traffic.conns {
		byClient := c.kind == fromGuest && c.from.side == s
		byServer := (c.kind == toMapped || c.kind == toService) && c.to == s
		if !byClient && !byServer || c.over != "" || c.answered == 0 || c.since >= due || w.missed(c.since) {
			continue
		}
		if from, to := c.ends(byClient); !has[flow{c.protocol, from, to}] {
			w.fail("%s begins to forward at %v without what it has to know until %v: %v", v.pod.name, w.now(), due, c)
		}
	}
}

// onWay is how old a packet is that arrives, where no fault holds it back.
const onWay = 2 * time.Second

// missed reports whether what began at a time may have been lost with a gateway, and may not have
// been opened again.
func (w *world) missed(since time.Duration) bool {
	return slices.ContainsFunc(w.losses, func(l loss) bool { return since >= l.from && since <= l.to+onWay })
}

// flows returns what the gateway's connections have as their first packet and as the answer to it.
func (p *pod) flows() map[flow]bool {
	all := make(map[flow]bool)
	var list []nat.ConnInfo
	for at, more := nat.Cursor(0), true; more; {
		list, at, more = p.engine().Connections(at, &nat.ConnFilter{}, path.Now(), list[:0])
		for i := range list {
			for _, t := range []*packet.Tuple{&list[i].Original, &list[i].Reply} {
				all[flow{t.Protocol, netip.AddrPortFrom(t.Source(), t.SourcePort()), netip.AddrPortFrom(t.Destination(),
					t.DestinationPort())}] = true
			}
		}
	}
	return all
}
