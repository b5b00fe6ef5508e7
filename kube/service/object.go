package service

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"culvert/gateway/node/services"
	"culvert/kube/objects"
)

// The kinds of objects to watch.
const (
	KindService = "Service"
	KindSlice   = "EndpointSlice"
	KindNode    = "Node"
	KindLease   = "Lease"
)

// Labels of Services, EndpointSlices and Nodes, as used by Kubernetes and kube-proxy.
const (
	labelProxy    = "service.kubernetes.io/service-proxy-name"
	labelHeadless = "service.kubernetes.io/headless"
	labelService  = "kubernetes.io/service-name"
	labelZone     = "topology.kubernetes.io/zone"
	labelExcluded = "node.kubernetes.io/exclude-from-external-load-balancers"
)

// Annotations of Services.
const (
	annotationWeights = "culvert/endpoint-weights" // of the endpoints on nodes: such as "milan=3,vienna=2"
	annotationProxy   = "culvert/proxy-protocol"   // what endpoints expect over TCP: v2 or none
)

// ProxyName is the value of the label service.kubernetes.io/service-proxy-name that makes a Service
// culvert's.
const ProxyName = "culvert"

// withoutLabels returns the part of an object's metadata to keep.
func withoutLabels(m objects.Metadata) objects.Metadata {
	m.Labels = nil
	return m
}

// A Name is the name of a Service.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// faults collects the faults of one object, each with the path of its field.
type faults []string

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, field+": "+fmt.Sprintf(format, args...))
}

// read parses a part of an object into to, and reports success.
func (f *faults) read(field string, part json.RawMessage, to any) bool {
	fault := objects.ReadPart(field, part, to)
	if fault != "" {
		*f = append(*f, fault)
	}
	return fault == ""
}

// address requires a host's address; it unmaps an IPv4-mapped IPv6 address, as kube-proxy does.
func (f *faults) address(field, s string) (netip.Addr, bool) {
	a, err := objects.ParseAddr(s)
	switch a = a.Unmap(); {
	case err != nil || a.Zone() != "":
		f.add(field, "%q is no IP address", s)
	case a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		f.add(field, "%s is no address that other hosts reach", a)
	default:
		return a, true
	}
	return a, false
}

// port requires a port.
func (f *faults) port(field string, n int64, most uint16) (uint16, bool) {
	if n < 1 || n > int64(most) {
		f.add(field, "%d is not between 1 and %d", n, most)
		return 0, false
	}
	return uint16(n), true
}

var protocols = map[string]uint8{"": unix.IPPROTO_TCP, "TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP,
	"SCTP": unix.IPPROTO_SCTP}

func (f *faults) protocol(field, s string) (uint8, bool) {
	p, ok := protocols[s]
	if !ok {
		f.add(field, "%q is not TCP, UDP or SCTP", s)
	}
	return p, ok
}

// local reports whether a traffic policy is Local.
func (f *faults) local(field, policy string) bool {
	if policy != "" && policy != "Cluster" && policy != "Local" {
		f.add(field, "%q is neither Cluster nor Local", policy)
	}
	return policy == "Local"
}

// weights parses NODE=WEIGHT,… and skips invalid entries.
func (f *faults) weights(field, s string) map[string]int {
	if s == "" {
		return nil
	}
	all := map[string]int{}
	for part := range strings.SplitSeq(s, ",") {
		node, weight, _ := strings.Cut(strings.TrimSpace(part), "=")
		n, err := strconv.Atoi(weight)
		if node == "" || err != nil || n < 1 || n > services.MaxWeight {
			f.add(field, "%q is not NODE=WEIGHT with a weight of 1 to %d, such as milan=3", part, services.MaxWeight)
			continue
		}
		all[node] = n
	}
	return all
}

// prefix requires a CIDR, possibly with spaces around it, which the API server accepts.
func (f *faults) prefix(field, s string) (netip.Prefix, bool) {
	p, err := objects.ParsePrefix(strings.TrimSpace(s))
	if err != nil {
		f.add(field, "%q is no CIDR", s)
	}
	return p.Masked(), err == nil
}

// A node is the part of a Node used here.
type node struct {
	uid       string
	zone      string
	addresses []netip.Addr // the first of each family
	shunned   bool         // excluded for external clients
}

// readNode uses the same addresses as kube-proxy: internal ones before external ones.
func readNode(o *objects.Object) (n *node, wrong faults) {
	read, fault := objects.ReadNode(o)
	n = &node{uid: o.Metadata.UID, zone: o.Metadata.Labels[labelZone], shunned: has(o, labelExcluded)}
	if fault != "" {
		return n, faults{fault}
	}
	n.shunned = n.shunned || read.Conditions.True("NetworkUnavailable")
	have := map[bool]bool{}
	for _, kind := range []string{"InternalIP", "ExternalIP"} {
		for i, s := range read.Addresses {
			if s.Type != kind {
				continue
			}
			if a, ok := wrong.address(fmt.Sprintf("status.addresses[%d].address", i), s.Address); ok && !have[a.Is4()] {
				have[a.Is4()], n.addresses = true, append(n.addresses, a)
			}
		}
	}
	return n, wrong
}
