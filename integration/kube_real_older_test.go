package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"culvert/integration/need"
)

// olderEnv names the file of an older culvert. make long builds it.
const (
	olderEnv   = "CULVERT_OLDER"
	olderImage = "localhost/culvert:older"
)

// older probes for an older culvert.
var older = probe{"older", func(testing.TB) error {
	if _, err := os.Stat(os.Getenv(olderEnv)); err != nil {
		return fmt.Errorf("%s names no older culvert; see make long: %w", olderEnv, err)
	}
	return nil
}}

// TestKubeClustersOlder: an older culvert and this one work together in every pair of roles: two
// gateways, a gateway and its agents, an active gateway and its standby. Peerings, keys and imports
// of the older one stay, and streams go on beside each step of an upgrade and of the way back.
func TestKubeClustersOlder(t *testing.T) {
	need.Long(t, "upgrades from an older culvert")
	isolated(t, func(t *testing.T) {
		l := newRealLab(t)
		before := l.atRest()
		l.script("load", olderImage, os.Getenv(olderEnv))
		asOlder := *l
		asOlder.program, asOlder.image = os.Getenv(olderEnv), olderImage
		asOlder.must("join", "--image="+olderImage, "--yes", inBoth[0], inBoth[1])
		l.meet()
		s := newRealStreams(&asOlder)
		// While one gateway is older, Services that are exported meanwhile do not arrive: verify
		// says so, and finds nothing else.
		verify := func(who *realLab, mixed bool) {
			t.Helper()
			out, err := who.culvert("verify", inBoth[0], inBoth[1])
			if says := strings.Contains(out, "does its gateway run this version of culvert?"); says != mixed ||
				(err != nil) != mixed {
				t.Errorf("one gateway is older %t: %v\n%s", mixed, err, out)
			}
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "wrong ") && !strings.Contains(line, " Service ") &&
					!strings.Contains(line, " by name ") {
					t.Error(line)
				}
			}
		}
		specs := l.specs()
		set := func(cluster, what, image string) func() {
			return func() {
				namespace, name, _ := strings.Cut(what, "/")
				l.kubectl(cluster, "-n", namespace, "set", "image", name, "culvert="+image)
				l.kubectl(cluster, "-n", namespace, "rollout", "status", name, "--timeout=120s")
			}
		}
		const agents = "culvert-nodes/daemonset.apps/culvert-node"
		gateway := map[string]string{"rome": "culvert/deployment.apps/culvert-milan",
			"milan": "culvert/deployment.apps/culvert-rome"}
		verify(l, false)
		for i, cluster := range realNames {
			s.beside(cluster+": this one's manifests", func() {
				l.kubectl(cluster, "-n", "culvert", "scale", gateway[cluster][len("culvert/"):], "--replicas=0")
				l.apply(cluster, l.manifests(cluster, olderImage))
				l.kubectl(cluster, "-n", "culvert", "rollout", "status", gateway[cluster][len("culvert/"):],
					"--timeout=120s")
			}, byNodePort, fromNode, byExport) // no other pod runs meanwhile
			s.beside(cluster+": gateway upgraded", set(cluster, gateway[cluster], realImage))
			verify(l, i == 0)
			s.beside(cluster+": gateway back", set(cluster, gateway[cluster], olderImage))
			s.beside(cluster+": agents upgraded", set(cluster, agents, realImage))
			verify(&asOlder, i == 1)
			s.beside(cluster+": agents back", set(cluster, agents, olderImage))
			s.beside(cluster+": both upgraded", func() {
				set(cluster, gateway[cluster], realImage)()
				set(cluster, agents, realImage)()
			})
			verify(l, i == 0)
		}
		if now := l.specs(); now != specs {
			t.Errorf("the Peerings are %q, want %q", now, specs)
		}
		l.must("join", "--image="+realImage, "--yes", inBoth[0], inBoth[1])
		if now := l.specs(); now != specs {
			t.Errorf("after culvert join the Peerings are %q, want %q", now, specs)
		}
		l.kubectl("milan", "delete", "service", "hello", "far")
		l.kubectl("milan", "delete", "endpointslice", "far")
		l.must("leave", "--all", "--yes", inBoth[0], inBoth[1])
		l.kubectl("rome", "delete", "namespace", "milan")
		l.requireAsBefore(t, before)
		for _, who := range [][2]*realLab{{&asOlder, l}, {l, &asOlder}} {
			invitation := who[0].message("invite", "--context=milan", "--peer=rome", "--image="+who[0].image, "--yes")
			answer := who[1].message("accept", "--context=rome", "--image="+who[1].image, "--yes", invitation)
			who[0].must("accept", "--context=milan", "--yes", answer)
			l.meet()
			l.leave(t, before)
		}
	}, kubernetes, realClusters, older)
}

// manifests are this culvert's, of a cluster that newRealStreams has used, with an image.
func (l *realLab) manifests(cluster, image string) string {
	l.t.Helper()
	if cluster == "milan" {
		return l.must("kube", "template", "--image="+image, "--peering=rome", "--expose=NodePort")
	}
	return l.must("kube", "template", "--image="+image, "--peering=milan", "--expose=ClusterIP", "--imports=milan")
}

// specs returns the generation and spec of both Peerings.
func (l *realLab) specs() (all [2]string) {
	l.t.Helper()
	for i, cluster := range realNames {
		all[i] = l.kubectl(cluster, "-n", "culvert", "get", "peering", realNames[1-i], "-o",
			"jsonpath={.metadata.generation} {.spec}")
	}
	return all
}
