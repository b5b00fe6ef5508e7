//go:build !nokube

package main

import (
	"cmp"
	"context"
	"slices"

	"culvert/kube/deploy"
	"culvert/kube/peering"
)

// apply applies the plan to all pairs, side by side.
func (x *joining) apply() {
	ctx, cancel := x.bounded()
	defer cancel()
	x.each(x.pairs, func(p *pair) error {
		p.err = x.applyPair(ctx, p)
		return nil
	})
}

// applyPair applies the plan to both clusters of a pair, and waits until packets pass.
func (x *joining) applyPair(ctx context.Context, p *pair) error {
	client, server := p.ends[0], p.ends[1]
	for _, e := range p.ends {
		if err := x.install(ctx, e); err != nil {
			return e.of(err)
		}
	}
	if err := server.ApplyPeering(ctx, server.spec, server.notes("")); err != nil {
		return server.of(err)
	}
	if err := server.lacksGateway(); err != nil {
		return server.of(err)
	}
	was := client.spec.Endpoint
	// an administrator may have given a better one
	if was == "" || was == client.found.Reached(server.name) || x.endpoint != "" || !x.works(ctx, client) {
		var err error
		if client.spec.Endpoint, err = x.reached(ctx, server, was); err != nil {
			return server.of(err)
		}
	}
	// of its Service, which may change
	found, _, err := server.Endpoint(ctx, client.name, server.found.NodeAddress(was))
	if err != nil {
		return server.of(err)
	}
	endpoints := [2]string{found, ""}
	if err := client.ApplyPeering(ctx, client.spec, client.notes(endpoints[0])); err != nil {
		return client.of(err)
	}
	if err := client.lacksGateway(); err != nil {
		return client.of(err)
	}
	for i, e := range p.ends {
		key, err := x.key(ctx, e)
		if err != nil {
			return e.of(err)
		}
		p.ends[1-i].spec.PublicKey = key
	}
	for i, e := range p.ends {
		if err := e.ApplyPeering(ctx, e.spec, e.notes(endpoints[i])); err != nil {
			return e.of(err)
		}
	}
	for _, e := range p.ends {
		if err := x.connected(ctx, e); err != nil {
			return e.of(err)
		}
	}
	return nil
}

// install installs an end, one after the other in a cluster: they share agents and rights.
func (x *joining) install(ctx context.Context, e *end) error {
	e.installing.Lock()
	defer e.installing.Unlock()
	x.say("%s: installing", e.title)
	return e.Install(ctx, e.plan)
}

// reached waits until a Server's gateway has an address, and returns it. was is the one before,
// whose node stays if it can.
func (j *joiner) reached(ctx context.Context, e *end, was string) (endpoint string, err error) {
	if j.endpoint != "" {
		return j.endpoint, nil
	}
	err = deploy.Await(ctx, j.waiting(e.title), func(ctx context.Context) (missing string, err error) {
		endpoint, missing, err = e.Endpoint(ctx, e.spec.Peer, e.found.NodeAddress(was))
		return missing, err
	})
	return endpoint, err
}

// key waits until what was applied runs and the gateway has its key, and returns the public one.
func (j *joiner) key(ctx context.Context, e *end) (key string, err error) {
	err = deploy.Await(ctx, j.waiting(e.title), func(ctx context.Context) (missing string, err error) {
		if missing, err = e.Rolled(ctx, e.spec.Peer); missing == "" && err == nil {
			key, missing, err = e.Key(ctx, e.spec.Peer)
		}
		return missing, err
	})
	return key, err
}

// works reports whether packets pass.
func (j *joiner) works(ctx context.Context, e *end) bool {
	status, err := e.Status(ctx, e.spec.Peer)
	return err == nil && slices.ContainsFunc(status.Conditions, func(c *peering.Condition) bool {
		return c.Type == peering.Connected && c.Status == "True"
	})
}

// connected waits until what was applied runs, and packets pass through every node.
func (j *joiner) connected(ctx context.Context, e *end) error {
	if _, err := j.key(ctx, e); err != nil { // otherwise a gateway that ends may say that all is well
		return err
	}
	return deploy.Await(ctx, j.waiting(e.title), func(ctx context.Context) (missing string, err error) {
		status, err := e.Status(ctx, e.spec.Peer)
		if err != nil {
			return "", err
		}
		for _, kind := range []string{peering.Accepted, peering.NodesReady, peering.Connected} {
			i := slices.IndexFunc(status.Conditions, func(c *peering.Condition) bool { return c.Type == kind })
			if i < 0 || status.Conditions[i].Status != "True" {
				why, err := e.Trouble(ctx, e.spec.Peer)
				return kind + ": " + cmp.Or(why, status.Message, "the gateway is starting"), err
			}
		}
		return "", nil
	})
}
