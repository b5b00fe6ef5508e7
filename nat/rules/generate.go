package rules

import (
	"fmt"
	"net/netip"
)

// A Config without Firewall and Routing generates them: the tables that Liqo's controllers make,
// under the same names where they mean the same. They define the order of translations and the
// return path.

// outboundMark marks the packets from nodes that are addressed to the remote cluster as seen by the
// local one. With overlapping CIDRs the translated destination alone cannot distinguish them from
// local traffic. Marks below 1<<16 are links of nodes.
const outboundMark = 1 << 16

// The priorities of generated policy rules.
const (
	priorityOutbound = 100 // packets with outboundMark, to the tunnel
	priorityPods     = 400 // minus the prefix length, so that the longest prefix of all nodes comes first
	priorityReturn   = 500 // packets that no rule above returns, to the node of their connection
	priorityVia      = 600 // mapped hosts and backends outside the cluster
)

// device returns the name that tables use for the node's tunnel.
func (n *Node) device() string {
	if n.Device != "" {
		return n.Device
	}
	return n.Name
}

// tunnel returns the tunnel to the peer.
func (c *Config) tunnel() *Device {
	sources := c.FromTunnel
	if sources == nil {
		for _, r := range c.Remote {
			sources = append(sources, r.Real)
		}
	}
	return &Device{Link: Tunnel, Name: tunnelDevice, Address: c.PeerTunnelAddress, Own: c.TunnelAddress,
		Sources: sources}
}

// A namedResource is a resource with its key.
type namedResource struct {
	key Key
	Resource
}

// The order of generated chains of one hook and priority: that of Tables.
const (
	orderMapping = iota
	orderRemap
	orderUnknown
	orderOutbound
	orderRules
	orderReturn
	orderMSS
)

// resources returns the resources that c stands for. The tunnel comes first, so that no node can
// take its name.
func (c *Config) resources() []namedResource {
	if c.Host != nil {
		return c.hostResources()
	}
	all := make([]namedResource, 0, 8+len(c.Nodes)+len(c.Addresses)+len(c.Services))
	add := func(kind, name string, r Resource) { all = append(all, namedResource{Key{Kind: kind, Name: name}, r}) }
	add(kindNetwork, "tunnel", Resource{Device: c.tunnel()})
	routes, devices := c.RoutesByLink(), c.devices()
	for i := range c.Nodes {
		n := &c.Nodes[i]
		r := Resource{Order: orderReturn, Device: &Device{Link: n.Link, Name: n.device(), Address: n.Address}}
		rules := n.rules(routes[n.Link])
		switch {
		case c.Firewall == nil && c.Routing == nil:
			r.Node = &rules
		case c.Firewall == nil:
			r.Tables = []Table{returnTable([]NodeRules{rules})}
		case c.Routing == nil:
			r.Routing = rules.routing()
		}
		add(kindNode, n.Name, r)
	}
	for i, t := range c.Firewall {
		add(kindFirewall, t.Name, Resource{Order: int64(i), Tables: c.Firewall[i : i+1]})
	}
	for i, t := range c.Routing {
		add(kindRouting, t.Name, Resource{Order: int64(i), Routing: c.Routing[i : i+1]})
	}
	for _, m := range c.Addresses {
		add(kindMapping, m.External.String(), c.mapping(m, devices))
	}
	for i := range c.Services {
		s := &c.Services[i]
		r := Resource{Order: orderMapping, Service: s}
		if c.Routing == nil {
			r.Routing = c.backendRoutes(s, devices)
		}
		add(kindService, s.key(), r)
	}
	if c.Routing == nil {
		add(kindNetwork, "routes", Resource{Routing: []PolicyTable{c.outboundRoutes()}})
	}
	if c.Firewall != nil {
		return all
	}
	add(kindNetwork, "remap", Resource{Order: orderRemap, Tables: []Table{c.remapTable("remap-podcidr", false),
		c.remapTable("remap-externalcidr", true)}})
	add(kindNetwork, "unknown-source", Resource{Order: orderUnknown, Tables: []Table{
		c.unknownSourceTable("unknown-source", FamilyIPv4), c.unknownSourceTable("unknown-source-6", FamilyIPv6)}})
	add(kindNetwork, "outbound", Resource{Order: orderOutbound, Tables: []Table{c.outboundTable()}})
	add(kindNetwork, "rules", Resource{Order: orderRules, Tables: []Table{c.filterTable()}})
	add(kindNetwork, "return", Resource{Order: orderReturn, Tables: []Table{restoreTable()}})
	if tables := c.mssTables(); tables != nil {
		add(kindNetwork, "mss", Resource{Order: orderMSS, Tables: tables})
	}
	return all
}

