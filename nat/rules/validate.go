package rules

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"culvert/nat/packet"

	"github.com/gaissmai/bart"
)

const (
	// minClamp and maxClamp bound MSSClamp. The largest packet has 65535 bytes, 40 of which are
	// IPv4 and TCP headers.
	minClamp, maxClamp = 64, 65535 - 40
)

// A checker collects every fault of a Config or of a Resource, each with the path of its field.
type checker struct {
	of       string
	faults   []error
	nodes    map[Link]bool
	external bart.Lite // the local external CIDRs
}

func (k *checker) fault(path, format string, args ...any) {
	k.faults = append(k.faults, fmt.Errorf("rules: %s: %s: %s", k.of, path, fmt.Sprintf(format, args...)))
}

func (k *checker) prefix(path string, p netip.Prefix) bool {
	switch {
	case !p.IsValid():
		k.fault(path, "not a prefix")
	case p.Addr().Is4In6():
		k.fault(path, "%s is IPv4 mapped into IPv6", p)
	case p != p.Masked():
		k.fault(path, "%s has host bits set", p)
	default:
		return true
	}
	return false
}

// good reports whether address finds no fault.
func good(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsMulticast() && !a.IsUnspecified()
}

func (k *checker) address(path string, a netip.Addr) bool {
	switch {
	case !a.IsValid():
		k.fault(path, "not an address")
	case a.Is4In6() || a.Zone() != "":
		k.fault(path, "%s is IPv4 mapped into IPv6 or has a zone", a)
	case a.IsMulticast() || a.IsUnspecified():
		k.fault(path, "%s is no unicast address", a)
	default:
		return true
	}
	return false
}

// addresses checks the valid addresses of d: the others are not known yet, or their family is not
// used.
func (k *checker) addresses(path string, d Pair) {
	if d.V4.IsValid() && !d.V4.Is4() || d.V6.Is4() {
		k.fault(path, "%s has a family in the other's place", d)
		return
	}
	for a := range d.All() {
		k.address(path, a)
	}
}

// node checks a reference to a node; 0 is allowed where the first node is the default.
func (k *checker) node(path string, p Link, zero bool) {
	if !(p == 0 && zero) && !k.nodes[p] {
		k.fault(path, "link %d is no node", p)
	}
}

// Validate returns every fault of c, joined, or nil.
func (c *Config) Validate() error {
	k := &checker{of: "config", nodes: make(map[Link]bool, len(c.Nodes))}
	if c.Host != nil {
		c.validateHost(k)
		return errors.Join(k.faults...)
	}
	for _, n := range c.Nodes {
		k.nodes[n.Link] = true
	}
	for _, p := range c.LocalExternalCIDRs {
		k.external.Insert(p)
	}
	c.validateNodes(k)
	c.validatePrefixes(k)
	c.validateUnknownSource(k)
	c.validateMappings(k)
	c.validateRules(k)
	c.validateAdmit(k)
	return errors.Join(k.faults...)
}

// validate returns every fault of a resource of Put, except those of its tables.
func (r *Resource) validate(key Key) error {
	if r.Device == nil && r.Service == nil {
		return nil
	}
	k := &checker{of: key.String()}
	if d := r.Device; d != nil {
		if d.Name == "" {
			k.fault("Device.Name", "a device needs a name")
		}
		if d.Link == 0 || d.Link > packet.LastOutside {
			k.fault("Device.Link", "%d is reserved", d.Link)
		}
		if !d.Link.Outside() && (d.Own.IsValid() || d.Sources != nil) {
			k.fault("Device", "link %d is inside, where Own and Sources are the configuration's", d.Link)
		}
		k.addresses("Device.Own", d.Own)
		for i, p := range d.Sources {
			k.prefix(fmt.Sprintf("Device.Sources[%d]", i), p)
		}
		k.addresses("Device.Address", d.Address)
	}
	if r.Service != nil {
		k.address("Service.Address", r.Service.Address)
		k.service("Service", r.Service)
		k.frontless("Service", r.Service)
	}
	return errors.Join(k.faults...)
}

