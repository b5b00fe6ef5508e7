package objects

import (
	"cmp"
	"net/netip"
)

// A Node is the content of a Node.
type Node struct {
	PodCIDRs  []netip.Prefix `json:"-"` // the valid ones
	Addresses []struct {
		Type    string `json:"type"`
		Address string `json:"address"`
	} `json:"addresses"`
	Conditions Conditions `json:"conditions"`
	Info       struct {
		Architecture string `json:"architecture"`
	} `json:"nodeInfo"`
}

// A Condition is a Kubernetes condition.
type Condition struct {
	Type     string `json:"type"`
	Status   string `json:"status"` // True, False or Unknown
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	Observed int64  `json:"observedGeneration,omitempty"`
	Since    string `json:"lastTransitionTime"`
}

// Conditions are those of a Node or a Pod.
type Conditions []Condition

// True reports whether a condition is there and true.
func (all Conditions) True(kind string) bool {
	for _, c := range all {
		if c.Type == kind && c.Status == "True" {
			return true
		}
	}
	return false
}

// ReadNode reads a Node. Beside a fault, it returns what it can read.
func ReadNode(o *Object) (n Node, fault string) {
	var spec struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	}
	fault = cmp.Or(ReadPart("spec", o.Spec, &spec), ReadPart("status", o.Status, &n))
	if len(spec.PodCIDRs) == 0 {
		spec.PodCIDRs = []string{spec.PodCIDR}
	}
	for _, c := range spec.PodCIDRs {
		if p, err := ParsePrefix(c); err == nil {
			n.PodCIDRs = append(n.PodCIDRs, p.Masked())
		}
	}
	return n, fault
}

// AddressesOf returns the addresses of a type. The first one is of the family that the cluster's
// Services have unless they ask for another.
func (n *Node) AddressesOf(kind string) (all []netip.Addr) {
	for _, a := range n.Addresses {
		if addr, err := ParseAddr(a.Address); err == nil && a.Type == kind {
			all = append(all, addr)
		}
	}
	return all
}