// key returns the name of the resource of s: services of one name have a resource for each port.
func (s *Service) key() string {
	return fmt.Sprintf("%s %s:%d/%d", s.Name, s.Address, s.Port, s.Protocol)
}

// mapping returns the resource that an address mapping stands for.
func (c *Config) mapping(m AddressMapping, devices map[Link]string) Resource {
	rules := MappingRules{External: m.External, Internal: m.Internal, Pod: contains(c.LocalPodCIDRs, m.Internal),
		Device: devices[m.Via], ProxyProtocol: m.ProxyProtocol}
	switch {
	case c.Firewall == nil && c.Routing == nil:
		return Resource{Order: orderMapping, Mapping: &rules}
	case c.Firewall == nil:
		return Resource{Order: orderMapping, Tables: rules.table(new(mappingRoom))}
	case c.Routing == nil:
		return Resource{Order: orderMapping, Routing: rules.routing(new(mappingRoom))}
	}
	return Resource{Order: orderMapping}
}

// network returns what rules need to know about the gateway.
func (c *Config) network() network {
	n := network{gateway: c.GatewayAddress, generated: c.Firewall == nil && c.Host == nil, host: newHost(c)}
	if len(c.Nodes) > 0 {
		n.first = c.Nodes[0].Link
	}
	if c.Admit != nil && c.Host == nil {
		n.admission = newAdmission(c.Admit)
	}
	return n
}

func (n *Node) rules(prefixes []netip.Prefix) NodeRules {
	return NodeRules{Name: n.Name, Device: n.device(), Mark: uint32(n.Link), Prefixes: prefixes}
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// PolicyTables returns Routing or, if that is nil, the policy tables that the other fields stand
// for.
func (c *Config) PolicyTables() []PolicyTable {
	if c.Routing != nil {
		return c.Routing
	}
	all := []PolicyTable{c.outboundRoutes()}
	routes, hosts := c.RoutesByLink(), map[Link][]PolicyRoute{}
	add := func(h netip.Addr, via Link) {
		if via == 0 && (len(c.Nodes) == 0 || contains(c.LocalPodCIDRs, h)) {
			return
		}
		if via == 0 {
			via = c.Nodes[0].Link
		}
		hosts[via] = append(hosts[via], PolicyRoute{Destination: netip.PrefixFrom(h, h.BitLen())})
	}
	for _, m := range c.Addresses {
		add(m.Internal, m.Via)
	}
	for _, s := range c.Services {
		for _, b := range s.Backends {
			add(b.Address, b.Via)
		}
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		rules := n.rules(routes[n.Link])
		all = append(all, rules.routing()...)
		if hosts := hosts[n.Link]; hosts != nil {
			for i := range hosts {
				hosts[i].Device = n.device()
			}
			all = append(all, hostRoutes(n.Name, hosts))
		}
	}
	return all
}

// outboundRoutes route packets with outboundMark to the tunnel.
func (c *Config) outboundRoutes() PolicyTable {
	outbound := PolicyRule{Mark: outboundMark, Priority: priorityOutbound}
	for _, r := range c.Remote {
		route := PolicyRoute{Destination: r.Real, Via: c.PeerTunnelAddress.Of(r.Real.Addr().Is6())}
		if !route.Via.IsValid() {
			route.Device = tunnelDevice
		}
		outbound.Routes = append(outbound.Routes, route)
	}
	return PolicyTable{Name: "gw-ext", Rules: []PolicyRule{outbound}}
}

// RoutesByLink returns the prefixes of Routes by link.
func (c *Config) RoutesByLink() map[Link][]netip.Prefix {
	all := map[Link][]netip.Prefix{}
	for _, r := range c.Routes {
		all[r.Link] = append(all[r.Link], r.Prefix)
	}
	return all
}

// backendRoutes route to backends outside the cluster.
func (c *Config) backendRoutes(s *Service, devices map[Link]string) []PolicyTable {
	var routes []PolicyRoute
	for _, b := range s.Backends {
		if b.Via == 0 && contains(c.LocalPodCIDRs, b.Address) {
			continue
		}
		routes = append(routes, PolicyRoute{Destination: netip.PrefixFrom(b.Address, b.Address.BitLen()),
			Device: devices[b.Via]})
	}
	if routes == nil {
		return nil
	}
	return []PolicyTable{hostRoutes(s.Name, routes)}
}

// devices returns the names that tables use for nodes' tunnels, by link; 0 is the first node's.
func (c *Config) devices() map[Link]string {
	all := map[Link]string{0: firstNodeDevice}
	for i := range c.Nodes {
		all[c.Nodes[i].Link] = c.Nodes[i].device()
	}
	return all
}
