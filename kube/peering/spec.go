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

// The kinds, and their API group and resources.
const (
	Group = "culvert.io"

	KindPeering    = "Peering"
	KindTunnelNode = "TunnelNode"
	kindNode       = "Node"
	kindPod        = "Pod"
	kindService    = "Service"
	kindSlice      = "EndpointSlice"
	kindSecret     = "Secret"

	// GatewayNamespace is the namespace of Peerings and gateways, NodeNamespace that of TunnelNodes
	// and agents, unless flags say otherwise.
	GatewayNamespace = "culvert"
	NodeNamespace    = "culvert-nodes"
)

// minBits is the minimum prefix length of a CIDR: a shorter one covers so much of the Internet that
// it must be a mistake.
const minBits = 8

// Spec is the spec of a Peering in the API.
type Spec struct {
	Cluster      string     `json:"cluster"`
	Peer         string     `json:"peer"`
	Role         string     `json:"role"` // Server or Client
	PublicKey    string     `json:"publicKey,omitempty"`
	Endpoint     string     `json:"endpoint,omitempty"`
	MTU          int        `json:"mtu,omitempty"`
	PodsFrom     string     `json:"podsFrom,omitempty"` // Nodes or Pods
	InternalCIDR string     `json:"internalCIDR"`
	Local        SpecLocal  `json:"local"`
	Remote       SpecRemote `json:"remote,omitzero"`   // missing until the peer has sent it, like PublicKey
	Imports      string     `json:"imports,omitempty"` // a namespace
	Admit        string     `json:"admit,omitempty"`   // All, as without it, or Exports
	// Services says which ServiceExports the peer hears of, and where its own go.
	Services SpecServices `json:"services,omitzero"`
}

// SpecServices is the namespaces in which two clusters have Services in common.
type SpecServices struct {
	Export []string `json:"export,omitempty"`
	Import []string `json:"import,omitempty"`
}

// SpecLocal is what the peer may know about this cluster.
type SpecLocal struct {
	PodCIDRs     []string `json:"podCIDRs"`
	ExternalCIDR string   `json:"externalCIDR,omitempty"`
}

// SpecRemote is the other cluster's CIDRs.
type SpecRemote struct {
	PodCIDRs     []SpecRemap `json:"podCIDRs"`
	ExternalCIDR *SpecRemap  `json:"externalCIDR,omitempty"`
}

// SpecRemap is a CIDR of the other cluster, and the CIDR under which this one sees it; "" = the
// same.
type SpecRemap struct {
	CIDR  string `json:"cidr"`
	Remap string `json:"remap,omitempty"`
}

// Status is the status of a Peering.
type Status struct {
	PublicKey  string         `json:"publicKey,omitempty"` // of this cluster's gateway
	RTT        string         `json:"rtt,omitempty"`
	Message    string         `json:"message"`
	NodesReady string         `json:"nodesReady,omitempty"` // such as 2/3
	Active     *Active        `json:"active,omitempty"`
	Nodes      []Assigned     `json:"nodes,omitempty"`
	Exports    []ExportStatus `json:"exports,omitempty"`
	Conditions []*Condition   `json:"conditions,omitempty"`
	// Accepted is the spec that the gateway has. While the present one has a fault, it is the last
	// one without, with which a gateway or an agent that starts goes on.
	Accepted *Spec `json:"accepted,omitempty"`
}

// Active is where the gateway is.
type Active struct {
	Pod       string   `json:"pod"`
	Node      string   `json:"node"`
	Addresses []string `json:"addresses"`
	Term      int64    `json:"term"`
}

// Assigned is a node's end of the tunnel to the gateway.
type Assigned struct {
	Name    string `json:"name"`
	VNI     uint32 `json:"vni"`
	Address string `json:"address"`
	// Disputed is true while the node claims an address that another one had first. So the
	// gateway's next process knows who that was.
	Disputed bool `json:"disputed,omitempty"`
}

