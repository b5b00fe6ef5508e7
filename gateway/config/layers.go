package config

import (
	"errors"
	"maps"
	"net/netip"

	"culvert/geneve"
	"culvert/nat"
)

// Ports gives each node its nat.Port. Connections remember ports, so a node that leaves
// and comes back has the port that it had, as long as there are others for new nodes.
type Ports struct {
	ByName map[string]nat.Port // never changed
	last   map[nat.Port]string // who had it last
	next   nat.Port
}

// Assign returns the ports of nodes, who keep those that they have or had in p.
func (p Ports) Assign(nodes []Node) Ports {
	had := make(map[string]nat.Port, len(p.last))
	for port, name := range p.last {
		had[name] = port
	}
	assigned := Ports{make(map[string]nat.Port, len(nodes)), maps.Clone(p.last), p.next}
	if assigned.last == nil {
		assigned.last = make(map[nat.Port]string, len(nodes))
	}
	inUse := make(map[nat.Port]bool, len(nodes))
	for _, n := range nodes {
		if port, ok := had[n.Name]; ok {
			assigned.ByName[n.Name] = port
			inUse[port] = true
		}
	}
	for _, n := range nodes {
		if _, ok := assigned.ByName[n.Name]; ok {
			continue
		}
		for {
			assigned.next = assigned.next%maxNodes + 1
			if !inUse[assigned.next] {
				break
			}
		}
		assigned.ByName[n.Name], assigned.last[assigned.next] = assigned.next, n.Name
		inUse[assigned.next] = true
	}
	return assigned
}

// NAT is the part of c that decides about packets; maxConnections is for where c says auto.
func (c *Config) NAT(ports Ports, maxConnections int) *nat.Config {
	own, peer := c.WireGuard.Role.TunnelAddresses()
	nc := &nat.Config{
		LocalPodCIDRs:      c.Local.PodCIDRs,
		LocalExternalCIDRs: c.Local.ExternalCIDRs,
		Remote:             c.Remote,
		GatewayAddress:     c.Geneve.GatewayAddress,
		SourceCheck:        c.Geneve.SourceCheck,
		TunnelAddress:      own,
		PeerTunnelAddress:  peer,
		MTU:                int(c.MTU),
		MSSClamp:           c.MSSClamp,
		UnknownSource:      c.UnknownSource,
		Rules:              c.Rules,
		MaxConnections:     c.MaxConnections,
	}
	if nc.MaxConnections == 0 {
		nc.MaxConnections = maxConnections
	}
	if g := &c.Given; g.Rules {
		nc.Firewall, nc.Routing = []nat.Table{}, []nat.PolicyTable{}
		nc.FromTunnel, nc.NotFromNodes = notNil(g.FromTunnel), notNil(g.NotFromNodes)
	}
	for _, m := range c.Addresses {
		nc.Addresses = append(nc.Addresses, nat.AddressMapping{External: m.External, Internal: m.Internal, Via: ports.ByName[m.Via]})
	}
	for _, s := range c.Services {
		ns := nat.Service{
			Name: s.Name, Address: s.Address, Port: s.Port, Protocol: s.Protocol,
			Balance: s.Balance, Affinity: s.Affinity, AffinityTimeout: s.AffinityTimeout, OnRemoval: s.OnRemoval,
		}
		for _, b := range s.Backends {
			ns.Backends = append(ns.Backends, nat.Backend{Address: b.Address, Port: b.Port, Weight: b.Weight, Via: ports.ByName[b.Via]})
		}
		nc.Services = append(nc.Services, ns)
	}
	for _, n := range c.Geneve.Nodes {
		port := ports.ByName[n.Name]
		nc.Nodes = append(nc.Nodes, nat.Node{Port: port, Name: n.Name, Device: n.Device, Address: n.Address})
		nc.Routes = append(nc.Routes, nat.Route{Prefix: netip.PrefixFrom(n.Address, n.Address.BitLen()), Port: port})
		for _, cidr := range n.PodCIDRs {
			nc.Routes = append(nc.Routes, nat.Route{Prefix: cidr, Port: port})
		}
	}
	return nc
}

// notNil lets an empty list stand for itself.
func notNil(all []netip.Prefix) []netip.Prefix {
	if all == nil {
		return []netip.Prefix{}
	}
	return all
}

// Tunnels is the part of c that the Geneve endpoint needs; a tunnel's ID is its
// node's nat.Port. Without an internal address, the gateway has none.
func (c *Config) Tunnels(ports Ports) []geneve.Tunnel {
	var ts []geneve.Tunnel
	if !c.Geneve.GatewayAddress.IsValid() {
		return nil
	}
	for _, n := range c.Geneve.Nodes {
		ts = append(ts, geneve.Tunnel{
			ID:     uint16(ports.ByName[n.Name]),
			VNI:    n.VNI,
			Remote: n.Underlay,
			Encap:  n.Encap,
			Inner:  n.Inner,
			Local:  c.Geneve.GatewayAddress,
			Peer:   n.Address,
			Role:   geneve.Gateway,
		})
	}
	return ts
}

// Check reports everything for which a gateway refuses c, each error with its path in
// the configuration file. What a gateway finds besides when it starts is not c's: ports
// and files that others hold.
func Check(c *Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	ports := Ports{}.Assign(c.Geneve.Nodes)
	// Validate finds what these would find. An error without a path is a bug there.
	return errors.Join(nat.Check(c.NAT(ports, 0)), geneve.Check(c.Tunnels(ports), false))
}
