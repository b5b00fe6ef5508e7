package check

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"culvert/kube/template"
)

// A policy is the part of a NetworkPolicy used here.
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

// networkPolicies reports which policies select the pod, and whether together they admit enough. It
// does not check the sources.
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
			k.remark("NetworkPolicy %s cannot be read: %v", text(o, "metadata", "name"), err)
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil || !selector.Matches(pod) {
			continue
		}
		if slices.Contains(p.Spec.PolicyTypes, "Egress") || p.Spec.PolicyTypes == nil && p.Spec.Egress != nil {
			k.remark("NetworkPolicy %s restricts what the pod sends; it needs the nodes at UDP %s, the peer and the API server", p.Metadata.Name, k.geneve())
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
		return letsIn(rules, "UDP", port, "")
	})
	var lacks []string
	if len(shut) > 0 {
		lacks = append(lacks, "no UDP "+strings.Join(shut, " and "))
	}
	if replicas, err := strconv.Atoi(fmt.Sprint(template.Field(of, "spec", "replicas"))); err == nil && replicas > 1 &&
		!letsIn(rules, "TCP", replicaPort, "") {
		lacks = append(lacks, "no TCP "+replicaPort+", by which a standby copies connections,")
	}
	if len(lacks) > 0 {
		k.wrong("NetworkPolicy %s lets %s in; add one that does, such as kube/manifests/networkpolicy.yaml",
			strings.Join(names, ", "), strings.Join(lacks, " and "))
		return
	}
	but := ""
	if _, port, ok := strings.Cut(flag(k.pod(), "metrics-address"), ":"); ok && !letsIn(rules, "TCP", port,
		template.MetricsPort) {
		but = ", but not TCP " + port + ", by which metrics are scraped"
	}
	k.remark("NetworkPolicy %s selects the pod, and lets its ports in%s; whether from the peer and from all nodes is not looked at", strings.Join(names, ", "), but)
}

// letsIn reports whether one of the rules admits a protocol to a port, which may be named. Without
// a protocol, TCP is meant.
func letsIn(rules []policyRule, protocol, port, name string) bool {
	n, err := strconv.ParseFloat(port, 64)
	return slices.ContainsFunc(rules, func(r policyRule) bool {
		for _, p := range r.Ports {
			if cmp.Or(p.Protocol, "TCP") != protocol {
				continue
			}
			first, isNumber := p.Port.(float64)
			if p.Port == nil || name != "" && p.Port == name || isNumber && err == nil && first <= n &&
				n <= max(first, p.EndPort) {
				return true
			}
		}
		return len(r.Ports) == 0
	})
}
