package manifests

import (
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type object = map[string]any

func documents(t *testing.T, text string) map[string]object {
	t.Helper()
	all := map[string]object{}
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if o != nil {
			namespace, _ := at(o, "metadata", "namespace").(string)
			kind := o["kind"].(string)
			if kind == "RoleBinding" {
				continue
			}
			all[kind+" "+namespace] = o
		}
	}
	return all
}

func at(o any, path ...string) any {
	for _, name := range path {
		m, _ := o.(object)
		o = m[name]
	}
	return o
}

// TestGatewayReplicas: a single pod is labelled as active from the start, and its successor starts when it ends. Of several, none is labelled, a new one starts
// before an old one ends, they may hold a Lease, and a drain leaves one of them.
func TestGatewayReplicas(t *testing.T) {
	for replicas, want := range map[int]struct {
		strategy object
		active   any
		flag     bool
		rules    int
	}{
		1: {object{"maxUnavailable": 1., "maxSurge": 0.}, "true", false, 4},
		2: {object{"maxUnavailable": 0., "maxSurge": 1.}, "false", true, 7},
	} {
		g := Gateway{Peering: "milan", Image: "registry.invalid/culvert:1", Expose: "NodePort", Replicas: replicas}
		all := documents(t, g.YAML())
		d := all["Deployment culvert"]
		if is := at(d, "spec", "strategy"); at(d, "spec", "replicas") != float64(replicas) || !reflect.DeepEqual(is, object{"type": "RollingUpdate", "rollingUpdate": want.strategy}) {
			t.Errorf("%v replicas, strategy %v", at(d, "spec", "replicas"), is)
		}
		pod := at(d, "spec", "template")
		if is := at(pod, "metadata", "labels", "culvert.io/active"); is != want.active {
			t.Errorf("%d: active %v", replicas, is)
		}
		if at(all["Service culvert"], "spec", "selector", "culvert.io/active") != "true" || at(all["Service culvert"], "spec", "type") != "NodePort" {
			t.Errorf("%d: %v", replicas, all["Service culvert"])
		}
		args := at(pod, "spec", "containers").([]any)[0].(object)["args"].([]any)
		flag := false
		for _, a := range args {
			flag = flag || a == "--leader-election"
		}
		if flag != want.flag || (at(pod, "spec", "affinity", "podAntiAffinity") != nil) != want.flag {
			t.Errorf("%d: args %v, affinity %v", replicas, args, at(pod, "spec", "affinity"))
		}
		if rules := at(all["Role culvert"], "rules").([]any); len(rules) != want.rules {
			t.Errorf("%d: %d rules", replicas, len(rules))
		}
		budget := all["PodDisruptionBudget culvert"]
		if (budget != nil) != want.flag {
			t.Errorf("%d: budget %v", replicas, budget)
		}
		if !want.flag {
			continue
		}
		pods := at(d, "spec", "selector")
		if !reflect.DeepEqual(at(budget, "spec"), object{"maxUnavailable": 1., "selector": pods}) {
			t.Errorf("the budget is %v, of pods %v", at(budget, "spec"), pods)
		}
		apart := object{"podAntiAffinity": object{"preferredDuringSchedulingIgnoredDuringExecution": []any{object{"weight": 100.,
			"podAffinityTerm": object{"topologyKey": "kubernetes.io/hostname", "labelSelector": pods}}}}}
		if is := at(pod, "spec", "affinity"); !reflect.DeepEqual(is, apart) {
			t.Errorf("affinity %v, want %v", is, apart)
		}
	}
}

// TestBudget: the disruption budget of a gateway under Liqo selects its pods, even if the gateway's name is a number.
func TestBudget(t *testing.T) {
	b := documents(t, strings.TrimPrefix(Budget("7", "liqo-tenant-7"), "---\n"))["PodDisruptionBudget liqo-tenant-7"]
	if at(b, "metadata", "name") != "gw-7" || at(b, "spec", "selector", "matchLabels", "networking.liqo.io/gateway-name") != "7" || at(b, "spec", "maxUnavailable") != float64(1) {
		t.Errorf("%v", b)
	}
}
