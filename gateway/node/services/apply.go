package services

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"culvert/gateway/node/services/steer"
	"culvert/nat/rules"
)

// SameBut reports whether o equals c except for endpoints.
func (c *Config) SameBut(o *Config) bool {
	return slices.Equal(c.Addresses, o.Addresses) && slices.Equal(c.Pods, o.Pods) && slices.Equal(c.Bridged,
		o.Bridged) && slices.Equal(c.Routed, o.Routed) &&
		slices.Equal(c.ServiceCIDRs, o.ServiceCIDRs) &&
		slices.EqualFunc(c.Services, o.Services, func(a, b Service) bool { return a.sameBut(&b) })
}

// sameBut is SameBut for one Service; there are many.
func (s *Service) sameBut(o *Service) bool {
	return s.Name == o.Name && s.Protocol == o.Protocol && s.Port == o.Port && s.NodePort == o.NodePort &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) && (s.SourceRanges == nil) == (o.SourceRanges == nil) &&
		s.Affinity == o.Affinity && s.AffinityTimeout == o.AffinityTimeout && s.ExternalLocal == o.ExternalLocal &&
		s.InternalLocal == o.InternalLocal &&
		s.ProxyProtocol == o.ProxyProtocol
}

// Amended returns the argument for nat.Engine.Amend if next differs from c only in the endpoints of
// some Services; it returns false if more differs.
func (c *Config) Amended(next *Config) (all []rules.Service, alone bool) {
	if c.Node != next.Node || !slices.Equal(c.Answers, next.Answers) || !slices.Equal(c.AnnounceOn, next.AnnounceOn) ||
		!c.SameBut(next) {
		return nil, false
	}
	for i := range next.Services {
		s := &next.Services[i]
		if sameEndpoints(s.Endpoints, c.Services[i].Endpoints) {
			continue
		}
		for _, f := range s.frontends() {
			all = append(all, s.at(&f, next.Node))
		}
	}
	return all, true
}

// sameEndpoints avoids comparing each element: a caller that knows of no change passes the same
// slice again.
func sameEndpoints(a, b []Endpoint) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// ErrRestart means that a node accepts another configuration only at a restart.
var ErrRestart = errors.New("only at a restart")

// Replaceable returns, as an error, the changes in next that a node which serves c can only make at
// a restart.
func (c *Config) Replaceable(next *Config) error {
	if c.Mode != next.Mode {
		return fmt.Errorf("services.mode: changes %w", ErrRestart)
	}
	if c.Interface != next.Interface || c.MTU != next.MTU || c.Ports != next.Ports || c.State != next.State ||
		c.Metrics != next.Metrics {
		return fmt.Errorf("services: interface, mtu, clientPorts, state and metrics change %w", ErrRestart)
	}
	if !slices.Equal(steer.FamiliesOf(c.Addresses), steer.FamiliesOf(next.Addresses)) {
		return fmt.Errorf("services.addresses: IPv4 or IPv6 comes and goes %w", ErrRestart)
	}
	return nil
}

// Apply serves another configuration from now on. Connections continue as far as their services do.
// After an error the previous configuration is still served. Endpoints change all the time: if
// nothing else has changed, the cost depends on them alone.
func (s *Server) Apply(ctx context.Context, c *Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() || ctx.Err() != nil {
		return errors.New("services: no longer served")
	}
	own, err := OwnAddresses(c)
	if err != nil && (own == nil || !slices.Equal(c.Addresses, s.config.Addresses)) {
		return err // a missing address may come back
	}
	if err := s.config.Replaceable(c); err != nil {
		return err
	}
	if slices.Equal(own, s.own) {
		if amended, alone := s.config.Amended(c); alone && len(amended) > 0 && s.leads(amended) {
			if err := s.engine.Amend(amended); err != nil {
				return err
			}
			s.config = c
			return nil
		}
	}
	left := s.findOrphans(c)
	p := c.plan(own, left)
	if err := s.steering.Conflicts(&p.Plan); err != nil {
		return err
	}
	// The engine knows what is new before packets for it arrive, and keeps what is removed until
	// none do: for a removed address it keeps an entry that refuses all ports, until the next
	// change.
	prepared, err := s.engine.Prepare(&c.plan(own, orphans{at: append(left.at, s.config.gone(c)...)}).nat)
	if err != nil {
		return err
	}
	if err := s.steering.Lead(&p.Plan); err != nil {
		return err
	}
	if err := s.announcer.Withdraw(c.Answers); err != nil {
		return err
	}
	s.engine.Commit(prepared)
	if err := s.steering.Apply(&p.Plan, c.sources(own)); err != nil {
		before := s.config.plan(own, s.orphans)
		err = errors.Join(err, s.steering.Apply(&before.Plan, s.config.sources(own)))
		if prepared, prepareErr := s.engine.Prepare(&before.nat); prepareErr == nil {
			s.engine.Commit(prepared)
		}
		s.announcer.Apply(s.config.Answers, s.config.AnnounceOn)
		s.own = nil // makes the next call check everything
		return err
	}
	s.announcer.Apply(c.Answers, c.AnnounceOn)
	before := s.config
	s.config, s.own, s.orphans = c, own, orphans{left.at, p.ends}
	if before.SameBut(c) {
		return nil
	}
	s.changeLog.Add(s.log, len(c.Services), time.Now())
	s.nameListeners()
	return nil
}

// leads reports whether the kernel leads to the device what the endpoints of services send to
// clients that keep their ports.
//
// +checklocks:s.mu
func (s *Server) leads(services []rules.Service) bool {
	for i := range services {
		last := portOf{}
		for _, b := range services[i].Backends {
			at := portOf{services[i].Protocol, b.Port}
			if at != last && b.Port <= maxPort && !slices.Contains(s.orphans.ends, at) {
				return false
			}
			last = at
		}
	}
	return true
}
