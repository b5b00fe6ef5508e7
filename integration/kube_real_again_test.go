package integration

import (
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestKubeClustersAgain: what contradicts a peering that works is refused without any change, one
// end that left comes back, and agents that went first are named and put back.
func TestKubeClustersAgain(t *testing.T) {
	need.Long(t, "culvert join and leave, a second time")
	isolated(t, func(t *testing.T) {
		l := newRealLab(t)
		before := l.atRest()
		join := []string{"join", "--image=" + realImage, "--yes", inBoth[0], inBoth[1]}
		l.must(join...)
		l.meet()
		had := l.specs()
		for why, args := range map[string][]string{
			"--pod-cidr: no Node and no Pod has an address in 10.99.0.0/16": {"--pod-cidr=rome=10.99.0.0/16"},
			"--name: this cluster is rome by its Peering milan":             {"--name=roma", "--name=milano"},
			"--name: this cluster is milan by its Peering rome":             {"--name=rome", "--name=milano"},
			"--service-cidr: a Service has the address":                     {"--service-cidr=milan=10.200.0.0/16"},
		} {
			if out, err := l.culvert(append(join, args...)...); err == nil || !strings.Contains(out, why) {
				t.Errorf("%q: %v, want %s\n%s", args, err, why, out)
			}
		}
		if now := l.specs(); now != had {
			t.Errorf("the Peerings are %q, want %q", now, had)
		}
		l.must("leave", "--yes", inBoth[0], "--peer=milan")
		l.must(join...)
		l.meet()

		l.kubectl("milan", "delete", "namespace", "culvert-nodes")
		for _, node := range []string{"milan-1", "milan-2"} {
			if out := l.node(node).run("ip", "-br", "link") + l.node(node).run("nft", "list",
				"tables"); strings.Contains(out, "cv-rome") || strings.Contains(out, "culvert") {
				t.Errorf("%s has something of agents whose namespace is deleted: %s", node, out)
			}
		}
		out, err := l.culvert("leave", "--all", "--yes", inBoth[1])
		if err == nil || !strings.Contains(out, "may be left on milan-1, milan-2") || strings.Contains(out, "done") {
			t.Errorf("culvert leave without agents: %v\n%s", err, out)
		}
		l.apply("milan", l.must("kube", "template", "--image="+realImage))
		l.leave(t, before)
	}, kubernetes, realClusters)
}
