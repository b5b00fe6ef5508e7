package integration

import (
	"bytes"
	"os"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// resource returns a Liqo resource; labels are key, value, key, value…
func resource(kind, namespace, name string, spec object, labels ...string) object {
	meta := object{"name": name, "labels": pairs(labels...)}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	return object{"apiVersion": liqoVersion, "kind": kind, "metadata": meta, "spec": spec}
}

func pairs(of ...string) object {
	labels := make(object)
	for i := 0; i < len(of); i += 2 {
		labels[of[i]] = of[i+1]
	}
	return labels
}

func readYAML(t *testing.T, file string) object {
	t.Helper()
	text, err := os.ReadFile(file)
	need.NoError(t, err)
	var o object
	if err := yaml.Unmarshal(text, &o); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return o
}

// readResources reads a file of several resources.
func readResources(t *testing.T, file string) (all []object) {
	t.Helper()
	text, err := os.ReadFile(file)
	need.NoError(t, err)
	return parseResources(t, file, text)
}

// parseResources returns the objects in a text. name is for errors.
func parseResources(t *testing.T, name string, text []byte) (all []object) {
	t.Helper()
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var o object
		if err := yaml.Unmarshal(document, &o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, o)
	}
	return all
}

var fabricRoutes = []string{liqoLabel + "route-category", "gateway", liqoLabel + "route-subcategory", "fabric"}

func subcategory(name string) []string {
	return []string{liqoLabel + "firewall-category", "gateway", liqoLabel + "firewall-subcategory", name}
}

func routeTable(name string, rules ...object) object {
	return object{"table": object{"name": name, "rules": rules}}
}

func firewall(namespace, name, table string, labels []string, chains ...object) object {
	return resource("FirewallConfiguration", namespace, name, object{"table": object{"name": table, "family": "IPV4",
		"chains": chains}}, labels...)
}

func chain(name, kind, hook string, priority int, rules ...object) object {
	all := object{}
	if len(rules) > 0 {
		all[kind+"Rules"] = rules
	}
	return object{"name": name, "type": kind, "hook": hook, "priority": priority, "policy": "accept", "rules": all}
}

func natRule(name, kind, to string, matches ...object) object {
	return object{"name": name, "natType": kind, "to": to, "match": matches}
}

func filterRule(name, action, value string, counter bool, matches ...object) object {
	rule := object{"name": name, "action": action, "counter": counter, "match": matches}
	if value != "" {
		rule["value"] = value
	}
	return rule
}

func matchIP(op, position, value string) object {
	return object{"op": op, "ip": object{"position": position, "value": value}}
}

func matchDevice(op, position, value string) object {
	return object{"op": op, "dev": object{"position": position, "value": value}}
}

func matchPort(op, position, value string) object {
	return object{"op": op, "port": object{"position": position, "value": value}}
}

func matchProto(value string) object {
	return object{"op": "eq", "proto": object{"value": value}}
}