func (c *Config) validateNodes(k *checker) {
	links, names, addresses := map[Link]int{}, map[string]int{}, map[netip.Addr]int{}
	for i, n := range c.Nodes {
		path := fmt.Sprintf("Nodes[%d]", i)
		if n.Link == 0 || n.Link >= packet.FirstOutside {
			k.fault(path+".Link", "%d is reserved", n.Link)
		}
		if j, ok := links[n.Link]; ok {
			k.fault(path+".Link", "%d is also Nodes[%d]", n.Link, j)
		}
		if j, ok := names[n.Name]; ok {
			k.fault(path+".Name", "%q is also Nodes[%d]", n.Name, j)
		}
		if !n.Address.IsValid() {
			k.fault(path+".Address", "not an address")
		}
		k.addresses(path+".Address", n.Address)
		for a := range n.Address.All() {
			if j, ok := addresses[a]; ok {
				k.fault(path+".Address", "%s is also Nodes[%d]", a, j)
			}
			if c.GatewayAddress.Has(a) {
				k.fault(path+".Address", "%s is also GatewayAddress", a)
			}
			addresses[a] = i
		}
		links[n.Link], names[n.Name] = i, i
	}
	for path, own := range c.ownAddresses() {
		k.addresses(path, own)
	}
	seen := map[netip.Prefix]int{}
	for i, r := range c.Routes {
		path := fmt.Sprintf("Routes[%d]", i)
		if k.prefix(path+".Prefix", r.Prefix) {
			if j, ok := seen[r.Prefix]; ok {
				k.fault(path+".Prefix", "%s is also Routes[%d]", r.Prefix, j)
			}
			seen[r.Prefix] = i
		}
		k.node(path+".Link", r.Link, false)
	}
}

// ownAddresses returns the addresses of the gateway and of the tunnel by field.
func (c *Config) ownAddresses() iter.Seq2[string, Pair] {
	return func(yield func(string, Pair) bool) {
		_ = yield("GatewayAddress", c.GatewayAddress) && yield("TunnelAddress", c.TunnelAddress) &&
			yield("PeerTunnelAddress", c.PeerTunnelAddress)
	}
}

// A named prefix must not overlap others of its set.
type named struct {
	path   string
	prefix netip.Prefix
}

func (k *checker) disjoint(set []named) {
	var paths bart.Table[string]
	for _, a := range set {
		q, path, ok := paths.LookupPrefixLPM(a.prefix)
		if !ok {
			for q, path = range paths.Subnets(a.prefix) {
				ok = true
				break
			}
		}
		if ok {
			k.fault(a.path, "%s overlaps %s %s", a.prefix, path, q)
		}
		paths.Insert(a.prefix, a.path)
	}
}

func (c *Config) validatePrefixes(k *checker) {
	var local, realOnes []named // what the local cluster sees; what arrives from the tunnel
	add := func(set *[]named, path string, p netip.Prefix) {
		if k.prefix(path, p) {
			*set = append(*set, named{path, p})
		}
	}
	for i, p := range c.LocalPodCIDRs {
		add(&local, fmt.Sprintf("LocalPodCIDRs[%d]", i), p)
	}
	for i, p := range c.LocalExternalCIDRs {
		add(&local, fmt.Sprintf("LocalExternalCIDRs[%d]", i), p)
	}
	for i, r := range c.Remote {
		path := fmt.Sprintf("Remote[%d]", i)
		add(&realOnes, path+".Real", r.Real)
		if !r.Remapped.IsValid() {
			if r.Real.IsValid() {
				local = append(local, named{path + ".Real (not remapped)", r.Real})
			}
			continue
		}
		add(&local, path+".Remapped", r.Remapped)
		if r.Real.IsValid() && (r.Real.Bits() != r.Remapped.Bits() || r.Real.Addr().Is4() != r.Remapped.Addr().Is4()) {
			k.fault(path+".Remapped", "%s has another length or family than %s", r.Remapped, r.Real)
		}
	}
	for path, own := range c.ownAddresses() {
		for i, r := range c.Remote {
			for a := range own.All() {
				if r.Seen().Contains(a) {
					k.fault(path, "%s lies in Remote[%d], seen as %s", a, i, r.Seen())
				}
			}
		}
	}
	k.disjoint(local)
	k.disjoint(realOnes)
	for i, p := range c.FromTunnel {
		k.prefix(fmt.Sprintf("FromTunnel[%d]", i), p)
	}
	for i, p := range c.NotFromNodes {
		k.prefix(fmt.Sprintf("NotFromNodes[%d]", i), p)
	}
}

func (c *Config) validateUnknownSource(k *checker) {
	if c.MSSClamp < MSSOff || c.MSSClamp > 0 && c.MSSClamp < minClamp || c.MSSClamp > maxClamp {
		k.fault("MSSClamp", "%d is not MSSAuto, MSSOff or between %d and %d", c.MSSClamp, minClamp, maxClamp)
	}
	for u := range c.UnknownSource.All() {
		if !k.external.Contains(u) {
			k.fault("UnknownSource", "%s lies in no local external CIDR", u)
		}
	}
}

