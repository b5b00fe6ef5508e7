package config

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"

	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Caps of the lists in a configuration. They keep the total of all rules below the cap of nat.
const (
	maxNodes    = 32768 // nat.Link has more numbers than that
	maxMappings = 65536 // of nat.addresses, of nat.services, and of nat.exports
	maxRemotes  = 65536
	maxRules    = 1 << 19 // after each combination of src, dst and ports has become a rule
)

// The connection check must neither flood the peer nor remember without bound.
const (
	minInterval  = 100 * time.Millisecond
	maxThreshold = 1000 // intervals
)

// maxKeepalive is WireGuard's limit.
const maxKeepalive = 65535 * time.Second

// maxSocketPath is the maximum length of a Unix socket's path, in bytes (unix(7)).
const maxSocketPath = 107

// tunnelBlock is where Liqo has tunnel addresses; nothing else may overlap it.
var tunnelBlock = netip.MustParsePrefix("169.254.18.0/24")

// Validate reports every contradiction in c, each with its path in the configuration file.
func (c *Config) Validate() error {
	e := new(configfile.Errors)
	c.validate(e)
	for _, a := range c.automatics() {
		e.Add(a.path, "auto, and nothing was chosen for it")
	}
	return e.Err()
}

// PresharedFault returns why the pre-shared key cannot be one; "" = it can, or there is none.
func (w *WireGuard) PresharedFault() string {
	switch w.PresharedKey {
	case wgkey.Key{}:
	case w.PrivateKey, w.PrivateKey.Public(), w.PeerPublicKey:
		return "this is the private or the public key of a gateway"
	}
	return ""
}

func (c *Config) validate(e *configfile.Errors) {
	if c.Cluster != "" {
		e.Name("cluster", c.Cluster, configfile.MaxLabel)
	}
	e.Name("peer", c.Peer, configfile.MaxLabel)
	if c.Cluster != "" && c.Cluster == c.Peer {
		e.Add("peer", "%q is this cluster's own ID", c.Peer)
	}
	if private := c.WireGuard.PrivateKey; private != (wgkey.Key{}) {
		switch c.WireGuard.PeerPublicKey {
		case private:
			e.Add("wireguard.peerPublicKey",
				"this is this gateway's private key; give the public key that culvert keygen printed for the peer")
		case private.Public():
			e.Add("wireguard.peerPublicKey", "this is this gateway's own public key; give the peer's")
		}
		if fault := c.WireGuard.PresharedFault(); fault != "" {
			e.Add("wireguard.presharedKeyFile", "%s; %s", fault, genpsk)
		}
	}
	if k := c.WireGuard.Keepalive; k < 0 || k > maxKeepalive {
		e.Add("wireguard.keepalive", "%v is not a duration from 0s to %v", k, maxKeepalive)
	}
	if k := c.ConnectionCheck; k.Interval != 0 && (k.Interval < minInterval || k.Threshold < 1 ||
		k.Threshold > maxThreshold) {
		e.Add("connectionCheck", "an interval of %v and a threshold of %d; want 0 or at least %v, and 1 to %d",
			k.Interval, k.Threshold, minInterval, maxThreshold)
	}
	if c.WireGuard.ListenPort == c.Geneve.ListenPort {
		e.Add("geneve.listenPort", "%d is wireguard.listenPort too, and both are UDP; choose another port",
			c.Geneve.ListenPort)
	}
	if n := len(c.Control); n > maxSocketPath {
		e.Add("control", "%d bytes; the path of a socket has at most %d, choose a shorter one", n, maxSocketPath)
	}
	if c.Metrics != "" {
		e.Listen("metrics", c.Metrics, DefaultMetrics)
	}
	// The caps come first: the following checks take time for each element.
	if tooMany(e, "geneve.nodes", len(c.Geneve.Nodes), maxNodes) ||
		tooMany(e, "network.remote", len(c.Remote), maxRemotes) ||
		tooMany(e, "nat.addresses", len(c.Addresses), maxMappings) ||
		tooMany(e, "nat.exports", len(c.Exports), maxMappings) ||
		tooMany(e, "nat.services", len(c.Services), maxMappings) {
		return
	}
	var external bart.Lite
	for _, p := range c.Local.ExternalCIDRs {
		external.Insert(p)
	}
	c.validateNetworks(e, &external)
	c.validateFamilies(e)
	c.validateNodes(e)
	c.validateNAT(e, &external)
	c.validateExports(e, &external)
	c.validateRules(e)
	c.validateIPAM(e)
}

