package integration

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"culvert/integration/need"
)

const (
	realPort    = "5300"
	realPerKind = 25 // streams
)

// The kinds of streams between the clusters.
const (
	podToPod   = "pod to pod"
	byNodePort = "NodePort"
	fromNode   = "from a node"
	byExport   = "exported Service"
)

// realStreams are streams between the clusters of a lab, by kind.
type realStreams struct {
	*realLab
	open map[string]func() (*linkStream, error)
	all  map[string][]*linkStream
}

// exported exports a Service hello, whose port 80 is realPort of each pod hello, and returns its
// address in the other cluster.
func (l *realLab) exported(from, to, expose string, replicas int) string {
	l.t.Helper()
	l.apply(from,
		fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: hello, namespace: default, labels: {culvert/export: 'true'}}\n"+
			"spec: {selector: {app: hello}, ports: [{port: 80, targetPort: %s}]}\n", realPort))
	l.kubectl(to, "create", "namespace", from)
	l.apply(to, l.must("kube", "template", "--image="+l.image, "--peering="+from, "--expose="+expose,
		"--imports="+from, "--replicas="+strconv.Itoa(replicas)))
	l.kubectl(to, "-n", "culvert", "patch", "peering", from, "--type=merge", "-p", `{"spec":{"imports":"`+from+`"}}`)
	address := ""
	eventuallyWithin(l.t, kubeStartTimeout, to+" imports the Service", func() error {
		out, err := l.command("shell", "kubectl", "--context", to, "-n", from, "get", "service", "hello-default", "-o",
			"jsonpath={.spec.clusterIP}").Output()
		address = string(out)
		return err
	})
	return address + ":80"
}

