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

// TakeOver is New in place of the gateway that serves a control socket; that gateway goes on if
// TakeOver fails. c must be for the same cluster and peer.
func TakeOver(ctx context.Context, socket string, c *config.Config, budget Budget,
	log *logrus.Logger) (*Gateway, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return takeOver(ctx, socket, c, budget, log, internalOptions(c, budget))
}

func takeOver(ctx context.Context, socket string, c *config.Config, budget Budget, log *logrus.Logger,
	internal geneve.Options) (*Gateway, error) {
	t, err := lifecycle.Ask(ctx, socket, c)
	if err != nil {
		return nil, err
	}
	return takeOverFrom(ctx, t, c, budget, log, internal, nil)
}

// takeOverFrom returns a gateway that has taken over, or a fresh one if the old process has exited
// meanwhile. made, if not nil, gets the new gateway before the gateway sends anything.
func takeOverFrom(ctx context.Context, t *lifecycle.Taking, c *config.Config, budget Budget, log *logrus.Logger,
	internal geneve.Options,
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

// Over is the new gateway's side of a hand-over within this process, between two gateways of
// NewOver.
type Over struct {
	Wire  handover.Wire // the conversation with the previous gateway
	Relay net.Conn      // the packets between both; it keeps messages apart
	// Open opens sockets. Both gateways then share those that the previous one has.
	Open func(network string, at netip.AddrPort) (udp.Conn, error)
	Made func(*Gateway) // if not nil, gets the new gateway before the gateway sends anything
}

// HandOverOver hands over to a gateway in this process that takes over through the other ends of
// wire and relay. It closes its own ends. It returns nil once the other gateway carries the
// packets, and Run returns too; on an error this gateway goes on.
func (g *Gateway) HandOverOver(wire handover.Wire, relay net.Conn) error {
	return g.life.HandOverOver(wire, relay)
}

// TakeOverOver is TakeOver from a gateway in this process that hands over through the other ends of
// o's wire and relay. It closes its own ends.
func TakeOverOver(ctx context.Context, o Over, c *config.Config, budget Budget, log *logrus.Logger) (*Gateway, error) {
	t := lifecycle.AskOver(o.Wire, o.Relay)
	if err := c.Validate(); err != nil {
		t.Refuse(err)
		return nil, err
	}
	internal := internalOptions(c, budget)
	internal.UDP.Open = o.Open
	return takeOverFrom(ctx, t, c, budget, log, internal, o.Made)
}
