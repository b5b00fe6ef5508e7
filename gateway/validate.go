package gateway

import (
	"fmt"
	"net/netip"

	"culvert/gateway/configfile"
)

// maxNodes is how many nodes nat.Port can number with room to spare.
const maxNodes = 32768

// tunnelBlock is where Liqo puts tunnel addresses; nothing else may lie in it.
var tunnelBlock = netip.MustParsePrefix("169.254.18.0/24")

// Validate reports everything in c that contradicts itself, each error with its
// path in the configuration file.
func (c *Config) Validate() error {
	e := new(configfile.Errors)
	c.validate(e)
	return e.Err()
}

func (c *Config) validate(e *configfile.Errors) {
	if c.Cluster != "" && c.Cluster == c.Peer {
		e.Add("peer", "%q is this cluster's own ID", c.Peer)
	}
	if c.WireGuard.PrivateKey != (Key{}) && c.WireGuard.PrivateKey.Public() == c.WireGuard.PeerPublicKey {
		e.Add("wireguard.peerPublicKey", "is the public key of wireguard.privateKeyFile; give the peer's")
	}
	if c.WireGuard.ListenPort == c.Geneve.ListenPort {
		e.Add("geneve.listenPort", "%d is wireguard.listenPort too; both are UDP", c.Geneve.ListenPort)
	}
	c.validateNetworks(e)
	c.validateNodes(e)
	c.validateNAT(e)
}

// place is a range of addresses with the path that claimed it.
type place struct {
	path   string
	prefix netip.Prefix
}

// places finds overlaps of what the local cluster sees as different things.
type places []place

func (ps *places) claim(e *configfile.Errors, path string, p netip.Prefix, remedy string) {
	if !p.IsValid() {
		return
	}
	for _, q := range *ps {
		if q.prefix.Overlaps(p) {
			e.Add(path, "%s overlaps %s (%s)%s", p, q.path, q.prefix, remedy)
			return
		}
	}
	*ps = append(*ps, place{path, p})
}

func (c *Config) validateNetworks(e *configfile.Errors) {
	if len(c.Local.PodCIDRs) == 0 && !e.Bad("network.local.podCIDRs[0]") {
		e.Add("network.local.podCIDRs", "missing")
	}
	// seen: what this cluster's nodes can address; real: how the remote cluster
	// names itself, which may equal local CIDRs.
	var seen, real places
	seen.claim(e, "the tunnel addresses", tunnelBlock, "")
	for i, p := range c.Local.PodCIDRs {
		seen.claim(e, fmt.Sprintf("network.local.podCIDRs[%d]", i), p, "")
	}
	for i, p := range c.Local.ExternalCIDRs {
		seen.claim(e, fmt.Sprintf("network.local.externalCIDRs[%d]", i), p, "")
	}
	real.claim(e, "the tunnel addresses", tunnelBlock, "")
	index := map[bool]int{}
	for _, r := range c.Remote {
		path := fmt.Sprintf("network.remote.podCIDRs[%d]", index[r.External])
		if r.External {
			path = fmt.Sprintf("network.remote.externalCIDRs[%d]", index[r.External])
		}
		index[r.External]++
		real.claim(e, path+".cidr", r.Real, "")
		if r.Remapped == r.Real {
			seen.claim(e, path+".cidr", r.Real, "; give it a remap to an unused CIDR of the same length")
		} else {
			seen.claim(e, path+".remap", r.Remapped, "; choose an unused CIDR")
		}
	}
	if index[false] == 0 {
		e.Add("network.remote.podCIDRs", "missing")
	}
	if a := c.UnknownSource; a.IsValid() && !contains(c.Local.ExternalCIDRs, a) {
		e.Add("nat.unknownSource", "%s is in no CIDR of network.local.externalCIDRs", a)
	}
	hosts := map[netip.Addr]string{}
	host := func(path string, a netip.Addr) {
		if !a.IsValid() {
			return
		}
		for _, q := range seen {
			if q.prefix.Contains(a) {
				e.Add(path, "%s lies in %s (%s); internal addresses need a CIDR of their own", a, q.path, q.prefix)
			}
		}
		if other, ok := hosts[a]; ok {
			e.Add(path, "%s is %s too", a, other)
		}
		hosts[a] = path
	}
	host("geneve.gatewayAddress", c.Geneve.GatewayAddress)
	for i, n := range c.Geneve.Nodes {
		host(fmt.Sprintf("geneve.nodes[%d].address", i), n.Address)
	}
}

