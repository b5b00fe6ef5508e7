package join

import (
	"cmp"
	"context"
	"slices"

	"culvert/kube/deploy"
	"culvert/kube/peering"
)

// Apply applies the plan to all pairs, side by side, and waits until packets pass. Each pair has
// its error afterwards.
func (p *Plan) Apply(ctx context.Context) {
	ctx, cancel := p.request.bounded(ctx)
	defer cancel()
	p.each(func(pair *Pair) error {
		pair.Err = pair.apply(ctx)
		return nil
	})
}

// apply applies the plan to both clusters of a pair, and waits until packets pass.
func (p *Pair) apply(ctx context.Context) error {
	client, server := p.Ends[0], p.Ends[1]
	for _, e := range p.Ends {
		if err := e.install(ctx); err != nil {
			return e.of(err)
		}
	}
	if err := server.applyPeering(ctx, ""); err != nil {
		return server.of(err)
	}
	was := client.Spec.Endpoint
	// an administrator may have given a better one
	if was == "" || was == client.Found.Reached(server.Name) || client.options.Endpoint != "" || !client.works(ctx) {
		var err error
		if client.Spec.Endpoint, err = server.endpoint(ctx, was); err != nil {
			return server.of(err)
		}
	}
	// of its Service, which may change
	found, _, err := server.cluster.Endpoint(ctx, client.Name, server.Found.NodeAddress(was))
	if err != nil {
		return server.of(err)
	}
	if err := client.applyPeering(ctx, found); err != nil {
		return client.of(err)
	}
	return p.exchange(ctx, found)
}

// exchange gives each end the public key of the other, and waits until packets pass. found is the
// endpoint of the server's Service.
func (p *Pair) exchange(ctx context.Context, found string) error {
	for i, e := range p.Ends {
		key, err := e.key(ctx)
		if err != nil {
			return e.of(err)
		}
		p.Ends[1-i].Spec.PublicKey = key
	}
	for i, e := range p.Ends {
		if err := e.cluster.ApplyPeering(ctx, e.Spec, e.notes([]string{found, ""}[i])); err != nil {
			return e.of(err)
		}
	}
	for _, e := range p.Ends {
		if err := e.connected(ctx); err != nil {
			return e.of(err)
		}
	}
	return nil
}

// install installs an end, one after the other in a cluster: they share agents and rights.
func (e *End) install(ctx context.Context) error {
	e.installing.Lock()
	defer e.installing.Unlock()
	e.options.say("%s: installing", e.Title)
	return e.cluster.Install(ctx, e.plan)
}

// applyPeering applies the Peering, and ends culvert multicluster if nothing needs it then. It
// returns an error if nobody will make the gateway.
func (e *End) applyPeering(ctx context.Context, endpoint string) error {
	if err := e.cluster.ApplyPeering(ctx, e.Spec, e.notes(endpoint)); err != nil {
		return err
	}
	if err := e.lacksGateway(); err != nil {
		return err
	}
	return e.cluster.Unshare(ctx, e.plan, e.options.Waiting(e.Title))
}

// endpoint waits until a Server's gateway has an address, and returns it. was is the one before,
// whose node stays if it can.
func (e *End) endpoint(ctx context.Context, was string) (endpoint string, err error) {
	if e.options.Endpoint != "" {
		return e.options.Endpoint, nil
	}
	err = e.await(ctx, func(ctx context.Context) (missing string, err error) {
		endpoint, missing, err = e.cluster.Endpoint(ctx, e.Spec.Peer, e.Found.NodeAddress(was))
		return missing, err
	})
	return endpoint, err
}

// key waits until what was applied runs and the gateway has its key, and returns the public one.
func (e *End) key(ctx context.Context) (key string, err error) {
	err = e.await(ctx, func(ctx context.Context) (missing string, err error) {
		if missing, err = e.cluster.Rolled(ctx, e.Spec.Peer); missing == "" && err == nil {
			key, missing, err = e.cluster.Key(ctx, e.Spec.Peer)
		}
		return missing, err
	})
	return key, err
}

// works reports whether packets pass.
func (e *End) works(ctx context.Context) bool {
	status, err := e.cluster.Status(ctx, e.Spec.Peer)
	return err == nil && slices.ContainsFunc(status.Conditions, func(c *peering.Condition) bool {
		return c.Type == peering.Connected && c.Status == "True"
	})
}

// connected waits until what was applied runs, and packets pass through every node.
func (e *End) connected(ctx context.Context) error {
	if _, err := e.key(ctx); err != nil { // otherwise a gateway that ends may say that all is well
		return err
	}
	return e.await(ctx, func(ctx context.Context) (missing string, err error) {
		status, err := e.cluster.Status(ctx, e.Spec.Peer)
		if err != nil {
			return "", err
		}
		for _, kind := range []string{peering.Accepted, peering.NodesReady, peering.Connected} {
			if c := status.Condition(kind); c == nil || c.Status != "True" {
				why, err := e.cluster.Trouble(ctx, e.Spec.Peer)
				return kind + ": " + cmp.Or(why, status.Message, "the gateway is starting"), err
			}
		}
		if e.wants.Multicluster {
			return e.cluster.MulticlusterRolled(ctx)
		}
		return "", nil
	})
}

// await waits until nothing is missing at this end, and says what is.
func (e *End) await(ctx context.Context, look func(context.Context) (missing string, err error)) error {
	return deploy.Await(ctx, e.options.Waiting(e.Title), look)
}
