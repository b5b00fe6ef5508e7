package objects

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/kube/manifests"
)

// TestDaemonSetsAvoidVirtualNodes: a pod on a virtual node never runs, and would use up
// maxUnavailable, so that no real node ever got an upgrade. Each manifest leaves out the same
// nodes.
func TestDaemonSetsAvoidVirtualNodes(t *testing.T) {
	seen := 0
	for _, text := range []string{manifests.Nodes, manifests.LiqoNodes, manifests.Services,
		manifests.LiqoNodesOf("r.example/c:2", "net", "all"), manifests.Common("r.example/c:2", nil)} {
		for document := range strings.SplitSeq(text, "\n---\n") {
			if !strings.Contains(document, "kind: DaemonSet\n") {
				continue
			}
			seen++
			var d struct {
				Spec struct {
					Template struct {
						Spec struct {
							Affinity struct {
								NodeAffinity struct {
									Required struct {
										Terms []struct {
											MatchExpressions []struct {
												Key, Operator string
												Values        []string
											}
										} `json:"nodeSelectorTerms"`
									} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
								}
							}
						}
					}
				}
			}
			if err := yaml.Unmarshal([]byte(document), &d); err != nil {
				t.Fatal(err)
			}
			terms := d.Spec.Template.Spec.Affinity.NodeAffinity.Required.Terms
			if len(terms) != 1 { // several are alternatives
				t.Fatalf("%d terms in\n%s", len(terms), document)
			}
			left := map[string]string{}
			for _, e := range terms[0].MatchExpressions {
				if e.Operator != "NotIn" || len(e.Values) != 1 {
					t.Errorf("%+v", e)
				}
				left[e.Key] = strings.Join(e.Values, ",")
			}
			if !maps.Equal(left, virtualNodes) {
				t.Errorf("left out: %v, virtual: %v", left, virtualNodes)
			}
		}
	}
	if seen != 5 {
		t.Errorf("%d DaemonSets", seen)
	}
}

func TestVirtual(t *testing.T) {
	for _, labels := range []string{"liqo.io/type=virtual-node", "type=virtual-kubelet",
		"eks.amazonaws.com/compute-type=fargate"} {
		key, value, _ := strings.Cut(labels, "=")
		if !Virtual(map[string]string{"kubernetes.io/os": "linux", key: value}) {
			t.Errorf("%s is not virtual", labels)
		}
	}
	for _, labels := range []string{"type=gpu", "eks.amazonaws.com/compute-type=hybrid", "virtual-kubelet=type"} {
		key, value, _ := strings.Cut(labels, "=")
		if Virtual(map[string]string{key: value}) {
			t.Errorf("%s is virtual", labels)
		}
	}
	if Virtual(nil) || len(slices.Collect(maps.Keys(virtualNodes))) != 3 {
		t.Error("a node without labels is virtual, or a kind is not tested")
	}
}
