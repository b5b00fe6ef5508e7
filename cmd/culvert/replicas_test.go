//go:build !nokube

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"culvert/kube/template"
)

// TestReplicasPrinted: what docs/standby.md promises of two pods and of one is in what both
// template commands print, the budgets of existing gateways too.
func TestReplicasPrinted(t *testing.T) {
	c := newFakeCluster(t)
	gateway := func(name string) any {
		return map[string]any{"apiVersion": template.APIVersion, "metadata": map[string]any{"name": name,
			"namespace": "liqo-tenant-" + name, "uid": "of " + name}}
	}
	c.put(liqoAPI+"/gatewayservers", []any{gateway("milan")})
	c.put(liqoAPI+"/gatewayclients", []any{gateway("7")})
	liqo := []string{"liqo", "template", "--image", exampleImage, "--kubeconfig", c.start(t)}
	kube := []string{"kube", "template", "--image", exampleImage, "--peering", "milan"}
	const (
		recreate = `{"type":"Recreate"}`
		joined   = `{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0},"type":"RollingUpdate"}`
	)
	for _, tt := range []struct {
		args, more  []string
		strategies  []string
		budgets     []string
		preferences int
	}{
		{liqo, nil, []string{recreate, recreate}, nil, 0},
		{liqo, []string{"--replicas", "2"}, []string{joined, joined}, []string{"liqo-tenant-milan/gw-milan",
			"liqo-tenant-7/gw-7"}, 2},
		{kube, nil, []string{joined}, []string{"culvert/culvert-milan"}, 1},
		{kube, []string{"--replicas", "2"}, []string{joined}, []string{"culvert/culvert-milan"}, 1},
	} {
		args := append(tt.args, tt.more...)
		out, diag, status := run(t, args...)
		if status != 0 {
			t.Fatalf("%q: status %d: %s", args, status, diag)
		}
		var strategies, budgets []string
		preferences := 0
		for _, o := range templates(t, out) {
			deployment := template.Field(o, "spec", "template", "spec", "deployment") // of a template of Liqo's
			if o["kind"] == "Deployment" {
				deployment = any(o)
			}
			if deployment != nil {
				strategies = append(strategies, jsonOf(t, template.Field(deployment, "spec", "strategy")))
				if affinity := jsonOf(t, template.Field(deployment, "spec", "template", "spec",
					"affinity")); strings.Contains(affinity, `"preferred`) && !strings.Contains(affinity, `"required`) {
					preferences++
				}
			}
			if o["kind"] == "PodDisruptionBudget" {
				budgets = append(budgets, template.Field(o, "metadata", "namespace").(string)+"/"+template.Field(o,
					"metadata", "name").(string))
				if n := jsonOf(t, template.Field(o, "spec", "maxUnavailable")); n != "1" {
					t.Errorf("%q: maxUnavailable %s", args, n)
				}
				name, _ := template.Field(o, "metadata", "name").(string)
				if owners := jsonOf(t, template.Field(o, "metadata", "ownerReferences")); args[0] == "liqo" &&
					!strings.Contains(owners, `"uid":"of `+strings.TrimPrefix(name, "gw-")+`"`) {
					t.Errorf("%q: budget %s belongs to %s", args, name, owners)
				}
			}
		}
		if !slices.Equal(strategies, tt.strategies) || !slices.Equal(budgets, tt.budgets) ||
			preferences != tt.preferences {
			t.Errorf("%q: strategies %q, budgets %q, %d prefer other nodes", args, strategies, budgets, preferences)
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestKubeTemplateParts: what --gateways-only prints is the rest of what is printed with it.
func TestKubeTemplateParts(t *testing.T) {
	print := func(args ...string) string {
		out, diag, status := run(t, append([]string{"kube", "template", "--image", exampleImage}, args...)...)
		if status != 0 {
			t.Fatalf("%q: status %d: %s", args, status, diag)
		}
		return out
	}
	common, gateways := print(), print("--peering=milan", "--peering=turin", "--gateways-only")
	if whole := print("--peering=milan", "--peering=turin"); whole != common+"---\n"+gateways {
		t.Errorf("%s\nwant\n%s---\n%s", whole, common, gateways)
	}
	for _, o := range templates(t, gateways) {
		if name, _ := template.Field(o, "metadata", "name").(string); !strings.HasSuffix(name, "milan") &&
			!strings.HasSuffix(name, "turin") {
			t.Errorf("%v %s is not of one gateway", o["kind"], name)
		}
	}
	for want, args := range map[string][]string{
		`--peering: "Milan_1" is no name of a cluster`: {"--peering=Milan_1"},
		"--gateways-only: needs --peering":             {"--gateways-only"},
	} {
		if out, diag, status := run(t, append([]string{"kube", "template", "--image=any"}, args...)...); status != 2 ||
			!strings.Contains(diag, want) || out != "" {
			t.Errorf("%q: status %d: %s, want %s", args, status, diag, want)
		}
	}
}
