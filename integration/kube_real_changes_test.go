package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// realChanges is two joined clusters whose installation an administrator changes, beside
// connections and datagrams.
type realChanges struct {
	*realLab
	t        *testing.T
	talks    *talks
	watches  []*pathWatch
	gateways [2]*realGateway
}

// A realChange is one change. A pause of more than its bound, a lost connection, and a container
// that has ended are faults.
type realChange struct {
	name   string
	bound  time.Duration
	make   func()
	counts [2]int // pods of both gateways afterwards
	loses  bool   // connections that the gateway translates
}

// make makes a change, and compares what it costs.
func (c *realChanges) make(x *realChange) {
	t := c.t
	began := time.Now()
	x.make()
	took := time.Since(began)
	by := c.talks.count()
	lost, longest := 0, time.Duration(0)
	for kind, n := range by {
		if !x.loses || kind == podToPod {
			lost += n.lost
		}
	}
	c.talks.said(x.name, by)
	for i, g := range c.gateways {
		g.settle(x.counts[i])
	}
	for _, w := range c.watches {
		longest = max(longest, w.pause(t, x.name))
	}
	t.Logf("%-40s %5.1f s, the path pauses for %v, bound %v", x.name, took.Seconds(),
		longest.Round(10*time.Millisecond), x.bound)
	if longest > x.bound || lost > 0 {
		t.Errorf("%s: a pause of %v, want at most %v; %d connections lost, want none", x.name, longest, x.bound, lost)
	}
	for _, cluster := range realNames {
		for _, namespace := range []string{"culvert", "culvert-nodes"} {
			out := c.kubectl(cluster, "-n", namespace, "get", "pods", "-o",
				`go-template={{range .items}}{{$n := .metadata.name}}{{range .status.containerStatuses}}`+
					`{{if .restartCount}}{{$n}} was restarted {{.restartCount}} times, {{end}}{{end}}{{end}}`)
			if out != "" {
				t.Errorf("%s: %s: %s", x.name, cluster, out)
			}
		}
	}
}

// join is culvert join of both clusters.
func (c *realChanges) join(args ...string) {
	c.must(append([]string{"join", "--yes", inBoth[0], inBoth[1]}, args...)...)
}

// refused is culvert join, which has to fail within a time, and to say why.
func (c *realChanges) refused(why string, args ...string) {
	began := time.Now()
	out, err := c.culvert(append([]string{"join", "--yes", inBoth[0], inBoth[1]}, args...)...)
	if took := time.Since(began); err == nil || !strings.Contains(out, why) || took > time.Minute {
		c.t.Errorf("culvert join %q: %v after %v, want a failure with %q:\n%s", args, err, took, why, out)
	}
}

// scale changes the number of rome's gateways as an autoscaler does.
func (c *realChanges) scale(n int) {
	c.kubectl("rome", "-n", "culvert", "scale", "deployment", "culvert-milan", fmt.Sprint("--replicas=", n))
	c.rolled("rome", "culvert-milan")
}

func (c *realChanges) rolled(cluster, deployment string) {
	c.kubectl(cluster, "-n", "culvert", "rollout", "status", "deployment", deployment, "--timeout=120s")
}

const (
	realImage2 = "localhost/culvert:2"
	realAbsent = "localhost/absent:9"
)

