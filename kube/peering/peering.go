package peering

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/kube/objects"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A Peering is a parsed Peering. Without faults it is valid by itself.
type Peering struct {
	Metadata   objects.Metadata
	Generation int64
	Deleting   bool
	Faults     []string // each begins with the path of its field
	Status     Status
	spec       Spec

	Cluster, Peer string
	Role          config.Role
	PublicKey     wgkey.Key // zero: none yet
	Endpoint      string    // of a client
	MTU           int
	FollowPods    bool           // Pods say where their addresses are, not Nodes
	Internal      []netip.Prefix // at most one of each family
	Pods          []netip.Prefix // of this cluster
	External      []netip.Prefix // at most one of each family
	Remote        []rules.RemoteCIDR
	Admit         config.Admit
	Imports       string // namespace for the peer's exported Services; "": they are not imported
	Services      SpecServices
}

// Exports reports whether the peer hears of ServiceExports in a namespace.
func (p *Peering) Exports(namespace string) bool { return admits(p.Services.Export, namespace) }

// ImportsInto reports whether Services of the peer come into a namespace.
func (p *Peering) ImportsInto(namespace string) bool { return admits(p.Services.Import, namespace) }

func admits(all []string, namespace string) bool {
	return slices.Contains(all, namespace) ||
		slices.Contains(all, allNamespaces) && !strings.HasPrefix(namespace, "kube-")
}

// allNamespaces stands for all namespaces but those of Kubernetes itself.
const allNamespaces = "*"

func (p *Peering) add(field, format string, args ...any) {
	p.Faults = append(p.Faults, field+": "+fmt.Sprintf(format, args...))
}

// ReadPeering reads a Peering.
func ReadPeering(o *objects.Object) *Peering {
	p := &Peering{Metadata: o.Metadata, Generation: o.Generation, Deleting: o.Deleting}
	json.Unmarshal(o.Status, &p.Status) // an unreadable status is written anew
	if fault := objects.ReadPart("spec", o.Spec, &p.spec); fault != "" {
		p.Faults = append(p.Faults, fault)
		return p
	}
	p.read(&p.spec)
	return p
}

// Accepted returns the Peering as its gateway has it according to the status; nil if the status
// does not say.
func (p *Peering) Accepted() *Peering {
	if p.Status.Accepted == nil {
		return nil
	}
	a := &Peering{Metadata: p.Metadata, Generation: p.Generation, Status: p.Status, spec: *p.Status.Accepted}
	if a.read(&a.spec); len(a.Faults) > 0 {
		return nil
	}
	return a
}

