package services

import (
	"maps"
	"net/netip"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"culvert/gateway/node/services/steer"
	"culvert/nat"
	"culvert/nat/rules"
)

// A plan is the desired state derived from a Config on a node with certain addresses.
type plan struct {
	nat nat.Config
	steer.Plan
	// endpoints' ports: what comes from them to clients that keep theirs leads to the device
	ends []portOf
}

// orphans are what connections need although no Service of the configuration has it.
type orphans struct {
	at   []netip.AddrPort // where clients reach a Service over TCP
	ends []portOf         // ports of endpoints
}

// A portOf is a port of a protocol.
type portOf struct {
	protocol uint8
	port     uint16
}

// plan returns the plan of c for a node whose addresses are own and those of c, one of which may be
// missing for a while. What is left leads to the device too.
func (c *Config) plan(own []netip.Addr, left orphans) *plan {
	own = slices.Clip(own)
	for _, a := range c.Addresses {
		if !slices.Contains(own, a) {
			own = append(own, a)
		}
	}
	p := &plan{nat: nat.Config{
		MTU: maxMTU, // the kernel has cut or refused anything larger than the device's MTU, except super-frames
		Config: rules.Config{
			LocalPodCIDRs: c.Pods,
			MSSClamp:      rules.MSSClamp(c.MTU - 40),
			Host: &rules.Host{
				Addresses: own, Masquerade: c.masquerade(), Ports: c.Ports, ServiceCIDRs: c.ServiceCIDRs,
				Bridged: c.Bridged,
				Routed:  c.Routed,
			},
		},
	}}
	places := p.serve(c, own, left.at)
	p.leadFront(c, own, places)
	p.leadAnswers(c, left)
	return p
}

// serve plans the Services of c, and the routes to their addresses. It returns the ports that are
// served at the node's own addresses.
func (p *plan) serve(c *Config, own []netip.Addr, left []netip.AddrPort) map[netip.Addr][]portOf {
	// addresses that are not the node's, and ports at those that are
	alone, places := map[netip.Addr]bool{}, map[netip.Addr][]portOf{}
	for i := range c.Services {
		s := &c.Services[i]
		for _, f := range s.frontends() {
			p.nat.Services = append(p.nat.Services, s.at(&f, c.Node))
			switch {
			case f.address.IsUnspecified():
			case slices.Contains(own, f.address):
				places[f.address] = append(places[f.address], portOf{s.Protocol, f.port})
			default:
				alone[f.address] = true
			}
		}
	}
	spare := map[netip.Addr]bool{}
	for _, at := range left {
		switch a := at.Addr(); {
		case slices.Contains(own, a):
			places[a] = append(places[a], portOf{unix.IPPROTO_TCP, at.Port()})
		case !alone[a] && !containsAddr(c.ServiceCIDRs, a):
			alone[a], spare[a] = true, true
		}
	}
	if c.State != "" { // otherwise the device ends with this process
		p.Answers = slices.ContainsFunc(c.Announce, func(p netip.Prefix) bool { return p.Addr().Is4() }) &&
			c.masquerade().V4.IsValid()
		for _, a := range c.Answers {
			if a.Is4() && alone[a] {
				p.Answered = append(p.Answered, steer.Host(a))
			}
		}
		slices.SortFunc(p.Answered, netip.Prefix.Compare)
	}
	p.Spare = map[netip.Prefix]bool{}
	p.Routes = append(p.Routes, c.ServiceCIDRs...)
	for a := range alone {
		p.nat.Services = append(p.nat.Services, rules.Service{Name: "other ports", Address: a,
			Frontend: &rules.Frontend{}})
		if !slices.Contains(p.Answered, steer.Host(a)) && !containsAddr(c.ServiceCIDRs, a) {
			p.Routes = append(p.Routes, steer.Host(a))
		}
		if spare[a] {
			p.Spare[steer.Host(a)] = true
		}
	}
	slices.SortFunc(p.Routes, netip.Prefix.Compare)
	return places
}