func (c *Config) validateMappings(k *checker) {
	type endpoint struct {
		netip.Addr
		port     uint16
		protocol uint8
	}
	external, internal, services := map[netip.Addr]int{}, map[netip.Addr]int{}, map[endpoint]int{}
	for i, m := range c.Addresses {
		path := fmt.Sprintf("Addresses[%d]", i)
		if k.address(path+".External", m.External) {
			if !k.external.Contains(m.External) || c.UnknownSource.Has(m.External) {
				k.fault(path+".External", "%s is U or lies in no local external CIDR", m.External)
			}
			if j, ok := external[m.External]; ok {
				k.fault(path+".External", "%s is also Addresses[%d]", m.External, j)
			}
		}
		if k.address(path+".Internal", m.Internal) {
			if m.Internal.Is4() != m.External.Is4() {
				k.fault(path+".Internal", "%s has another family than %s", m.Internal, m.External)
			}
			if j, ok := internal[m.Internal]; ok {
				k.fault(path+".Internal", "%s is also Addresses[%d]", m.Internal, j)
			}
		}
		external[m.External], internal[m.Internal] = i, i
		k.node(path+".Via", m.Via, true)
	}
	for i, s := range c.Services {
		path := fmt.Sprintf("Services[%d]", i)
		if k.address(path+".Address", s.Address) && (!k.external.Contains(s.Address) ||
			c.UnknownSource.Has(s.Address)) {
			k.fault(path+".Address", "%s is U or lies in no local external CIDR", s.Address)
		}
		if j, ok := external[s.Address]; ok {
			k.fault(path+".Address", "%s is also Addresses[%d]", s.Address, j)
		}
		e := endpoint{s.Address, s.Port, s.Protocol}
		if j, ok := services[e]; ok {
			k.fault(path, "%s:%d is also Services[%d]", s.Address, s.Port, j)
		}
		services[e] = i
		k.service(path, &c.Services[i])
		k.frontless(path, &c.Services[i])
		for j, b := range s.Backends {
			k.node(fmt.Sprintf("%s.Backends[%d].Via", path, j), b.Via, true)
		}
	}
}

// frontless checks a service of a gateway.
func (k *checker) frontless(path string, s *Service) {
	if s.Frontend != nil {
		k.fault(path+".Frontend", "a gateway's service has none")
	}
}

// service checks what depends on no other field.
func (k *checker) service(path string, s *Service) {
	if s.Port == 0 {
		k.fault(path+".Port", "0 is no port")
	}
	if s.Protocol != packet.TCP && s.Protocol != packet.UDP && s.Protocol != packet.SCTP {
		k.fault(path+".Protocol", "%d is not TCP, UDP or SCTP", s.Protocol)
	}
	if s.ProxyProtocol && s.Protocol != packet.TCP {
		k.fault(path+".ProxyProtocol", "protocol %d is not TCP, which alone has it", s.Protocol)
	}
	if s.Balance > BalanceHash || s.Affinity > AffinityClientIP || s.OnRemoval > RemovalReset || s.AffinityTimeout < 0 {
		k.fault(path, "balance, affinity or onRemoval out of range")
	}
	for j := range s.Backends {
		b := &s.Backends[j]
		at := func() string { return fmt.Sprintf("%s.Backends[%d]", path, j) } // rarely needed, and there are many
		switch {
		case !good(b.Address):
			k.address(at()+".Address", b.Address)
		case b.Address.Is4() != s.Address.Is4():
			k.fault(at()+".Address", "%s has another family than %s", b.Address, s.Address)
		}
		if b.Port == 0 {
			k.fault(at()+".Port", "0 is no port")
		}
		if b.Weight < 0 || b.Weight > 1000 {
			k.fault(at()+".Weight", "%d is not between 0 and 1000", b.Weight)
		}
		if b.Eligibility > EligibleNone || b.Eligibility != EligibleAll && s.Frontend == nil {
			k.fault(at()+".Eligibility", "%d out of range, or the Service is no Host's", b.Eligibility)
		}
	}
}

func (c *Config) validateRules(k *checker) {
	names := map[string]int{}
	for i, r := range c.Rules {
		path := fmt.Sprintf("Rules[%d]", i)
		if j, ok := names[r.Name]; ok {
			k.fault(path+".Name", "%q is also Rules[%d]", r.Name, j)
		}
		names[r.Name] = i
		for j, p := range r.Source {
			k.prefix(fmt.Sprintf("%s.Source[%d]", path, j), p)
		}
		for j, p := range r.Destination {
			k.prefix(fmt.Sprintf("%s.Destination[%d]", path, j), p)
		}
		if len(r.Ports) > 0 && r.Protocol != packet.TCP && r.Protocol != packet.UDP && r.Protocol != packet.SCTP {
			k.fault(path+".Ports", "protocol %d has no ports", r.Protocol)
		}
		for j, p := range r.Ports {
			if p.First > p.Last {
				k.fault(fmt.Sprintf("%s.Ports[%d]", path, j), "%d is larger than %d", p.First, p.Last)
			}
		}
		if r.From > FromRemote || r.Action > FilterReject {
			k.fault(path, "from or action out of range")
		}
	}
}