// A Condition is a Kubernetes condition.
type Condition = objects.Condition

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
	FollowPods    bool // Pods say where their addresses are, not Nodes
	Internal      netip.Prefix
	Pods          []netip.Prefix // of this cluster
	External      netip.Prefix   // invalid: none
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
	p.Internal = p.prefix("spec.internalCIDR", s.InternalCIDR)
	if p.Internal.IsValid() && p.Internal.Bits() > 30 {
		p.add("spec.internalCIDR", "%s has no room for a gateway and a node", p.Internal)
	}
	for i, c := range s.Local.PodCIDRs {
		p.Pods = append(p.Pods, p.prefix(fmt.Sprintf("spec.local.podCIDRs[%d]", i), c))
	}
	if len(p.Pods) == 0 {
		p.add("spec.local.podCIDRs", "missing")
	}
	if s.Local.ExternalCIDR != "" {
		p.External = p.prefix("spec.local.externalCIDR", s.Local.ExternalCIDR)
	}
	for i := range s.Remote.PodCIDRs {
		p.remap(fmt.Sprintf("spec.remote.podCIDRs[%d]", i), &s.Remote.PodCIDRs[i], false)
	}
	if len(s.Remote.PodCIDRs) == 0 && s.PublicKey != "" { // an invited cluster has neither a key nor CIDRs yet
		p.add("spec.remote.podCIDRs", "missing")
	}
	if s.Remote.ExternalCIDR != nil {
		p.remap("spec.remote.externalCIDR", s.Remote.ExternalCIDR, true)
	}
	p.overlaps()
}

func (p *Peering) namespaces(field string, all []string) {
	for i, name := range all {
		if name != allNamespaces && !IsNamespace(name) {
			p.add(fmt.Sprintf("%s[%d]", field, i), "%q is neither a namespace nor *, which is all", name)
		}
	}
}

// IsNamespace reports whether a namespace can have a name.
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
		fault = fmt.Sprintf("%q is no IPv4 CIDR such as 10.61.0.0/16", value)
	}
	if fault != "" {
		p.add(field, "%s", fault)
		return netip.Prefix{}
	}
	return c
}

// CheckCIDR returns why a Peering cannot have a CIDR; "" = it can.
func CheckCIDR(c netip.Prefix) (fault string) {
	switch {
	case !c.IsValid() || !c.Addr().Is4():
		return fmt.Sprintf("%q is no IPv4 CIDR such as 10.61.0.0/16", c)
	case c != c.Masked():
		return fmt.Sprintf("%s has bits to the right of its length; want %s", c, c.Masked())
	case c.Bits() < minBits:
		return fmt.Sprintf("%s is shorter than /%d", c, minBits)
	case !packet.Forwardable(c.Addr()) || !packet.Forwardable(last(c)):
		return fmt.Sprintf("%s has addresses that routers do not forward to", c)
	}
	return ""
}

// last returns the last address of an IPv4 prefix.
func last(c netip.Prefix) netip.Addr {
	a := c.Addr().As4()
	for i := c.Bits(); i < 32; i++ {
		a[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(a)
}

func (p *Peering) remap(field string, r *SpecRemap, external bool) {
	real := p.prefix(field+".cidr", r.CIDR)
	seen := real
	if r.Remap != "" {
		seen = p.prefix(field+".remap", r.Remap)
	}
	if real.IsValid() && seen.IsValid() && real.Bits() != seen.Bits() {
		p.add(field+".remap", "%s and %s differ in length; a remap is 1:1, want a /%d", seen, real, real.Bits())
	}
	p.Remote = append(p.Remote, rules.RemoteCIDR{Real: real, Remapped: seen, External: external})
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
	seen := []place{{"spec.internalCIDR", p.Internal}, {"spec.local.externalCIDR", p.External}}
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
	field := fmt.Sprintf("spec.remote.podCIDRs[%d]", i)
	if p.Remote[i].External {
		field = "spec.remote.externalCIDR"
	}
	if p.Remote[i].Remapped == p.Remote[i].Real {
		return field + ".cidr"
	}
	return field + ".remap"
}

// GatewayAddress is the gateway's address inside the tunnels to nodes.
func (p *Peering) GatewayAddress() netip.Addr { return p.Internal.Addr().Next() }

// UnknownSource is the address that the peer sees for sources that are not pods; invalid without an
// external CIDR.
func (p *Peering) UnknownSource() netip.Addr {
	return p.External.Addr()
}

// Seen returns the CIDRs under which this cluster sees the other.
func (p *Peering) Seen() (all []netip.Prefix) {
	for _, r := range p.Remote {
		all = append(all, r.Remapped)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// Fault returns all faults of the Peering in one line; "" = none.
func (p *Peering) Fault() string { return strings.Join(p.Faults, "; ") }