// complete requires what packets need to pass. A source other than a file may learn it later.
func (c *Config) complete(e *configfile.Errors) {
	if c.Cluster == "" {
		e.Name("cluster", c.Cluster, configfile.MaxLabel)
	}
	if len(c.Local.PodCIDRs) == 0 && !e.Bad("network.local.podCIDRs[0]") {
		e.Missing("network.local.podCIDRs")
	}
	if !slices.ContainsFunc(c.Remote, func(r rules.RemoteCIDR) bool { return !r.External }) {
		e.Add("network.remote.podCIDRs",
			"missing; name what the peer has, such as {cidr: 10.0.0.0/16, remap: 10.61.0.0/16}")
	}
	if len(c.Geneve.Nodes) == 0 {
		e.Add("geneve.nodes", "missing; a gateway serves at least one node")
	}
}

func tooMany(e *configfile.Errors, path string, n, most int) bool {
	if n > most {
		e.Add(path, "%d of them; a gateway takes at most %d", n, most)
	}
	return n > most
}

// places finds overlaps between prefixes that the local cluster must tell apart. It has the path
// that claimed each prefix.
type places struct{ table bart.Table[string] }

func (ps *places) claim(e *configfile.Errors, path string, p netip.Prefix, remedy string) {
	if !p.IsValid() {
		return
	}
	if other, q, overlaps := ps.overlap(p); overlaps {
		e.Add(path, "%s overlaps %s (%s)%s", p, other, q, remedy)
		return
	}
	ps.table.Insert(p, path)
}

// overlap finds a prefix that overlaps p, and the path that claimed it.
func (ps *places) overlap(p netip.Prefix) (path string, q netip.Prefix, overlaps bool) {
	for q, path := range ps.table.Subnets(p) {
		return path, q, true
	}
	q, path, overlaps = ps.table.LookupPrefixLPM(p)
	return path, q, overlaps
}

func (c *Config) validateNetworks(e *configfile.Errors, external *bart.Lite) {
	// seen: what this cluster's nodes can address; real: the remote cluster's own addresses, which
	// may equal local CIDRs.
	var seen, real places
	for _, ps := range []*places{&seen, &real} {
		ps.claim(e, "the tunnel addresses", tunnelBlock, "")
		for _, r := range reserved {
			ps.claim(e, r.name, r.prefix, "")
		}
	}
	for i, p := range c.Local.PodCIDRs {
		seen.claim(e, fmt.Sprintf("network.local.podCIDRs[%d]", i), p, localRemedy)
	}
	for i, p := range c.Local.ExternalCIDRs {
		seen.claim(e, fmt.Sprintf("network.local.externalCIDRs[%d]", i), p, localRemedy)
	}
	for i, path := range c.remotePaths() {
		r := c.Remote[i]
		switch {
		case !sameFamily(e, path+".remap", r.Remapped.Addr(), r.Real.Addr()):
		case r.Real.IsValid() && r.Remapped.IsValid() && r.Real.Bits() != r.Remapped.Bits():
			e.Add(path+".remap", "%s and %s differ in length; a remap is 1:1, write a /%d", r.Remapped, r.Real,
				r.Real.Bits())
		}
		real.claim(e, path+".cidr", r.Real, "; leave one of them out")
		if r.Remapped == r.Real {
			seen.claim(e, path+".cidr", r.Real, "; give it a remap to an unused CIDR of the same length")
		} else {
			seen.claim(e, path+".remap", r.Remapped, "; choose an unused CIDR")
		}
	}
	for a := range c.UnknownSource.All() {
		if !external.Contains(a) {
			e.Add("nat.unknownSource", "%s is in no CIDR of network.local.externalCIDRs; %s", a, externalRemedy)
		}
	}
	hosts := map[netip.Addr]string{}
	host := func(path string, a netip.Addr) {
		if !isHost(e, path, a) {
			return
		}
		if q, other, ok := seen.table.LookupPrefixLPM(netip.PrefixFrom(a, a.BitLen())); ok {
			e.Add(path, "%s lies in %s (%s); internal addresses need a CIDR of their own", a, other, q)
		}
		if other, ok := hosts[a]; ok {
			e.Add(path, "%s is %s too; give each its own", a, other)
		}
		hosts[a] = path
	}
	for a := range c.Geneve.GatewayAddress.All() {
		host("geneve.gatewayAddress", a)
	}
	for i, n := range c.Geneve.Nodes {
		for a := range n.Address.All() {
			host(fmt.Sprintf("geneve.nodes[%d].address", i), a)
		}
	}
}

