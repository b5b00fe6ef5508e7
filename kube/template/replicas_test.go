package template

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestReplicas: with two replicas no pod is labelled as active before the election, a new pod
// starts before an old one ends, and Liqo's times are kept.
func TestReplicas(t *testing.T) {
	for _, server := range []bool{true, false} {
		stock := Default(server, "liqo", "liqo")
		deployment := Field(stock, strings.Split(deploymentPath, ".")...).(map[string]any)
		deployment["replicas"] = int64(2)
		containers := Field(deployment, "template", "spec", "containers").([]any)
		gateway := containers[0].(map[string]any)
		gateway["args"] = append(gateway["args"].([]any), "--leader-election=true",
			"--leader-election-lease-duration=15s",
			"--leader-election-renew-deadline=10s", "--leader-election-retry-period=2s")

		one, notes, err := From(stock, "registry.invalid/culvert:1", 1)
		if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "--replicas") {
			t.Fatalf("notes %q, %v", notes, err)
		}
		two, notes, err := From(stock, "registry.invalid/culvert:1", 2)
		if err != nil || len(notes) != 0 {
			t.Fatalf("notes %q, %v", notes, err)
		}
		for _, tt := range []struct {
			made     map[string]any
			active   any
			strategy string
			election bool
			affinity bool
		}{
			{one, "true", "map[type:Recreate]", false, false},
			{two, nil, "map[rollingUpdate:map[maxSurge:1 maxUnavailable:0] type:RollingUpdate]", true, true},
		} {
			d := Field(tt.made, strings.Split(deploymentPath, ".")...)
			if is := Field(d, "template", "metadata", "labels", labelActive); is != tt.active {
				t.Errorf("active %v, want %v", is, tt.active)
			}
			if is := fmt.Sprint(Field(d, "strategy")); is != tt.strategy {
				t.Errorf("strategy %s, want %s", is, tt.strategy)
			}
			args := Field(d, "template", "spec", "containers").([]any)[0].(map[string]any)["args"].([]any)
			for _, flag := range []string{"--leader-election=true", "--leader-election-lease-duration=15s",
				"--leader-election-retry-period=2s"} {
				if slices.Contains(args, any(flag)) != tt.election {
					t.Errorf("%s: in %q", flag, args)
				}
			}
			// Preferred alone: with one node left, both run there.
			affinity := "<nil>"
			if tt.affinity {
				affinity = "map[podAntiAffinity:map[preferredDuringSchedulingIgnoredDuringExecution:[map[podAffinityTerm:map[labelSelector:map[matchLabels:" +
					"map[networking.liqo.io/component:gateway networking.liqo.io/gateway-name:{{ .Name }} networking.liqo.io/gateway-namespace:{{ .Namespace }}]] " +
					"topologyKey:kubernetes.io/hostname] weight:100]]]]"
			}
			if is := fmt.Sprint(Field(d, "template", "spec", "affinity")); is != affinity {
				t.Errorf("affinity %s, want %s", is, affinity)
			}
			if selector := Field(tt.made, "spec", "template", "spec", "service", "spec", "selector"); server &&
				Field(selector, labelActive) != "true" {
				t.Errorf("the Service selects %v", selector)
			}
		}
	}
}

// TestOwnAffinity: an affinity that the operator has set is kept.
func TestOwnAffinity(t *testing.T) {
	stock := Default(true, "liqo", "liqo")
	own := map[string]any{"nodeAffinity": map[string]any{}}
	Field(stock, strings.Split(podPath+".spec", ".")...).(map[string]any)["affinity"] = own
	made, _, err := From(stock, "registry.invalid/culvert:1", 2)
	need.NoError(t, err)
	if is := Field(made, strings.Split(podPath+".spec.affinity", ".")...); fmt.Sprint(is) != fmt.Sprint(own) {
		t.Errorf("%v", is)
	}
}