// nodePort makes a NodePort Service of a cluster, which leads to a pod of the other one, and
// returns its port.
func (l *realLab) nodePort(cluster, address string) string {
	l.t.Helper()
	l.apply(cluster, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: far, namespace: default}
spec: {type: NodePort, ports: [{port: 80, targetPort: %[1]s}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far, namespace: default, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{port: %[1]s}]
endpoints: [{addresses: [%[2]s]}]
`, realPort, address))
	return l.kubectl(cluster, "get", "service", "far", "-o", "jsonpath={.spec.ports[0].nodePort}")
}

// listen listens in the pods hello-1 and hello-2 of both clusters.
func (l *realLab) listen(serve func(net.Listener)) {
	l.t.Helper()
	for _, cluster := range realNames {
		for _, pod := range []string{"hello-1", "hello-2"} {
			listener, err := l.pod(cluster, "default/"+pod).listen("tcp4", ":"+realPort)
			need.NoError(l.t, err)
			l.t.Cleanup(func() { listener.Close() })
			go serve(listener)
		}
	}
}

// newRealStreams listens on each pod, makes the Services through which the other cluster reaches
// them, and opens streams of each kind.
func newRealStreams(l *realLab) *realStreams {
	l.t.Helper()
	l.listen(echoBytes)
	imported := l.exported("milan", "rome", "ClusterIP", 1)
	nodePort := l.nodePort("milan", l.seen("milan", "rome", "hello-2"))
	by := func(from *peerHost, address string) func() (*linkStream, error) {
		return func() (*linkStream, error) {
			conn, err := from.dialWithin(5*time.Second, "tcp4", address)
			if err != nil {
				return nil, err
			}
			return startStream(conn, 50*time.Millisecond), nil
		}
	}
	s := &realStreams{l, map[string]func() (*linkStream, error){
		podToPod:   by(l.pod("rome", "default/hello-1"), l.seen("rome", "milan", "hello-2")+":"+realPort),
		byNodePort: by(l.host("lan", "/run/netns/cv-lan"), "172.30.0.22:"+nodePort),
		fromNode:   by(l.node("rome-2"), l.seen("rome", "milan", "hello-1")+":"+realPort),
		byExport:   by(l.pod("rome", "default/hello-2"), imported),
	}, map[string][]*linkStream{}}
	for kind := range s.open {
		s.fill(kind)
	}
	return s
}

// fill opens the streams of a kind that are missing.
func (s *realStreams) fill(kind string) {
	s.t.Helper()
	eventuallyWithin(s.t, kubeStartTimeout, kind+": streams", func() error {
		for len(s.all[kind]) < realPerKind {
			one, err := s.open[kind]()
			if err != nil {
				return err
			}
			s.all[kind] = append(s.all[kind], one)
		}
		return nil
	})
}

// beside makes a change, and logs the pauses and losses of streams during it. It fails if a stream
// is lost, unless its kind is in mayEnd.
func (s *realStreams) beside(what string, change func(), mayEnd ...string) {
	s.t.Helper()
	for _, all := range s.all {
		for _, one := range all {
			one.longest.Store(0)
		}
	}
	began := time.Now()
	change()
	took := time.Since(began)
	for _, kind := range slices.Sorted(maps.Keys(s.all)) {
		lost, longest, why := 0, time.Duration(0), error(nil)
		var live []*linkStream
		for _, one := range s.all[kind] {
			longest = max(longest, time.Duration(one.longest.Swap(0)))
			deadline := time.After(startTimeout)
			for ended := false; !ended && one.longest.Load() == 0; { // until its next answer
				select {
				case why = <-one.ended:
					ended = true
				case <-deadline:
					why, ended = errNotYet, true
				case <-time.After(10 * time.Millisecond):
				}
				if ended {
					lost++
				}
			}
			if one.longest.Load() > 0 {
				longest = max(longest, time.Duration(one.longest.Load()))
				live = append(live, one)
			}
		}
		s.t.Logf("%-34s %6.1f s  %-17s longest pause %8v, %d of %d lost %v", what, took.Seconds(), kind,
			longest.Round(time.Millisecond), lost, len(s.all[kind]), why)
		if lost > 0 && !slices.Contains(mayEnd, kind) {
			s.t.Errorf("%s: %d streams of the kind %q were lost: %v", what, lost, kind, why)
		}
		s.all[kind] = live
		s.fill(kind)
	}
}

// TestKubeClustersStreams: streams between two clusters of real nodes continue while nodes, pods,
// peerings and programs change.
func TestKubeClustersStreams(t *testing.T) {
	need.Long(t, "100 streams beside changes")
	isolated(t, func(t *testing.T) {
		l := newRealLab(t, "turin")
		l.must("join", "--image="+realImage, "--yes", inBoth[0], inBoth[1])
		s := newRealStreams(l)
		s.beside("nothing", func() { l.meet() })
		s.beside("agents restarted", func() {
			for _, cluster := range realNames {
				l.kubectl(cluster, "-n", "culvert-nodes", "rollout", "restart", "daemonset", "culvert-node")
				l.kubectl(cluster, "-n", "culvert-nodes", "rollout", "status", "daemonset", "culvert-node",
					"--timeout=120s")
			}
		})
		s.beside("a node added", func() { l.script("node", "rome", "3"); l.script("hello", "rome") })
		s.beside("that node drained", func() {
			l.kubectl("rome", "drain", "rome-3", "--ignore-daemonsets", "--force", "--timeout=120s")
		})
		s.beside("that node removed", func() { l.script("leave", "rome", "3") })
		s.beside("two peerings with turin joined", func() {
			l.must("join", "--image="+realImage, "--yes", inBoth[0], inBoth[1], "--context=turin")
			l.must("verify", inBoth[0], inBoth[1], "--context=turin")
		})
		s.beside("and left", func() {
			for _, cluster := range realNames {
				l.must("leave", "--context="+cluster, "--peer=turin", "--yes")
			}
		})
		s.beside("200 pods made", func() { l.many(200) })
		s.beside("and removed", func() { l.many(0) })
		s.beside("image upgraded", func() {
			l.script("load", "localhost/culvert:2", os.Getenv(binaryEnv))
			l.must("join", "--image=localhost/culvert:2", "--yes", inBoth[0], inBoth[1])
			for _, cluster := range realNames {
				l.kubectl(cluster, "-n", "culvert-nodes", "rollout", "status", "daemonset", "culvert-node",
					"--timeout=120s")
			}
		}, byNodePort, fromNode, byExport) // without a standby, connections that the gateway translates end with it
	}, kubernetes, realClusters)
}

// many scales a Deployment of rome to n pods.
func (l *realLab) many(n int) {
	l.t.Helper()
	l.apply("rome", fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: many, namespace: default}
spec:
  replicas: %d
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: many, image: "localhost/pause:1"}]}
`, n))
	if n > 0 {
		l.kubectl("rome", "rollout", "status", "deployment", "many", "--timeout=480s")
	} else {
		l.kubectl("rome", "wait", "--for=delete", "pod", "-l", "app=many", "--timeout=480s")
	}
}
