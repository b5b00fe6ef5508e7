package peering

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube"
	"culvert/kube/objects"
	"culvert/nat/packet"
)

// A node is the part of a Node used here.
type node struct {
	meta      objects.Metadata
	deleting  bool
	pods      []netip.Prefix
	addresses []netip.Addr
}

func readNode(u *unstructured.Unstructured) *node {
	o := objects.Of(kindNode, u)
	read, _ := objects.ReadNode(o) // the API server has checked it
	n := &node{meta: o.Metadata, deleting: o.Deleting, pods: read.PodCIDRs}
	for _, a := range read.Addresses {
		// Others are host names, or addresses that no host can have. A node chooses its own, and
		// one such backend would make a gateway refuse its whole configuration.
		if addr, err := objects.ParseAddr(a.Address); err == nil && packet.Forwardable(addr) {
			n.addresses = append(n.addresses, addr)
		}
	}
	return n
}

// readMember returns nil for a Node on which no agent can run: a gateway does not wait for one
// there.
func readMember(u *unstructured.Unstructured) *node {
	if objects.Virtual(u.GetLabels()) {
		return nil
	}
	return readNode(u)
}

// age compares the ages of two Nodes; the older one comes first. It decides only what a node cannot
// write itself.
func (n *node) age(o *node) int {
	return cmp.Or(n.meta.Created.Compare(o.meta.Created), strings.Compare(n.meta.Name, o.meta.Name))
}

// NodeOf returns the CIDRs of a Node's pods and the Node's own addresses.
func NodeOf(u *unstructured.Unstructured) (pods []netip.Prefix, addresses []netip.Addr) {
	n := readNode(u)
	return n.pods, n.addresses
}

// PodOf returns the Node of a Pod and the Pod's own addresses. It returns none for a Pod in its
// Node's network, without a Node, or that has ended.
func PodOf(u *unstructured.Unstructured) (node string, addresses []netip.Addr) {
	if p := readPod(u); p != nil {
		return p.node, p.addresses
	}
	return "", nil
}

// PeeringOf reads a Peering.
func PeeringOf(u *unstructured.Unstructured) *Peering { return ReadPeering(objects.Of(KindPeering, u)) }

// A pod is a Pod's node and addresses.
type pod struct {
	node      string
	ending    bool
	addresses []netip.Addr
}

// readPod returns nil for a pod that has no address of its own.
func readPod(u *unstructured.Unstructured) *pod {
	o := objects.Of(kindPod, u)
	read, fault := objects.ReadPod(o)
	if fault != "" || read.Spec.HostNetwork || read.Spec.NodeName == "" || read.Ended() {
		return nil
	}
	p := &pod{node: read.Spec.NodeName, ending: o.Deleting, addresses: read.Addresses()}
	if len(p.addresses) == 0 {
		return nil
	}
	return p
}

// A tunnelNode is what the agent of a node reports.
type tunnelNode struct {
	meta          objects.Metadata
	fault         string
	local, remote netip.Addr      // invalid: not known yet
	ready         map[string]bool // by the name of a Peering
	messages      map[string]string
}

// NodeSpec is the spec of a TunnelNode.
type NodeSpec struct {
	Local  string `json:"local,omitempty"`
	Remote string `json:"remote,omitempty"`
}

// NodeStatus is the status of a TunnelNode.
type NodeStatus struct {
	Message  string        `json:"message"`
	Peerings []NodePeering `json:"peerings"`
}

// NodePeering is the state of one Peering on a node.
type NodePeering struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Message string `json:"message,omitempty"`
}

// maxSaid is the maximum length, in bytes, of a node's text in a Peering's status.
const maxSaid = 300

// said makes a node's text safe to repeat: a node may be compromised.
func said(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, kube.Cut(text, maxSaid))
}

// isHost reports whether a may be the address of one host.
func isHost(a netip.Addr) bool { return a.IsGlobalUnicast() && a.Zone() == "" && !a.Is4In6() }

func readTunnelNode(u *unstructured.Unstructured) *tunnelNode {
	o := objects.Of(KindTunnelNode, u)
	t := &tunnelNode{meta: o.Metadata, ready: map[string]bool{}, messages: map[string]string{}}
	var spec NodeSpec
	if t.fault = objects.ReadPart("spec", o.Spec, &spec); t.fault != "" {
		return t
	}
	for _, a := range []struct {
		field, value string
		to           *netip.Addr
	}{{"spec.local", spec.Local, &t.local}, {"spec.remote", spec.Remote, &t.remote}} {
		if a.value == "" {
			continue
		}
		addr, err := netip.ParseAddr(a.value)
		if err != nil || !isHost(addr) {
			t.fault = fmt.Sprintf("%s: %q is no address of a host", a.field, a.value)
			return t
		}
		*a.to = addr
	}
	var status NodeStatus
	if json.Unmarshal(o.Status, &status) == nil {
		for _, p := range status.Peerings {
			t.ready[p.Name], t.messages[p.Name] = p.Ready, said(p.Message)
		}
	}
	return t
}