func (c *Config) validateNodes(e *configfile.Errors) {
	if len(c.Geneve.Nodes) == 0 {
		e.Add("geneve.nodes", "missing; a gateway serves at least one node")
	}
	if len(c.Geneve.Nodes) > maxNodes {
		e.Add("geneve.nodes", "%d nodes; a gateway serves at most %d", len(c.Geneve.Nodes), maxNodes)
		return
	}
	names, vnis := map[string]int{}, map[uint32]int{}
	podCIDRs := map[netip.Prefix]string{}
	for i, n := range c.Geneve.Nodes {
		at := fmt.Sprintf("geneve.nodes[%d].", i)
		if j, ok := names[n.Name]; ok && n.Name != "" {
			e.Add(at+"name", "%q is geneve.nodes[%d] too", n.Name, j)
		}
		names[n.Name] = i
		if !e.Bad(at + "vni") {
			if j, ok := vnis[uint32(n.VNI)]; ok {
				e.Add(at+"vni", "%d is geneve.nodes[%d].vni too; a VNI identifies one node", n.VNI, j)
			} else {
				vnis[uint32(n.VNI)] = i
			}
		}
		if n.Underlay.IsValid() && (n.Underlay.IsUnspecified() || n.Underlay.IsMulticast()) {
			e.Add(at+"underlay", "%s is no host's address", n.Underlay)
		}
		for k, p := range n.PodCIDRs {
			path := fmt.Sprintf("%spodCIDRs[%d]", at, k)
			if !within(c.Local.PodCIDRs, p) {
				e.Add(path, "%s is outside network.local.podCIDRs", p)
			}
			if other, ok := podCIDRs[p]; ok {
				e.Add(path, "%s is %s too", p, other)
			}
			podCIDRs[p] = path
		}
	}
}

// validateNAT checks what mappings, services and rules refer to.
func (c *Config) validateNAT(e *configfile.Errors) {
	nodes := map[string]bool{"": true}
	for _, n := range c.Geneve.Nodes {
		nodes[n.Name] = true
	}
	via := func(path, name string) {
		if !nodes[name] {
			e.Add(path, "%q is no node of geneve.nodes", name)
		}
	}
	type target struct {
		addr     netip.Addr
		protocol uint8
		port     uint16
	}
	claimed := map[target]string{}
	mapped := map[netip.Addr]string{}
	external := func(path string, a netip.Addr) {
		switch {
		case !a.IsValid():
		case !contains(c.Local.ExternalCIDRs, a):
			e.Add(path, "%s is in no CIDR of network.local.externalCIDRs", a)
		case a == c.UnknownSource:
			e.Add(path, "%s is the unknown-source address; choose another", a)
		}
	}
	for i, m := range c.Addresses {
		at := fmt.Sprintf("nat.addresses[%d].", i)
		external(at+"external", m.External)
		via(at+"via", m.Via)
		if other, ok := mapped[m.External]; ok {
			e.Add(at+"external", "%s is %s too", m.External, other)
		} else {
			mapped[m.External] = at + "external"
		}
	}
	for i, s := range c.Services {
		at := fmt.Sprintf("nat.services[%d].", i)
		external(at+"address", s.Address)
		t := target{s.Address, s.Protocol, s.Port}
		if other, ok := claimed[t]; ok {
			e.Add(at+"port", "%s port %d is %s too", s.Address, s.Port, other)
		}
		claimed[t] = at + "port"
		if other, ok := mapped[s.Address]; ok {
			e.Add(at+"address", "%s is %s too", s.Address, other)
		}
		for k, b := range s.Backends {
			via(fmt.Sprintf("%sbackends[%d].via", at, k), b.Via)
		}
	}
	names := map[string]int{}
	for i, r := range c.Rules {
		if j, ok := names[r.Name]; ok && r.Name != "" {
			e.Add(fmt.Sprintf("rules[%d].name", i), "%q is rules[%d] too", r.Name, j)
		}
		names[r.Name] = i
	}
}

func contains(ps []netip.Prefix, a netip.Addr) bool {
	for _, p := range ps {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func within(ps []netip.Prefix, p netip.Prefix) bool {
	for _, q := range ps {
		if q.Bits() <= p.Bits() && q.Contains(p.Addr()) {
			return true
		}
	}
	return false
}