func (p *Peering) read(s *Spec) {
	p.Cluster, p.Peer, p.Endpoint, p.MTU = s.Cluster, s.Peer, s.Endpoint, cmp.Or(s.MTU, int(config.DefaultMTU))
	e := new(configfile.Errors)
	e.Name("spec.cluster", s.Cluster, configfile.MaxLabel)
	e.Name("spec.peer", s.Peer, configfile.MaxLabel)
	if p.Imports = s.Imports; s.Imports != "" {
		e.Name("spec.imports", s.Imports, configfile.MaxLabel)
	}
	p.Services = s.Services
	p.namespaces("spec.services.export", s.Services.Export)
	p.namespaces("spec.services.import", s.Services.Import)
	if err := e.Err(); err != nil {
		p.Faults = append(p.Faults, strings.Split(err.Error(), "\n")...)
	}
	if s.Cluster == s.Peer {
		p.add("spec.peer", "%q is this cluster's own ID", s.Peer)
	}
	switch s.Role {
	case "Server":
		p.Role, p.Endpoint = config.Server, ""
	case "Client":
		p.checkEndpoint()
	default:
		p.add("spec.role", "%q is neither Server nor Client", s.Role)
	}
	if s.PublicKey != "" {
		var err error
		if p.PublicKey, err = wgkey.Parse(s.PublicKey); err != nil {
			p.add("spec.publicKey", "%v", err)
		} else if s.PublicKey == p.Status.PublicKey {
			p.add("spec.publicKey", "is the key of this cluster's own gateway; give the peer's")
		}
	}
	if p.MTU < 576 || p.MTU > 9000 {
		p.add("spec.mtu", "%d is out of range; want 576 to 9000", p.MTU)
	}
	switch s.PodsFrom {
	case "", "Nodes":
	case "Pods":
		p.FollowPods = true
	default:
		p.add("spec.podsFrom", "%q is neither Nodes nor Pods", s.PodsFrom)
	}
	switch s.Admit {
	case "", "All":
	case "Exports":
		p.Admit = config.AdmitExports
	default:
		p.add("spec.admit", "%q is neither All nor Exports", s.Admit)
	}
	for i, c := range s.Internals() {
		field := p.internalField(i)
		p.Internal = append(p.Internal, p.prefix(field, c))
		if c := p.Internal[i]; c.IsValid() && c.Bits() > c.Addr().BitLen()-2 {
			p.add(field, "%s has no room for a gateway and a node", c)
		}
	}
	if len(p.Internal) == 0 {
		p.add("spec.internalCIDR", "missing")
	}
	oneOfEach(p, "spec.internalCIDR", s.InternalCIDR, s.InternalCIDRs, p.Internal)
	for i, c := range s.Local.PodCIDRs {
		p.Pods = append(p.Pods, p.prefix(fmt.Sprintf("spec.local.podCIDRs[%d]", i), c))
	}
	if len(p.Pods) == 0 {
		p.add("spec.local.podCIDRs", "missing")
	}
	for i, c := range s.Local.Externals() {
		p.External = append(p.External, p.prefix(p.externalField(i), c))
	}
	oneOfEach(p, "spec.local.externalCIDR", s.Local.ExternalCIDR, s.Local.ExternalCIDRs, p.External)
	for i := range s.Remote.PodCIDRs {
		p.remap(fmt.Sprintf("spec.remote.podCIDRs[%d]", i), &s.Remote.PodCIDRs[i], false)
	}
	if len(s.Remote.PodCIDRs) == 0 && s.PublicKey != "" { // an invited cluster has neither a key nor CIDRs yet
		p.add("spec.remote.podCIDRs", "missing")
	}
	var externals []netip.Prefix
	for i, r := range s.Remote.Externals() {
		p.remap(fieldOf("spec.remote.externalCIDR", len(s.Remote.ExternalCIDRs), i), &r, true)
		externals = append(externals, p.Remote[len(p.Remote)-1].Real)
	}
	one := SpecRemap{}
	if s.Remote.ExternalCIDR != nil {
		one = *s.Remote.ExternalCIDR
	}
	oneOfEach(p, "spec.remote.externalCIDR", one, s.Remote.ExternalCIDRs, externals)
	p.families()
	p.overlaps()
}

func (p *Peering) namespaces(field string, all []string) {
	for i, name := range all {
		if name != allNamespaces && !IsNamespace(name) {
			p.add(fmt.Sprintf("%s[%d]", field, i), "%q is neither a namespace nor *, which is all", name)
		}
	}
}

// IsNamespace reports whether a name can be that of a namespace.
func IsNamespace(name string) bool { return dnsLabel.MatchString(name) && len(name) <= maxLabel }

func (p *Peering) checkEndpoint() {
	if p.Endpoint == "" {
		p.add("spec.endpoint", "missing; a Client has to know where the Server is: host:port")
	} else if fault := CheckEndpoint(p.Endpoint); fault != "" {
		p.add("spec.endpoint", "%s", fault)
	}
}

// CheckEndpoint returns the fault of a host:port; "" = none.
func CheckEndpoint(endpoint string) (fault string) {
	host, port, err := net.SplitHostPort(endpoint)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 {
		return fmt.Sprintf("%q is not host:port", endpoint)
	}
	switch a, err := netip.ParseAddr(host); {
	case err != nil && !configfile.IsHostName(host):
		return fmt.Sprintf("%q is neither an address nor a host name", host)
	case err == nil && (a.Zone() != "" || !packet.Forwardable(a)):
		return fmt.Sprintf("%q is an address that routers do not forward to", host)
	}
	return ""
}

