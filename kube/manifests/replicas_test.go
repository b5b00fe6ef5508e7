package manifests

import (
	"reflect"
	"slices"
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
			namespace, _ := valueAt(o, "metadata", "namespace").(string)
			kind := o["kind"].(string)
			if kind == "RoleBinding" {
				continue
			}
			all[kind+" "+namespace] = o
		}
	}
	return all
}

func valueAt(o any, path ...string) any {
	for _, name := range path {
		m, _ := o.(object)
		o = m[name]
	}
	return o
}

// TestGatewayReplicas: the number of pods is all that a number changes, so that others may change
// it: whatever it is, the pods elect the active one by a Lease, none is created with its label, a
// new one starts before an old one ends, and a drain takes one of them.
func TestGatewayReplicas(t *testing.T) {
	one := documents(t, (&Gateway{Peering: "milan", Image: "registry.invalid/culvert:1", Expose: "NodePort",
		Replicas: 1}).YAML())
	all := documents(t, (&Gateway{Peering: "milan", Image: "registry.invalid/culvert:1", Expose: "NodePort",
		Replicas: 2}).YAML())
	d := all["Deployment culvert"]
	if n := valueAt(d, "spec", "replicas"); n != 2. {
		t.Errorf("%v replicas", n)
	}
	valueAt(d, "spec").(object)["replicas"] = 1.
	if !reflect.DeepEqual(one, all) {
		t.Errorf("another number of pods changes something else:\n%v\n%v", one, all)
	}
	if is := valueAt(d, "spec", "strategy"); !reflect.DeepEqual(is, object{"type": "RollingUpdate",
		"rollingUpdate": object{"maxUnavailable": 0., "maxSurge": 1.}}) {
		t.Errorf("strategy %v", is)
	}
	pod := valueAt(d, "spec", "template")
	if is := valueAt(pod, "metadata", "labels", "culvert.io/active"); is != "false" {
		t.Errorf("active %v", is)
	}
	if valueAt(all["Service culvert"], "spec", "selector", "culvert.io/active") != "true" ||
		valueAt(all["Service culvert"], "spec", "type") != "NodePort" {
		t.Errorf("%v", all["Service culvert"])
	}
	if args := valueAt(pod, "spec", "containers").([]any)[0].(object)["args"].([]any); !slices.Contains(args,
		any("--leader-election")) {
		t.Errorf("args %v", args)
	}
	if rules := valueAt(all["Role culvert"], "rules").([]any); len(rules) != 8 {
		t.Errorf("%d rules", len(rules))
	}
	pods := valueAt(d, "spec", "selector")
	if budget := valueAt(all["PodDisruptionBudget culvert"], "spec"); !reflect.DeepEqual(budget,
		object{"maxUnavailable": 1., "selector": pods}) {
		t.Errorf("the budget is %v, of pods %v", budget, pods)
	}
	term := object{"topologyKey": "kubernetes.io/hostname", "labelSelector": pods}
	preferred := []any{object{"weight": 100., "podAffinityTerm": term}}
	apart := object{"podAntiAffinity": object{"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
	if is := valueAt(pod, "spec", "affinity"); !reflect.DeepEqual(is, apart) {
		t.Errorf("affinity %v, want %v", is, apart)
	}
}

// TestBudget: the disruption budget of a gateway under Liqo selects its pods and belongs to it,
// even if the gateway's name is a number.
func TestBudget(t *testing.T) {
	b := documents(t, strings.TrimPrefix(Budget("GatewayServer", "7", "liqo-tenant-7", "1e3"),
		"---\n"))["PodDisruptionBudget liqo-tenant-7"]
	if valueAt(b, "metadata", "name") != "gw-7" || valueAt(b, "spec", "selector", "matchLabels",
		"networking.liqo.io/gateway-name") != "7" || valueAt(b, "spec", "maxUnavailable") != float64(1) {
		t.Errorf("%v", b)
	}
	owners := []any{object{"apiVersion": "networking.liqo.io/v1beta1", "kind": "GatewayServer", "name": "7",
		"uid": "1e3"}}
	if is := valueAt(b, "metadata", "ownerReferences"); !reflect.DeepEqual(is, owners) {
		t.Errorf("owners %v, want %v", is, owners)
	}
}
