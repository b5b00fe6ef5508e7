package services

import (
	"slices"

	"culvert/nat/rules"
)

// SameBut reports whether o equals c except for endpoints.
func (c *Config) SameBut(o *Config) bool {
	return slices.Equal(c.Addresses, o.Addresses) && slices.Equal(c.Pods, o.Pods) && slices.Equal(c.Bridged, o.Bridged) && slices.Equal(c.Routed, o.Routed) &&
		slices.Equal(c.ServiceCIDRs, o.ServiceCIDRs) &&
		slices.EqualFunc(c.Services, o.Services, func(a, b Service) bool { return a.sameBut(&b) })
}

// sameBut is SameBut for one Service; there are many.
func (s *Service) sameBut(o *Service) bool {
	return s.Name == o.Name && s.Protocol == o.Protocol && s.Port == o.Port && s.NodePort == o.NodePort && slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) && (s.SourceRanges == nil) == (o.SourceRanges == nil) &&
		s.Affinity == o.Affinity && s.AffinityTimeout == o.AffinityTimeout && s.ExternalLocal == o.ExternalLocal && s.InternalLocal == o.InternalLocal &&
		s.ProxyProtocol == o.ProxyProtocol
}

// Amended returns the argument for nat.Engine.Amend if next differs from c only in the endpoints of some Services; it returns false if more differs.
func (c *Config) Amended(next *Config) (all []rules.Service, alone bool) {
	if c.Node != next.Node || !slices.Equal(c.Answers, next.Answers) || !slices.Equal(c.AnnounceOn, next.AnnounceOn) || !c.SameBut(next) {
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

// sameEndpoints avoids comparing each element: a caller that knows of no change passes the same slice again.
func sameEndpoints(a, b []Endpoint) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}
