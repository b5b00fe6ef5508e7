package gateway

import (
	"context"
	"net"
	"net/netip"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/handover"
	"culvert/geneve/udp"
)

// Over is the new gateway's side of a hand-over within this process, between two gateways of NewOver.
type Over struct {
	Wire  handover.Wire // the conversation with the gateway before
	Relay net.Conn      // the packets between both; it keeps messages apart
	// Open opens sockets. Those that the gateway before has, both have then.
	Open func(network string, at netip.AddrPort) (udp.Conn, error)
	Made func(*Gateway) // nil, or is told of the new gateway before that speaks with anybody
}

// HandOverOver is HandOver to a gateway of this process that takes over by the other ends of wire and relay, which it closes. It returns
// nil when that one carries the packets, and then Run does; on an error this gateway goes on.
func (g *Gateway) HandOverOver(wire handover.Wire, relay net.Conn) error {
	h := &handing{g: g, line: handover.NewLine(wire), relay: handover.NewRelay(relay)}
	err := errHanding
	switch {
	case g.taken.busy():
		err = errTaking
	case g.ready.Load() && g.handing.CompareAndSwap(false, true):
		return h.handOver()
	}
	h.line.Refuse(err)
	h.line.Close()
	h.relay.Close()
	return err
}

// TakeOverOver is TakeOver from a gateway of this process that hands over by the other ends of o's wire and relay, which it closes.
func TakeOverOver(ctx context.Context, o Over, c *config.Config, budget Budget, log *logrus.Logger) (*Gateway, error) {
	t := newTaking(o.Wire)
	t.relay, t.made, t.open = handover.NewRelay(o.Relay), o.Made, o.Open
	if err := c.Validate(); err != nil {
		t.line.Refuse(err)
		t.close()
		return nil, err
	}
	internal := internalOptions(c, budget)
	internal.UDP.Open = o.Open
	return t.take(ctx, c, budget, log, internal)
}