// leadFront plans rules for what is served at the node's own addresses.
func (p *plan) leadFront(c *Config, own []netip.Addr, places map[netip.Addr][]portOf) {
	for _, a := range own {
		for _, r := range fewer(ranges(places[a]), maxNodePorts) {
			p.Front = append(p.Front, steer.Match{To: steer.Host(a), Protocol: r.protocol, Ports: r.ports})
		}
	}
	for _, a := range c.Answers {
		if a.Is6() { // the node has it too, as an anycast address
			p.Front = append(p.Front, steer.Match{To: steer.Host(a)})
			p.Probed = true
		}
	}
	for _, r := range fewer(c.nodePorts(), maxNodePorts) {
		for _, a := range c.Addresses {
			p.Front = append(p.Front, steer.Match{To: steer.Host(a), Protocol: r.protocol, Ports: r.ports})
		}
	}
}

// leadAnswers plans rules for what endpoints send to clients.
func (p *plan) leadAnswers(c *Config, left orphans) {
	protocols := c.protocols()
	if len(left.at) > 0 && !slices.Contains(protocols, unix.IPPROTO_TCP) {
		protocols = append(protocols, unix.IPPROTO_TCP)
	}
	for _, protocol := range protocols {
		for a := range c.masquerade().All() {
			p.Front = append(p.Front, steer.Match{To: steer.Host(a), Protocol: protocol, Ports: c.Ports})
		}
		for _, hosts := range slices.Concat(c.Pods, c.Routed) {
			p.Behind = append(p.Behind, steer.Match{From: hosts, Protocol: protocol, Ports: c.Ports})
		}
	}
	p.ends = c.endpointPorts(left.ends)
	for _, r := range fewer(ranges(slices.Clone(p.ends)), maxEndpointPorts) {
		for _, hosts := range slices.Concat(c.Pods, c.Routed) {
			if a := c.masquerade().Of(hosts.Addr().Is6()); a.IsValid() {
				p.Front = append(p.Front, steer.Match{From: hosts, To: steer.Host(a), Protocol: r.protocol,
					Ports: rules.PortRange{First: 1, Last: rules.Privileged.Last}, Ends: r.ports})
			}
			p.Behind = append(p.Behind, steer.Match{From: hosts, Protocol: r.protocol, Ports: rules.Kept(r.protocol),
				Ends: r.ports})
		}
	}
}

// NAT returns the engine's configuration for c, on a node whose addresses are own.
func (c *Config) NAT(own []netip.Addr) *nat.Config { return &c.plan(own, orphans{}).nat }

func containsAddr(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// A frontend is one address and port of a service.
type frontend struct {
	field   string // the field that specifies it
	address netip.Addr
	port    uint16
	rules.Frontend
}

func (s *Service) frontends() (all []frontend) {
	for _, a := range s.ClusterIPs {
		all = append(all, frontend{"clusterIP", a, s.Port, rules.Frontend{Local: s.InternalLocal}})
	}
	outside := rules.Frontend{External: true, Local: s.ExternalLocal}
	if s.NodePort != 0 {
		for _, a := range s.unspecified() {
			all = append(all, frontend{"nodePort", a, s.NodePort, outside})
		}
	}
	for _, a := range s.ExternalIPs {
		all = append(all, frontend{"externalIPs", a, s.Port, outside})
	}
	outside.Sources = s.SourceRanges
	for _, a := range s.LoadBalancerIPs {
		all = append(all, frontend{"loadBalancerIPs", a, s.Port, outside})
	}
	return all
}

// at returns the engine's form of a service at one of its frontends.
func (s *Service) at(f *frontend, node string) rules.Service {
	return rules.Service{
		Name: s.Name, Address: f.address, Port: f.port, Protocol: s.Protocol, Affinity: s.Affinity,
		AffinityTimeout: s.AffinityTimeout,
		Backends:        s.backends(f.address, node), Frontend: &f.Frontend, ProxyProtocol: s.ProxyProtocol,
	}
}

// A Place is an address where a socket listens for clients of a Service.
type Place struct {
	Service       string // its name
	Field         string // of the Service, which specifies it
	Protocol      uint8
	At            netip.AddrPort
	ProxyProtocol bool
}

// Places returns where sockets listen on a node whose addresses are own, or on any node if own is
// nil. Services without endpoints have no listener: their clients are refused.
func (c *Config) Places(own []netip.Addr) (all []Place) {
	for i := range c.Services {
		s := &c.Services[i]
		for _, f := range s.frontends() {
			at := []netip.Addr{f.address}
			if f.address.IsUnspecified() {
				at = c.Addresses
			}
			for _, a := range at {
				served := f.External && f.address.Is4() == a.Is4() && (own == nil || slices.Contains(own, a)) &&
					s.Protocol != unix.IPPROTO_SCTP
				if served && slices.ContainsFunc(s.backends(a, c.Node),
					func(b rules.Backend) bool { return b.Eligibility != rules.EligibleNone }) {
					all = append(all, Place{s.Name, f.field, s.Protocol, netip.AddrPortFrom(a, f.port),
						s.ProxyProtocol})
				}
			}
		}
	}
	return all
}

// unspecified returns the unspecified address of each family of the node port.
func (s *Service) unspecified() (all []netip.Addr) {
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if len(s.ClusterIPs) == 0 || slices.ContainsFunc(s.ClusterIPs,
			func(c netip.Addr) bool { return c.Is4() == a.Is4() }) {
			all = append(all, a)
		}
	}
	return all
}