// prefix reads a CIDR; the zero Prefix after a fault.
func (p *Peering) prefix(field, value string) netip.Prefix {
	c, err := netip.ParsePrefix(value)
	fault := CheckCIDR(c)
	if err != nil {
		fault = fmt.Sprintf("%q is no CIDR such as 10.61.0.0/16 or fd61::/48", value)
	}
	if fault != "" {
		p.add(field, "%s", fault)
		return netip.Prefix{}
	}
	return c
}

// fieldOf returns the path of value i of a field with one value of each family; many is the length
// of the list, 0 if the field has one value alone.
func fieldOf(field string, many, i int) string {
	if many == 0 {
		return field
	}
	return fmt.Sprintf("%ss[%d]", field, i)
}

func (p *Peering) internalField(i int) string {
	return fieldOf("spec.internalCIDR", len(p.spec.InternalCIDRs), i)
}

func (p *Peering) externalField(i int) string {
	return fieldOf("spec.local.externalCIDR", len(p.spec.Local.ExternalCIDRs), i)
}

// oneOfEach reports a list that does not begin with the one value beside it, and several CIDRs of
// one family.
func oneOfEach[V comparable](p *Peering, field string, one V, list []V, all []netip.Prefix) {
	var none V
	if one != none && len(list) > 0 && list[0] != one {
		p.add(fieldOf(field, len(list), 0), "%v is not %s, %v; the list begins with what that has", list[0], field, one)
	}
	for i, b := range all {
		for _, a := range all[:i] {
			if a.IsValid() && b.IsValid() && a.Addr().Is4() == b.Addr().Is4() {
				p.add(fieldOf(field, len(list), i), "%s is %s, as %s is; want at most one of each family", b,
					familyOf(b), a)
			}
		}
	}
}

func (p *Peering) remap(field string, r *SpecRemap, external bool) {
	real := p.prefix(field+".cidr", r.CIDR)
	seen := real
	if r.Remap != "" {
		seen = p.prefix(field+".remap", r.Remap)
	}
	switch {
	case !real.IsValid() || !seen.IsValid() || seen == real:
	case real.Addr().Is4() != seen.Addr().Is4():
		p.add(field+".remap", "%s is %s, and %s is not; nothing translates between IPv4 and IPv6", seen, familyOf(seen),
			real)
	case real.Bits() != seen.Bits():
		p.add(field+".remap", "%s and %s differ in length; a remap is 1:1, want a /%d", seen, real, real.Bits())
	case seen.Addr().Is6() && !seen.Addr().IsPrivate():
		p.add(field+".remap", "%s is not within fc00::/7; a remap has unique local addresses, which nobody else "+
			"reaches (RFC 4193)", seen)
	}
	p.Remote = append(p.Remote, rules.RemoteCIDR{Real: real, Remapped: seen, External: external})
}

// MinMTU6 is what every link of IPv6 carries (RFC 8200, Section 5).
const MinMTU6 = 1280

// families reports a CIDR of a family that the tunnels to nodes lack, or do not carry.
func (p *Peering) families() {
	have := p.GatewayAddress()
	if !have.IsValid() { // which has a fault of its own
		return
	}
	six := ""
	check := func(field string, c netip.Prefix) {
		switch {
		case !c.IsValid():
		case !have.Of(c.Addr().Is6()).IsValid():
			p.add(field, "%s is %s, of which spec.internalCIDRs has no CIDR; add one, or leave this one out", c,
				familyOf(c))
		case c.Addr().Is6() && six == "":
			six = field
		}
	}
	for i, c := range p.Internal {
		check(p.internalField(i), c)
	}
	for i, c := range p.Pods {
		check(fmt.Sprintf("spec.local.podCIDRs[%d]", i), c)
	}
	for i, c := range p.External {
		check(p.externalField(i), c)
	}
	for i, r := range p.Remote {
		check(p.remoteField(i), r.Remapped)
	}
	if six != "" && p.MTU < MinMTU6 {
		p.add("spec.mtu", "%d, and %s is IPv6, which needs %d; write that or more, or leave IPv6 out", p.MTU, six,
			MinMTU6)
	}
}

