package rules

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"slices"
	"strconv"

	"culvert/nat/packet"

	"github.com/gaissmai/bart"
)

// HostLink is the only link of a Host: packets for its Services arrive by it from the node's
// kernel, and return by it.
const HostLink Link = 1

// A Host makes a Config one of a node that serves Services to its pods, its own processes and hosts
// outside; each Service has a Frontend. A packet that the kernel routes here and no Service matches
// is passed on unchanged, without a connection. LocalPodCIDRs are the cluster's pods; of the other
// fields of a Config, only Services and a positive MSSClamp are used.
type Host struct {
	// the node's own: the addresses of a Service with the unspecified address, and the sources of
	// the node's own processes
	Addresses []netip.Addr
	// Masquerade are the source addresses for clients whose address backends may not see, or whose
	// answers would not return through the node.
	Masquerade Pair
	// Ports are the source ports that clients get unless HostPorts says otherwise. The node's
	// kernel recognises by them the answers that it routes here. Nothing else on the node uses
	// them.
	Ports PortRange
	// ServiceCIDRs are the ranges from which the addresses of Services are taken. A packet for one
	// that no Service has is dropped.
	ServiceCIDRs []netip.Prefix
	// Bridged are CIDRs whose hosts reach each other without being routed by this node.
	Bridged []netip.Prefix
	// Routed are CIDRs of hosts that are not pods of the cluster but whose answers the kernel
	// routes here too.
	Routed []netip.Prefix
}

// A Frontend says how a node serves a Service: like kube-proxy, by the Service's traffic policies
// and by client. A Service with a Frontend may have the unspecified address, which stands for each
// of the node's own. Or it may have neither port nor protocol: then it stands for all ports of its
// address that other Services leave, and has no backends.
type Frontend struct {
	External bool           // a node port, an external address or one of a load balancer, not a cluster address
	Local    bool           // the traffic policy is local: not all clients get backends of other nodes
	Sources  []netip.Prefix // allowed clients; nil: all
}

// rest reports whether s stands for the ports that other Services leave of its address.
func (s *Service) rest() bool { return s.Frontend != nil && s.Port == 0 && s.Protocol == 0 }

// hostFacts is a compiled Host.
type hostFacts struct {
	Host
	podCIDRs            []netip.Prefix
	own, pods, services bart.Lite
	answering           bart.Lite // whose answers the kernel routes here
}

func newHost(c *Config) *hostFacts {
	if c.Host == nil {
		return nil
	}
	h := &hostFacts{Host: *c.Host, podCIDRs: slices.Clone(c.LocalPodCIDRs)}
	h.Addresses, h.ServiceCIDRs, h.Bridged = slices.Clone(h.Addresses), slices.Clone(h.ServiceCIDRs),
		slices.Clone(h.Bridged)
	h.Routed = slices.Clone(h.Routed)
	for _, a := range h.Addresses {
		h.own.Insert(netip.PrefixFrom(a, a.BitLen()))
	}
	for _, p := range h.podCIDRs {
		h.pods.Insert(p)
	}
	for _, p := range slices.Concat(h.podCIDRs, h.Routed) {
		h.answering.Insert(p)
	}
	for _, p := range h.ServiceCIDRs {
		h.services.Insert(p)
	}
	return h
}

// same returns before if it equals h, else h.
func (h *hostFacts) same(before *hostFacts) *hostFacts {
	if h != nil && before != nil && reflect.DeepEqual(h.Host, before.Host) && slices.Equal(h.podCIDRs,
		before.podCIDRs) {
		return before
	}
	return h
}

// bind finds the Service of a packet: by its address, among those of all the node's addresses, or
// by address alone.
func (h *hostFacts) bind(r *Ruleset, v *view) binding {
	var b *Balancer
	ok := false
	if v.hasL4 && usesPorts(v.proto) {
		a := serviceAddress{v.dst, binary.BigEndian.Uint16(v.l4[2:]), v.proto}
		if b, ok = r.services.get(a); !ok && h.own.Contains(v.dst) {
			a.addr = unspecified(v.dst)
			b, ok = r.services.get(a)
		}
	}
	if !ok {
		b, ok = r.services.get(serviceAddress{addr: v.dst})
	}
	if !ok {
		return binding{}
	}
	if v.trace != nil {
		traceService(v, b)
	}
	return h.ask(b, v.src)
}