// backends returns the endpoints of an address's family.
func (s *Service) backends(of netip.Addr, node string) (all []rules.Backend) {
	for _, p := range s.Endpoints {
		if p.Address.Is4() == of.Is4() {
			all = append(all, rules.Backend{Address: p.Address, Port: p.Port, Local: p.Node == node, Weight: p.Weight,
				Eligibility: p.Eligibility})
		}
	}
	return all
}

// masquerade returns the first of Addresses of each family.
func (c *Config) masquerade() (p rules.Pair) {
	for _, a := range slices.Backward(c.Addresses) {
		p.Set(a)
	}
	return p
}

// protocols returns the protocols of all services.
func (c *Config) protocols() (all []uint8) {
	for i := range c.Services {
		all = append(all, c.Services[i].Protocol)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// endpointPorts returns the ports of all endpoints that a rule can name, and more.
func (c *Config) endpointPorts(more []portOf) []portOf {
	known := map[portOf]bool{}
	for _, at := range more {
		known[at] = true
	}
	for i := range c.Services {
		last := portOf{}
		for _, e := range c.Services[i].Endpoints {
			if at := (portOf{c.Services[i].Protocol, e.Port}); at != last && e.Port <= maxPort {
				last, known[at] = at, true
			}
		}
	}
	return slices.Collect(maps.Keys(known))
}

// A portsOf is a port range of a protocol.
type portsOf struct {
	protocol uint8
	ports    rules.PortRange
}

// nodePorts returns the node ports of all services.
func (c *Config) nodePorts() []portsOf {
	var all []portOf
	for i := range c.Services {
		if s := &c.Services[i]; s.NodePort != 0 {
			all = append(all, portOf{s.Protocol, s.NodePort})
		}
	}
	return ranges(all)
}

// fewer joins the closest ranges of a protocol until there are at most most, or one per protocol.
// Ports in between belong to nobody; their packets pass unchanged.
func fewer(all []portsOf, most int) []portsOf {
	gap := func(i int) int { return int(all[i].ports.First) - int(all[i-1].ports.Last) }
	var gaps []int
	for i := 1; i < len(all); i++ {
		if all[i].protocol == all[i-1].protocol {
			gaps = append(gaps, gap(i))
		}
	}
	surplus := min(len(all)-most, len(gaps))
	if surplus <= 0 {
		return all
	}
	slices.Sort(gaps)
	widest := gaps[surplus-1]
	joined := all[:1]
	for i := 1; i < len(all); i++ {
		if last := &joined[len(joined)-1]; all[i].protocol == last.protocol &&
			int(all[i].ports.First)-int(last.ports.Last) <= widest {
			last.ports.Last = all[i].ports.Last
			continue
		}
		joined = append(joined, all[i])
	}
	return joined
}

// ranges joins adjacent ports.
func ranges(ports []portOf) (all []portsOf) {
	sort.Slice(ports, func(i, j int) bool {
		a, b := ports[i], ports[j]
		return a.protocol < b.protocol || a.protocol == b.protocol && a.port < b.port
	})
	for _, p := range slices.Compact(ports) {
		if n := len(all); n > 0 && all[n-1].protocol == p.protocol && all[n-1].ports.Last == p.port-1 {
			all[n-1].ports.Last = p.port
			continue
		}
		all = append(all, portsOf{p.protocol, rules.PortRange{First: p.port, Last: p.port}})
	}
	return all
}