// changes are what an administrator does, each of them more than once and after another one.
func (c *realChanges) changes() []*realChange {
	one, standby, both := [2]int{1, 1}, [2]int{2, 1}, [2]int{2, 2}
	agents := func() string {
		return c.kubectl("rome", "-n", "culvert-nodes", "get", "pods", "-o",
			`go-template={{range .items}}{{if not .metadata.deletionTimestamp}}`+
				`{{range .status.containerStatuses}}{{.ready}} {{end}}{{end}}{{end}}`)
	}
	return []*realChange{
		{name: "nothing", bound: time.Second, make: func() { c.join() }, counts: one},
		{name: "another image", bound: realHandover, make: func() { c.join("--image=" + realImage2) }, counts: one},
		{name: "rollout restart", bound: realHandover, make: func() {
			for i, cluster := range realNames {
				c.kubectl(cluster, "-n", "culvert", "rollout", "restart", "deployment", "culvert-"+realNames[1-i])
				c.rolled(cluster, "culvert-"+realNames[1-i])
			}
		}, counts: one},
		{name: "scale 1 to 2", bound: realHandover, make: func() { c.scale(2) }, counts: standby},
		{name: "scale 2 to 1", bound: realHandover, make: func() { c.scale(1) }, counts: one},
		{name: "join --replicas 2", bound: realHandover, make: func() { c.join("--replicas=2") }, counts: both},
		{name: "a wrong image", bound: realHandover, make: func() {
			c.refused("localhost/absent:9", "--image="+realAbsent)
			if ready := strings.Count(agents(), "true"); ready != 2 {
				c.t.Errorf("after a wrong image, %d of 2 agents are ready: %s", ready, agents())
			}
			out, err := c.culvert("verify", inBoth[0], inBoth[1])
			if text := strings.Join(strings.Fields(out), " "); err == nil ||
				!strings.Contains(text, "localhost/absent:9") {
				c.t.Errorf("culvert verify does not name the rollout that cannot start: %v\n%s", err, out)
			}
			c.join("--image=" + realImage)
		}, counts: both},
		{name: "join --replicas 1", bound: realHandover, make: func() { c.join("--replicas=1") }, counts: one},
		{name: "kubectl apply and join", bound: realHandover, make: func() {
			c.apply("rome", c.must("kube", "template", "--image="+realImage2, "--peering=milan", "--expose=ClusterIP",
				"--replicas=2"))
			c.join("--replicas=1", "--image="+realImage2)
		}, counts: one},
		{name: "a deleted pod", bound: realHandover, make: func() {
			c.kubectl("rome", "-n", "culvert", "delete", "pod",
				c.gateways[0].active())
		}, counts: one},
		{name: "another node port", bound: time.Minute, make: c.anotherNodePort, counts: one, loses: true},
		{name: "another key", bound: time.Minute, make: func() {
			c.kubectl("rome", "-n", "culvert", "patch", "secret", "culvert-milan", "--type=merge", "-p",
				`{"data":{"privateKey":null}}`)
			c.kubectl("rome", "-n", "culvert", "rollout", "restart", "deployment", "culvert-milan")
			c.join()
			want := c.kubectl("rome", "-n", "culvert", "get", "peering", "milan", "-o", "jsonpath={.status.publicKey}")
			if key := c.kubectl("milan", "-n", "culvert", "get", "peering", "rome", "-o",
				"jsonpath={.spec.publicKey}"); key != want {
				c.t.Errorf("milan has the key %s, rome %s", key, want)
			}
		}, counts: one, loses: true},
		{name: "scale 1 to 0 to 1", bound: time.Minute, make: func() {
			c.scale(0)
			eventuallyWithin(c.t, kubeStartTimeout, "the Peering says that its gateway has stopped", func() error {
				if reason := c.gateways[0].peering(`.status.conditions[?(@.type=="Connected")].reason`); reason !=
					"GatewayStopped" {
					return fmt.Errorf("Connected: %s", reason)
				}
				return nil
			})
			c.scale(1)
		}, counts: one, loses: true},
		{name: "a gateway that does not elect", bound: time.Minute, make: func() {
			c.scale(0)
			c.kubectl("rome", "-n", "culvert", "wait", "--for=delete", "pod", "-l", "app=culvert-gateway",
				"--timeout=60s")
			c.kubectl("rome", "-n", "culvert", "patch", "deployment", "culvert-milan", "--type=json", "-p",
				`[{"op": "remove", "path": "/spec/template/spec/containers/0/args/2"}, `+
					`{"op": "add", "path": "/spec/template/metadata/labels/culvert.io~1active", "value": "true"}]`)
			c.scale(1)
		}, counts: one, loses: true},
		{name: "two of them, and join", bound: time.Minute, make: c.displaced, counts: one, loses: true},
		{name: "verify", bound: time.Second, make: func() { c.must("verify", inBoth[0], inBoth[1]) }, counts: one},
	}
}

// displaced runs two pods of rome's gateway that do not elect, until the Peering and culvert verify
// say what that leads to.
func (c *realChanges) displaced() {
	c.kubectl("rome", "-n", "culvert", "scale", "deployment", "culvert-milan", "--replicas=2")
	eventuallyWithin(c.t, 3*time.Minute, "the Peering says that two gateways displace each other", func() error {
		if reason := c.gateways[0].peering(`.status.conditions[?(@.type=="OneGateway")].reason`); reason !=
			"Displaced" {
			return fmt.Errorf("OneGateway: %q", reason)
		}
		return nil
	})
	out, err := c.culvert("verify", inBoth[0], inBoth[1])
	text := strings.Join(strings.Fields(out), " ")
	if err == nil || !strings.Contains(text, "each takes the place of the other") ||
		strings.Contains(text, "spec.mtu") || strings.Contains(text, "faulty link") {
		c.t.Errorf("culvert verify: %v\n%s", err, out)
	}
	c.join("--replicas=1")
}

// anotherNodePort makes milan's Service again. Its node port is then another one, which culvert
// join gives to rome.
func (c *realChanges) anotherNodePort() {
	c.kubectl("milan", "-n", "culvert", "delete", "service", "culvert-rome")
	c.join()
	port := c.kubectl("milan", "-n", "culvert", "get", "service", "culvert-rome", "-o",
		"jsonpath={.spec.ports[0].nodePort}")
	if at := c.gateways[0].peering(".spec.endpoint"); !strings.HasSuffix(at, ":"+port) {
		c.t.Errorf("rome's endpoint is %s, want port %s", at, port)
	}
}

// TestKubeClustersChanges: an administrator changes an installation, wrongly too, changes it back,
// and mixes the ways.
func TestKubeClustersChanges(t *testing.T) {
	need.Long(t, "changes of an installation beside connections")
	isolated(t, func(t *testing.T) {
		l := newRealLab(t)
		l.script("load", realImage2, os.Getenv(binaryEnv))
		l.must("join", "--image="+realImage, "--yes", inBoth[0], inBoth[1])
		c := &realChanges{realLab: l, t: t, talks: l.talks(1, 30), watches: []*pathWatch{
			watchPath(t, l.pod("milan", "default/hello-2"), ":5301", l.pod("rome", "default/hello-1"),
				l.seen("rome", "milan", "hello-2")+":5301"),
			watchPath(t, l.pod("rome", "default/hello-2"), ":5301", l.pod("milan", "default/hello-1"),
				l.seen("milan", "rome", "hello-2")+":5301"),
		}}
		for i, cluster := range realNames {
			c.gateways[i] = &realGateway{realLab: l, cluster: cluster, peer: realNames[1-i]}
			c.gateways[i].settle(1)
		}
		for _, w := range c.watches {
			w.pause(t, "begin")
		}
		for _, x := range c.changes() {
			c.make(x)
		}
	}, kubernetes, realClusters)
}