// overlaps reports CIDRs that overlap although the cluster must tell them apart, and those in which
// the peer's endpoint is. Of an endpoint that is a name, nothing is known here.
func (p *Peering) overlaps() {
	if at, err := netip.ParseAddrPort(p.Endpoint); err == nil {
		for i, r := range p.Remote {
			if r.Remapped.IsValid() && r.Remapped.Contains(at.Addr()) {
				p.add(p.remoteField(i),
					"%s contains the address of spec.endpoint, %s: the gateway's packets to the peer would go into its own tunnel; "+
						"choose a remap that nothing uses", r.Remapped, at.Addr())
			}
		}
	}
	type place struct {
		field  string
		prefix netip.Prefix
	}
	var seen []place
	for i, c := range p.Internal {
		seen = append(seen, place{p.internalField(i), c})
	}
	for i, c := range p.External {
		seen = append(seen, place{p.externalField(i), c})
	}
	for i, c := range p.Pods {
		seen = append(seen, place{fmt.Sprintf("spec.local.podCIDRs[%d]", i), c})
	}
	for i := range p.Remote {
		seen = append(seen, place{p.remoteField(i), p.Remote[i].Remapped})
	}
	for i, b := range seen {
		for _, a := range seen[:i] {
			if a.prefix.IsValid() && b.prefix.IsValid() && a.prefix.Overlaps(b.prefix) {
				p.add(b.field, "%s overlaps %s (%s); choose a remap that nothing uses", b.prefix, a.field, a.prefix)
			}
		}
	}
}

// remoteField returns the path of the field that says how this cluster sees remote CIDR i.
func (p *Peering) remoteField(i int) string {
	before := 0 // of its kind
	for _, r := range p.Remote[:i] {
		if r.External == p.Remote[i].External {
			before++
		}
	}
	field := fmt.Sprintf("spec.remote.podCIDRs[%d]", before)
	if p.Remote[i].External {
		field = fieldOf("spec.remote.externalCIDR", len(p.spec.Remote.ExternalCIDRs), before)
	}
	if p.Remote[i].Remapped == p.Remote[i].Real {
		return field + ".cidr"
	}
	return field + ".remap"
}

// GatewayAddress is the gateway's address inside the tunnels to nodes, of each family that they
// carry.
func (p *Peering) GatewayAddress() (a rules.Pair) {
	for _, c := range p.Internal {
		a.Set(c.Addr().Next())
	}
	return a
}

// NodeAddress returns a node's address inside its tunnel of each family, of which text is one: it
// has the same number in each internal CIDR. ok is false for text that is no node's.
func (p *Peering) NodeAddress(text string) (a rules.Pair, ok bool) {
	at, err := netip.ParseAddr(text)
	if err != nil {
		return a, false
	}
	for _, c := range p.Internal {
		if n, in := offset(c, at); in && n > 1 { // 1 is the gateway's
			return p.nthNode(n)
		}
	}
	return a, false
}

// nthNode returns the address with a number in each internal CIDR; ok is false if one has no such
// address.
func (p *Peering) nthNode(n uint32) (a rules.Pair, ok bool) {
	for _, c := range p.Internal {
		at := nth(c, n)
		if !c.Contains(at) {
			return rules.Pair{}, false
		}
		a.Set(at)
	}
	return a, a.IsValid()
}

// UnknownSource is the address of each family that the peer sees for sources that are not pods;
// none without an external CIDR.
func (p *Peering) UnknownSource() (a rules.Pair) {
	for _, c := range p.External {
		a.Set(c.Addr())
	}
	return a
}

// Fault returns all faults of the Peering in one line; "" = none.
func (p *Peering) Fault() string { return strings.Join(p.Faults, "; ") }
