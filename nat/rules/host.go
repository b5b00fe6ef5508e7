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

// HostLink is the one link of a Host: packets for its Services come by it out of the node's kernel, and go back by it.
const HostLink Link = 1

// A Host makes a Config that of a node which serves Services to its pods, to its own processes and to hosts outside, each of which has a
// Frontend. What the kernel leads there and no Service has is passed on as it came, without a connection. LocalPodCIDRs are the pods of the
// cluster; of the other fields of a Config, Services and a positive MSSClamp count.
type Host struct {
	Addresses []netip.Addr // the node's own; those that a Service of the unspecified address is at, and whose processes ask
	// Masquerade are the sources that clients get which backends are not to see, or whose answers would not come back through the node.
	Masquerade Pair
	// Ports are the source ports that all clients get: by them the node's kernel knows the answers that it leads here. Nothing else on the
	// node uses them.
	Ports PortRange
	// ServiceCIDRs are what the addresses of Services are taken from. What is for one that no Service has is dropped.
	ServiceCIDRs []netip.Prefix
	// Bridged are CIDRs whose hosts reach each other without the routing of this node.
	Bridged []netip.Prefix
}

// A Frontend says how a node serves a Service: what kube-proxy does by the Service's traffic policies and by who asks. A Service with a
// Frontend may have the unspecified address, for each of the node's own, or neither port nor protocol: then it stands for all that the
// other Services leave of its address, and has no backends.
type Frontend struct {
	External bool           // a node port, an external address or one of a load balancer, not a cluster address
	Local    bool           // the traffic policy is local: backends of other nodes are not for all who ask
	Sources  []netip.Prefix // who may ask; nil: everybody
}

// rest reports whether s stands for what other Services leave of its address.
func (s *Service) rest() bool { return s.Frontend != nil && s.Port == 0 && s.Protocol == 0 }

// hostFacts are a compiled Host.
type hostFacts struct {
	Host
	podCIDRs            []netip.Prefix
	own, pods, services bart.Lite
}

func newHost(c *Config) *hostFacts {
	if c.Host == nil {
		return nil
	}
	h := &hostFacts{Host: *c.Host, podCIDRs: slices.Clone(c.LocalPodCIDRs)}
	h.Addresses, h.ServiceCIDRs, h.Bridged = slices.Clone(h.Addresses), slices.Clone(h.ServiceCIDRs), slices.Clone(h.Bridged)
	for _, a := range h.Addresses {
		h.own.Insert(netip.PrefixFrom(a, a.BitLen()))
	}
	for _, p := range h.podCIDRs {
		h.pods.Insert(p)
	}
	for _, p := range h.ServiceCIDRs {
		h.services.Insert(p)
	}
	return h
}

// same returns h, or before if it says the same.
func (h *hostFacts) same(before *hostFacts) *hostFacts {
	if h != nil && before != nil && reflect.DeepEqual(h.Host, before.Host) && slices.Equal(h.podCIDRs, before.podCIDRs) {
		return before
	}
	return h
}

// bind finds the Service that a packet is for: by its address, or as one of those at all of the node's, or else by the address alone.
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

// ask decides by who asks which backends are for him and whether they see his address. Pods and the node itself reach an address for hosts
// outside as if they went out and came back by a load balancer.
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

// unserved reports whether a packet that is for no Service goes nowhere else either: the kernel would lead it here again, or it answers a
// masqueraded connection that is over.
func (h *hostFacts) unserved(v *view) bool {
	if h.own.Contains(v.dst) {
		port := binary.BigEndian.Uint16(v.l4[2:])
		return v.hasL4 && usesPorts(v.proto) && h.Ports.First <= port && port <= h.Ports.Last
	}
	return h.services.Contains(v.dst)
}

// unanswerable reports whether the answers of a backend to a client would not come back through the node: a backend that asks itself, hosts
// on one bridge, and backends that are no pods, from which the kernel leads nothing here.
func (h *hostFacts) unanswerable(client, backend netip.Addr) bool {
	if client == backend || !h.pods.Contains(backend) {
		return true
	}
	return slices.ContainsFunc(h.Bridged, func(p netip.Prefix) bool { return p.Contains(client) && p.Contains(backend) })
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// hostResources returns what c stands for if it is that of a Host.
func (c *Config) hostResources() []namedResource {
	all := make([]namedResource, 0, 4+len(c.Services))
	add := func(kind, name string, r Resource) { all = append(all, namedResource{Key{Kind: kind, Name: name}, r}) }
	const device = "host"
	add(kindNode, device, Resource{Device: &Device{Link: HostLink, Name: device}})
	back := PolicyRule{Priority: priorityOutbound}
	for _, p := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		back.Routes = append(back.Routes, PolicyRoute{Destination: p, Device: device})
	}
	add(kindNetwork, "routes", Resource{Routing: []PolicyTable{{Name: device, Rules: []PolicyRule{back}}}})
	for i := range c.Services {
		s := &c.Services[i]
		add(kindService, s.key(), Resource{Order: orderMapping, Service: s})
	}
	if c.MSSClamp > 0 {
		v4, v6 := clampTable("mss-clamping", FamilyIPv4, uint32(c.MSSClamp)), clampTable("mss-clamping-6", FamilyIPv6, uint32(c.MSSClamp)-20)
		add(kindNetwork, "mss", Resource{Order: orderMSS, Tables: []Table{v4, v6}})
	}
	return all
}

func clampTable(name string, f Family, value uint32) Table {
	return Table{Name: name, Family: f, Chains: []Chain{{
		Name: "mss-clamping", Type: ChainFilter, Hook: HookForward,
		Rules: []Rule{{Name: "mss-clamping", Match: []Match{{Proto: "tcp"}}, Action: ActionClampMSS, Value: value, NoCounter: true}},
	}}}
}

// validateHost checks what counts in the Config of a Host.
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
	for path, list := range map[string][]netip.Prefix{"LocalPodCIDRs": c.LocalPodCIDRs, "Host.ServiceCIDRs": h.ServiceCIDRs, "Host.Bridged": h.Bridged} {
		for i, p := range list {
			k.prefix(at(path, i), p)
		}
	}
	for i := range c.Services {
		c.Services[i].validateFrontend(k, at("Services", i))
	}
}

func at(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// portsLeast is how many ports masquerading takes at the least.
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

// EndsUDP reports whether connections of a protocol end as soon as their backend has left the service.
func (s *Service) EndsUDP(protocol uint8) bool {
	return s.OnRemoval == RemovalEndUDP && protocol == packet.UDP
}

// IsHost reports whether the Ruleset is a Host's. It has no address of its own to speak for: it refuses in the name of what was asked.
func (r *Ruleset) IsHost() bool { return r.host != nil }