// ask decides which backends a client may get and whether they see its address. Pods and the node
// itself reach an external address as if their packets went out and returned through a load
// balancer.
func (h *hostFacts) ask(b *Balancer, src netip.Addr) binding {
	f := b.Service.Frontend
	if f.Sources != nil && !contains(f.Sources, src) {
		return binding{kind: bindDrop}
	}
	bound, local := binding{kind: bindService, service: b}, f.Local
	switch pod := h.pods.Contains(src); {
	case !f.External:
		bound.masquerade = !pod
	case !f.Local:
		bound.masquerade = true
	case pod:
		local = false
	case h.own.Contains(src):
		local, bound.masquerade = false, true
	}
	if local {
		bound.service = b.local
	}
	return bound
}

// unserved reports whether a packet without a Service has nowhere else to go: the kernel would
// route it here again, or it answers a masqueraded connection that is over.
func (h *hostFacts) unserved(v *view) bool {
	if h.own.Contains(v.dst) {
		port := binary.BigEndian.Uint16(v.l4[2:])
		return v.hasL4 && usesPorts(v.proto) && h.Ports.First <= port && port <= h.Ports.Last
	}
	return h.services.Contains(v.dst)
}

// unanswerable reports whether a backend's answers to a client would not return through the node:
// for a backend that calls itself, for hosts on one bridge, and for backends that are neither pods
// nor Routed, whose packets the kernel does not route here.
func (h *hostFacts) unanswerable(client, backend netip.Addr) bool {
	if client == backend || !h.answering.Contains(backend) {
		return true
	}
	return slices.ContainsFunc(h.Bridged, func(p netip.Prefix) bool {
		return p.Contains(client) && p.Contains(backend)
	})
}

// Privileged are the source ports that replace a privileged one (RFC 4787, Section 4.2, REQ-3 a).
var Privileged = PortRange{512, 1023}

// Kept returns the source ports that clients keep whose address a pod sees. Linux gives the ports
// above 32767 to connections that did not ask for one. Pods may lower that limit, and have most of
// their traffic over TCP: there, only privileged ports are known to be asked for.
func Kept(protocol uint8) PortRange {
	if protocol == packet.TCP {
		return PortRange{1, Privileged.Last}
	}
	return PortRange{1, 32767}
}

// LastRulePort is the last port that a rule of the kernel's can name.
const LastRulePort = 65534

// HostPorts returns the source ports for a new connection, and whether it may keep its own. The
// kernel recognises the answers of pods to a kept port by the ports of both ends; everything else
// it recognises by Host.Ports.
func (r *Ruleset) HostPorts(tr *Traversal) (given PortRange, keeps bool) {
	h, port := r.host, tr.From.SourcePort()
	keeps = h.Ports.First <= port && port <= h.Ports.Last
	known := tr.To.DestinationPort() <= LastRulePort && h.answering.Contains(tr.To.Destination())
	switch own := tr.To.Source() == tr.From.Source(); {
	case known && tr.Masqueraded && port <= Privileged.Last: // own: a process of the node
		return Privileged, own
	case known && !tr.Masqueraded && port <= Kept(tr.From.Protocol).Last:
		return h.Ports, true
	}
	return h.Ports, keeps
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// hostResources returns the resources that c stands for if it is a Host's.
func (c *Config) hostResources() []namedResource {
	all := make([]namedResource, 0, 4+len(c.Services))
	add := func(kind, name string, r Resource) { all = append(all, namedResource{Key{Kind: kind, Name: name}, r}) }
	const device = "host"
	add(kindNode, device, Resource{Device: &Device{Link: HostLink, Name: device}})
	back := PolicyRule{Priority: priorityOutbound}
	for _, p := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		back.Routes = append(back.Routes, PolicyRoute{Destination: p, Device: device})
	}
	add(kindNetwork, "routes", Resource{Routing: []PolicyTable{{Name: device, Rules: []PolicyRule{back}}}})
	for i := range c.Services {
		s := &c.Services[i]
		add(kindService, s.key(), Resource{Order: orderMapping, Service: s})
	}
	if c.MSSClamp > 0 {
		v4, v6 := clampTable("mss-clamping", FamilyIPv4, uint32(c.MSSClamp)), clampTable("mss-clamping-6", FamilyIPv6,
			uint32(c.MSSClamp)-20)
		add(kindNetwork, "mss", Resource{Order: orderMSS, Tables: []Table{v4, v6}})
	}
	return all
}

