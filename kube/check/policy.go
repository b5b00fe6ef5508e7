package check

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"culvert/kube/template"
)

// A policy is what is looked at of a NetworkPolicy.
type policy struct {
	Metadata struct{ Name string }
	Spec     struct {
		PodSelector metav1.LabelSelector
		PolicyTypes []string
		Ingress     []policyRule
		Egress      []policyRule
	}
}

type policyRule struct {
	Ports []struct {
		Protocol string
		Port     any
		EndPort  float64
	}
}

// networkPolicies says which ones select the pod, and whether what they let in together is enough. From whom is not looked at.
func (k *checker) networkPolicies() {
	pod := labels.Set{}
	of := template.Field(k.made, "spec", "deployment")
	if k.made == nil {
		of = k.Deployment
	}
	if err := decode(template.Field(of, "spec", "template", "metadata", "labels"), &pod); err != nil || len(pod) == 0 {
		return
	}
	var names []string
	var rules []policyRule
	for _, o := range k.Policies {
		var p policy
		if err := decode(o, &p); err != nil {
			k.note("NetworkPolicy %s cannot be read: %v", text(o, "metadata", "name"), err)
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil || !selector.Matches(pod) {
			continue
		}
		if slices.Contains(p.Spec.PolicyTypes, "Egress") || p.Spec.PolicyTypes == nil && p.Spec.Egress != nil {
			k.note("NetworkPolicy %s restricts what the pod sends; it needs the nodes at UDP %s, the peer and the API server", p.Metadata.Name, k.geneve())
		}
		if p.Spec.PolicyTypes == nil || slices.Contains(p.Spec.PolicyTypes, "Ingress") {
			names, rules = append(names, p.Metadata.Name), append(rules, p.Spec.Ingress...)
		}
	}
	if names == nil {
		return
	}
	slices.Sort(names)
	needed := []string{k.geneve()}
	if k.self.Server {
		first, _, _ := strings.Cut(flag(k.pod(), "listen-port", "listen-ports"), ",")
		needed = append(needed, cmp.Or(first, wireguardPort))
	}
	shut := slices.DeleteFunc(needed, func(port string) bool {
		return slices.ContainsFunc(rules, func(r policyRule) bool { return r.letsIn(port) })
	})
	if len(shut) > 0 {
		k.wrong("NetworkPolicy %s lets no UDP %s in; add one that does, such as kube/manifests/networkpolicy.yaml",
			strings.Join(names, ", "), strings.Join(shut, " and "))
		return
	}
	k.note("NetworkPolicy %s selects the pod, and lets its ports in; whether from the peer and from all nodes is not looked at", strings.Join(names, ", "))
}

// letsIn reports whether the rule lets in UDP to a port.
func (r *policyRule) letsIn(port string) bool {
	n, err := strconv.ParseFloat(port, 64)
	for _, p := range r.Ports {
		if p.Protocol != "UDP" {
			continue
		}
		first, isNumber := p.Port.(float64)
		if p.Port == nil || isNumber && err == nil && first <= n && n <= max(first, p.EndPort) {
			return true
		}
	}
	return len(r.Ports) == 0
}
