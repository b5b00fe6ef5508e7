package verify

import (
	"encoding/json"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A Policy is the part of a NetworkPolicy that decides whether a gateway's UDP passes.
type Policy struct {
	Name            string
	selector        selector
	ingress, egress bool // it restricts them
	in, out         []policyRule
}

type selector struct {
	MatchLabels      map[string]string
	MatchExpressions []struct {
		Key, Operator string
		Values        []string
	}
}

type policyRule struct {
	Ports []struct {
		Protocol string
		Port     json.RawMessage // a number or a name
		EndPort  int
	}
	From, To []policyPeer
}

type policyPeer struct {
	IPBlock *struct {
		CIDR   string
		Except []string
	}
}

func readPolicy(u *unstructured.Unstructured) (Policy, error) {
	var x struct {
		Spec struct {
			PodSelector     selector
			PolicyTypes     []string
			Ingress, Egress []policyRule
		}
	}
	err := convert(u.Object, &x)
	p := Policy{Name: u.GetName(), selector: x.Spec.PodSelector, in: x.Spec.Ingress, out: x.Spec.Egress,
		ingress: len(x.Spec.PolicyTypes) == 0 || slices.Contains(x.Spec.PolicyTypes, "Ingress"),
		egress:  len(x.Spec.Egress) > 0 || slices.Contains(x.Spec.PolicyTypes, "Egress")}
	return p, err
}

// matches reports whether a pod with labels is selected.
func (s *selector) matches(labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		have, ok := labels[e.Key]
		in := ok && slices.Contains(e.Values, have)
		switch e.Operator {
		case "In":
			ok = in
		case "NotIn":
			ok = !in
		case "DoesNotExist":
			ok = !ok
		}
		if !ok {
			return false
		}
	}
	return true
}

// refusing returns the policies that together block UDP of a port, which containers call name,
// between a gateway's pod and other; none if one of them lets it pass, or if no policy restricts
// it. An invalid other is an unknown address, which any block may contain.
func refusing(all []Policy, labels map[string]string, inbound bool, port int, name string,
	other netip.Addr) (names []string) {
	for i := range all {
		p := &all[i]
		restricts, rules := p.ingress, p.in
		if !inbound {
			restricts, rules = p.egress, p.out
		}
		if !restricts || !p.selector.matches(labels) {
			continue
		}
		for j := range rules {
			if rules[j].hasPort(port, name) && rules[j].hasPeer(inbound, other) {
				return nil
			}
		}
		names = append(names, p.Name)
	}
	return names
}

func (r *policyRule) hasPort(port int, name string) bool {
	for _, p := range r.Ports {
		if p.Protocol != "UDP" {
			continue // TCP if it says nothing
		}
		var number int
		var text string
		switch {
		case len(p.Port) == 0, json.Unmarshal(p.Port, &text) == nil && text == name:
			return true
		case json.Unmarshal(p.Port, &number) == nil && number <= port && port <= max(number, p.EndPort):
			return true
		}
	}
	return len(r.Ports) == 0
}

// hasPeer reports whether the rule also applies to an address that is not a pod's: selectors of
// pods and namespaces do not.
func (r *policyRule) hasPeer(inbound bool, other netip.Addr) bool {
	peers := r.From
	if !inbound {
		peers = r.To
	}
	for _, p := range peers {
		if p.IPBlock == nil {
			continue
		}
		c, err := netip.ParsePrefix(p.IPBlock.CIDR)
		if err != nil {
			continue
		}
		if !other.IsValid() {
			return true
		}
		excepted := slices.ContainsFunc(p.IPBlock.Except, func(x string) bool {
			e, err := netip.ParsePrefix(x)
			return err == nil && e.Contains(other)
		})
		if c.Contains(other) && !excepted {
			return true
		}
	}
	return len(peers) == 0
}