func clampTable(name string, f Family, value uint32) Table {
	return Table{Name: name, Family: f, Chains: []Chain{{
		Name: "mss-clamping", Type: ChainFilter, Hook: HookForward,
		Rules: []Rule{{Name: "mss-clamping", Match: []Match{{Proto: "tcp"}}, Action: ActionClampMSS, Value: value,
			NoCounter: true}},
	}}}
}

// validateHost checks what is used of a Host's Config.
func (c *Config) validateHost(k *checker) {
	h, own := c.Host, map[netip.Addr]bool{}
	for i, a := range h.Addresses {
		k.address(at("Host.Addresses", i), a)
		own[a] = true
	}
	k.addresses("Host.Masquerade", h.Masquerade)
	for a := range h.Masquerade.All() {
		if !own[a] {
			k.fault("Host.Masquerade", "%s is none of Host.Addresses", a)
		}
	}
	if h.Ports.First < 1024 || h.Ports.Last < h.Ports.First+portsLeast-1 {
		k.fault("Host.Ports", "%d to %d are not %d ports above 1023", h.Ports.First, h.Ports.Last, portsLeast)
	}
	for path, list := range map[string][]netip.Prefix{"LocalPodCIDRs": c.LocalPodCIDRs,
		"Host.ServiceCIDRs": h.ServiceCIDRs, "Host.Bridged": h.Bridged, "Host.Routed": h.Routed} {
		for i, p := range list {
			k.prefix(at(path, i), p)
		}
	}
	for i := range c.Services {
		c.Services[i].validateFrontend(k, at("Services", i))
	}
}

func at(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// portsLeast is the minimum number of ports for masquerading.
const portsLeast = 64

func (s *Service) validateFrontend(k *checker, path string) {
	if s.Frontend == nil {
		k.fault(path+".Frontend", "missing; a node serves by it")
		return
	}
	for i, p := range s.Frontend.Sources {
		k.prefix(at(path+".Frontend.Sources", i), p)
	}
	if s.Address != netip.IPv4Unspecified() && s.Address != netip.IPv6Unspecified() {
		k.address(path+".Address", s.Address)
	} else if !s.Frontend.External {
		k.fault(path+".Address", "%s is no cluster address", s.Address)
	}
	if !s.rest() {
		k.service(path, s)
	} else if len(s.Backends) > 0 {
		k.fault(path+".Backends", "port 0 stands for what nobody serves")
	}
}

// EndsUDP reports whether connections of a protocol end as soon as their backend leaves the
// service.
func (s *Service) EndsUDP(protocol uint8) bool {
	return s.OnRemoval == RemovalKeep && protocol == packet.UDP
}

// Outlives reports whether a connection of a service may continue after the service was removed. A
// gateway's does as if its backend alone had been removed. A Host's TCP connection does, as long as
// the source that its backend sees is the client's or the node's.
func (r *Ruleset) Outlives(from, to *packet.Tuple) bool {
	if r.host == nil {
		return from.Protocol == packet.TCP || from.Protocol == packet.SCTP
	}
	return from.Protocol == packet.TCP && (to.Source() == from.Source() || r.host.own.Contains(to.Source()))
}

// IsHost reports whether the Ruleset is a Host's. A Host has no address of its own to send errors
// from: it uses the address that was asked.
func (r *Ruleset) IsHost() bool { return r.host != nil }
