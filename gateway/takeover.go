package gateway

import (
	"context"
	"net"
	"net/netip"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/handover"
	"culvert/gateway/lifecycle"
	"culvert/geneve"
	"culvert/geneve/udp"
)

// TakeOver is New in the place of the gateway that serves a control socket, which goes on if
// this fails. c is to be for the same cluster and peer.
func TakeOver(ctx context.Context, socket string, c *config.Config, budget Budget, log *logrus.Logger) (*Gateway, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return takeOver(ctx, socket, c, budget, log, internalOptions(c, budget))
}

func takeOver(ctx context.Context, socket string, c *config.Config, budget Budget, log *logrus.Logger, internal geneve.Options) (*Gateway, error) {
	t, err := lifecycle.Ask(ctx, socket, c)
	if err != nil {
		return nil, err
	}
	return takeOverFrom(ctx, t, c, budget, log, internal, nil)
}

// takeOverFrom returns a gateway that has taken over, or one that starts because the old process has ended meanwhile. made is nil, or is told
// of the new gateway before that speaks with anybody.
func takeOverFrom(ctx context.Context, t *lifecycle.Taking, c *config.Config, budget Budget, log *logrus.Logger, internal geneve.Options,
	made func(*Gateway)) (g *Gateway, err error) {
	begin := func() (*lifecycle.Life, error) {
		var err error
		if g, err = newGatewayFrom(t, c, budget, log, internal); err != nil {
			return nil, err
		}
		if made != nil {
			made(g)
		}
		return g.life, nil
	}
	end := func() {
		g.close()
		g.life.Close()
	}
	alone, err := t.Take(ctx, c, log, begin, end)
	switch {
	case err != nil:
		return nil, err
	case alone:
		return newGateway(c, budget, log, internal)
	}
	return g, nil
}

// Over is the new gateway's side of a hand-over within this process, between two gateways of NewOver.
type Over struct {
	Wire  handover.Wire // the conversation with the previous gateway
	Relay net.Conn      // the packets between both; it keeps messages apart
	// Open opens sockets. Those that the previous gateway has, both have then.
	Open func(network string, at netip.AddrPort) (udp.Conn, error)
	Made func(*Gateway) // nil, or is told of the new gateway before that speaks with anybody
}

// HandOverOver hands over to a gateway of this process that takes over by the other ends of wire and relay, which it closes. It returns
// nil when that one carries the packets, and then Run does; on an error this gateway goes on.
func (g *Gateway) HandOverOver(wire handover.Wire, relay net.Conn) error {
	return g.life.HandOverOver(wire, relay)
}

// TakeOverOver is TakeOver from a gateway of this process that hands over by the other ends of o's wire and relay, which it closes.
func TakeOverOver(ctx context.Context, o Over, c *config.Config, budget Budget, log *logrus.Logger) (*Gateway, error) {
	t := lifecycle.AskOver(o.Wire, o.Relay, o.Open)
	if err := c.Validate(); err != nil {
		t.Refuse(err)
		return nil, err
	}
	internal := internalOptions(c, budget)
	internal.UDP.Open = o.Open
	return takeOverFrom(ctx, t, c, budget, log, internal, o.Made)
}