const (
	localRemedy    = "; choose another CIDR, or leave one of them out"
	externalRemedy = "choose an address of one, or add a CIDR there"
)

// isHost reports whether packets can be forwarded to a. If a is invalid, that was reported before.
func isHost(e *configfile.Errors, path string, a netip.Addr) bool {
	if a.IsValid() && !packet.Forwardable(a) {
		e.Add(path,
			"routers do not forward packets to %s; write an address to which they do, such as 10.80.0.4 or fd80::4", a)
	}
	return a.IsValid() && packet.Forwardable(a)
}

// noHost reports whether no single host receives packets to a.
func noHost(a netip.Addr) bool {
	return a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func (c *Config) validateNodes(e *configfile.Errors) {
	var local bart.Lite
	for _, p := range c.Local.PodCIDRs {
		local.Insert(p)
	}
	names, vnis := map[string]int{}, map[uint32]int{}
	podCIDRs := map[netip.Prefix]string{}
	for i, n := range c.Geneve.Nodes {
		at := fmt.Sprintf("geneve.nodes[%d].", i)
		e.Name(at+"name", n.Name, configfile.MaxDomain)
		if rules.ReservedName(n.Name) {
			e.Add(at+"name", "%q is a name of the gateway's own; choose another", n.Name)
		}
		if j, ok := names[n.Name]; ok && n.Name != "" {
			e.Add(at+"name", "%q is the name of geneve.nodes[%d] too; each node needs its own", n.Name, j)
		}
		names[n.Name] = i
		if !e.Bad(at + "vni") {
			if j, ok := vnis[uint32(n.VNI)]; ok {
				e.Add(at+"vni", "%d is geneve.nodes[%d].vni too; a VNI identifies one node", n.VNI, j)
			} else {
				vnis[uint32(n.VNI)] = i
			}
		}
		if n.Underlay.IsValid() && noHost(n.Underlay) {
			e.Add(at+"underlay",
				"%s is not the address of a host; write the one by which the gateway reaches the node's machine",
				n.Underlay)
		}
		if n.Encap == geneve.VXLAN && n.Inner == geneve.IP {
			e.Add(at+"inner", "VXLAN carries Ethernet only; leave the field out, or use encap: geneve")
		}
		for k, p := range n.PodCIDRs {
			path := fmt.Sprintf("%spodCIDRs[%d]", at, k)
			if !local.LookupPrefix(p) {
				e.Add(path,
					"%s is outside network.local.podCIDRs; add a CIDR there that contains it, or correct one of them",
					p)
			}
			if other, ok := podCIDRs[p]; ok {
				e.Add(path, "%s is %s too; give each node its own", p, other)
			}
			podCIDRs[p] = path
		}
	}
}

func (c *Config) validateRules(e *configfile.Errors) {
	names := map[string]int{}
	sum := 0
	for i, r := range c.Rules {
		path := fmt.Sprintf("rules[%d].name", i)
		e.Name(path, r.Name, configfile.MaxLabel)
		if j, ok := names[r.Name]; ok && r.Name != "" {
			e.Add(path, "%q is the name of rules[%d] too; each rule needs its own", r.Name, j)
		}
		names[r.Name] = i
		validateRuleFamilies(e, fmt.Sprintf("rules[%d]", i), &c.Rules[i])
		n := 1
		for _, any := range []int{len(r.Source), len(r.Destination), len(r.Ports)} {
			n = min(n*max(any, 1), maxRules+1)
		}
		sum = min(sum+n, maxRules+1)
	}
	if sum > maxRules {
		e.Add("rules", "more than %d combinations of src, dst and ports", maxRules)
	}
}
