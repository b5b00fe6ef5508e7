package join

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"culvert/gateway/wgkey"
	"culvert/kube/join/terms"
)

// Invite plans the end of the cluster of a context, at, that invites another one, whose name is
// peer. name is its own; "" derives one. Nothing is changed.
func (o *Options) Invite(ctx context.Context, at, name, peer string) (*End, error) {
	s, err := o.alone(ctx, at, name)
	if err != nil {
		return nil, err
	}
	if err := s.Found.CheckOwn(); err != nil {
		return nil, s.of(err)
	}
	if s.Found.Role(peer) == "Client" {
		return nil, s.of(fmt.Errorf(
			"its Peering %s is a Client, and a Server invites: let %[1]s invite, or leave the peering first", peer))
	}
	e := s.end(peer, false)
	e.nonce = cmp.Or(e.nonce, terms.NewNonce())
	return e, e.propose(ctx, terms.Peer{Name: peer, Role: "Server"})
}

// Accept plans the end of the cluster of a context, at, that accepts an invitation, or the answer
// to its own. Nothing is changed.
func (o *Options) Accept(ctx context.Context, at string, i *terms.Invitation) (*End, error) {
	s, err := o.alone(ctx, at, i.To)
	if err != nil {
		return nil, err
	}
	if err := s.Found.Acceptable(i); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err) // the message may name another cluster
	}
	o.say("words of this message, which %s has printed too: %s", i.From, i.Words())
	e, role := s.end(i.From, false), "Server"
	if i.Answers == "" {
		e.nonce, e.answers, role = cmp.Or(e.nonce, terms.NewNonce()), i.Nonce, "Client"
	}
	return e, e.propose(ctx, terms.Peer{Name: i.From, Pods: i.Pods, External: i.External, Key: i.Key, Role: role,
		Endpoint: i.Endpoint})
}

// alone surveys a cluster that is joined without the other one at hand.
func (o *Options) alone(ctx context.Context, at, name string) (*Site, error) {
	s, err := o.connect(ctx, at)
	if err == nil {
		err = s.survey(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return s, nil
}

func (e *End) propose(ctx context.Context, peer terms.Peer) (err error) {
	if e.Spec, e.Lines, err = e.Found.Propose(peer, nil, nil); err == nil {
		err = e.complete(ctx)
	}
	return e.of(err)
}

// Apply applies the plan to the cluster. It waits for nothing that others do.
func (e *End) Apply(ctx context.Context) error {
	ctx, cancel := e.options.bounded(ctx)
	defer cancel()
	err := e.install(ctx)
	if err == nil {
		err = e.applyPeering(ctx, e.Found.Reached(e.Spec.Peer))
	}
	return e.of(err)
}

// Message waits until the gateway has a key and, if it is the Server, can be reached, and returns
// what the other cluster is to accept.
func (e *End) Message(ctx context.Context) (i *terms.Invitation, err error) {
	i = &terms.Invitation{From: e.Spec.Cluster, To: e.Spec.Peer, Nonce: e.nonce, Answers: e.answers}
	if e.Spec.Role == "Server" {
		bounded, cancel := e.options.bounded(ctx)
		defer cancel()
		if i.Endpoint, err = e.endpoint(bounded, ""); err != nil {
			return nil, e.of(err)
		}
	}
	bounded, cancel := e.options.bounded(ctx)
	defer cancel()
	text, err := e.key(bounded)
	if err == nil {
		i.Key, err = wgkey.Parse(text)
	}
	if err != nil {
		return nil, e.of(err)
	}
	for _, c := range e.Spec.Local.PodCIDRs {
		if p, err := netip.ParsePrefix(c); err == nil {
			i.Pods = append(i.Pods, p)
		}
	}
	for _, c := range e.Spec.Local.Externals() {
		if p, err := netip.ParsePrefix(c); err == nil {
			i.External = append(i.External, p)
		}
	}
	return i, nil
}

// Connected waits until packets pass, and returns the result.
func (e *End) Connected(ctx context.Context) (Result, error) {
	bounded, cancel := e.options.bounded(ctx)
	defer cancel()
	if err := e.connected(bounded); err != nil {
		return Result{}, e.of(err)
	}
	return e.result(ctx)
}
