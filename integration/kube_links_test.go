package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/integration/need"
)

const linksUser = "system:serviceaccount:" + liqoNamespace + ":culvert-links"

// kubeLinks are the processes that make the links of a cluster's nodes, with the rights of their
// manifest.
type kubeLinks struct {
	k          *kubeLab
	kubeconfig string
	processes  []*peerProcess
	runtime    []string   // folders of the nodes' sockets
	services   [][]string // flags with which the nodes serve Services; nil: they serve none
}

// startLinks starts such a process on each node. template has more arguments for culvert liqo
// template --nodes, which prints the manifest.
func (k *kubeLab) startLinks(template ...string) {
	k.t.Helper()
	manifest := k.network.run(os.Getenv(binaryEnv), append([]string{"liqo", "template", "--nodes", "--image",
		"registry.example/culvert:1.0"}, template...)...)
	for _, o := range parseResources(k.t, "manifest", []byte(manifest)) {
		k.liqo.apply(o)
	}
	for _, right := range []string{"genevetunnels", "internalfabrics", "internalnodes"} {
		k.api.awaitRight(k.t, linksUser, "watch", "networking.liqo.io/"+right, "")
	}
	k.api.awaitRight(k.t, linksUser, "create", "/events", k.liqo.tenant())
	k.api.awaitRight(k.t, linksUser, "watch", "/pods", "")
	l := &kubeLinks{k: k, kubeconfig: k.api.kubeconfigOf(liqoNamespace, "culvert-links"),
		processes: make([]*peerProcess, len(k.nodes))}
	for i := range k.nodes {
		l.runtime = append(l.runtime, k.t.TempDir())
		l.services = append(l.services, nil)
		if len(template) > 0 {
			file := filepath.Join(k.t.TempDir(), "node.yaml")
			writeReadable(k.t, file,
				fmt.Sprintf(
					"services: {addresses: [%s], pods: [10.244.0.0/16], serviceCIDRs: [10.96.0.0/16], state: %s}\n",
					k.address(kubeNodes[i].number), k.t.TempDir()))
			l.services[i] = append(slices.Clone(template), "--config", file, "--lease-namespace", announceNamespace)
		}
	}
	k.links = l
	for i := range k.nodes {
		l.start(i)
	}
}

func (l *kubeLinks) start(i int) {
	l.processes[i] = l.k.nodes[i].start(nil, "env", append([]string{"XDG_RUNTIME_DIR=" + l.runtime[i],
		os.Getenv(binaryEnv), "node", "--liqo", "--node-name", kubeNodes[i].name,
		"--kubeconfig", l.kubeconfig, "--daemonset", liqoNamespace + "/culvert-links"}, l.services[i]...)...)
}

// status returns the output of culvert status on a node.
func (l *kubeLinks) status(i int) (n control.NodeStatus) {
	l.k.t.Helper()
	eventually(l.k.t, "culvert status", func() error {
		out, err := l.k.nodes[i].try("", "env", "XDG_RUNTIME_DIR="+l.runtime[i], os.Getenv(binaryEnv), "status",
			"-o", "json")
		if err != nil {
			return fmt.Errorf("%v: %s", err, l.said())
		}
		return json.Unmarshal([]byte(out), &n)
	})
	return n
}

// end stops the process of a node and waits for it.
func (l *kubeLinks) end(i int, signal syscall.Signal) {
	l.k.t.Helper()
	need.NoError(l.k.t, l.processes[i].cmd.Process.Signal(signal))
	<-l.processes[i].ended
}

func (k *kubeLab) linkName() string { return "liqo." + k.remote().name }

// has waits until a node has a link that is up, or until it has none if want is false.
func (k *kubeLab) has(node *peerHost, link string, want bool) {
	k.t.Helper()
	eventually(k.t, fmt.Sprintf("%s has link %s: %t", node.name, link, want), func() error {
		out, err := node.try("", "ip", "link", "show", link)
		if want && !strings.Contains(out, ",UP") || !want && err == nil {
			return fmt.Errorf("%s%v: %s", out, err, k.links.said())
		}
		return nil
	})
}

func (l *kubeLinks) said() (all string) {
	for _, p := range l.processes {
		all += p.output()
	}
	return all
}

// routeLinks does what Liqo's agent does on each node: it adds routes to the gateway and to the
// remote cluster through the link whose name Liqo has chosen.
func (k *kubeLab) routeLinks() {
	k.t.Helper()
	for _, node := range k.nodes {
		k.has(node, k.linkName(), true)
		node.ip("route add "+k.internal+"/32 dev "+k.linkName()+" scope link",
			"route add "+k.remote().seenPods+" via "+k.internal+" dev "+k.linkName()+" onlink",
			"route add "+k.remote().seenExt+" via "+k.internal+" dev "+k.linkName()+" onlink")
	}
}

// A linkStream is a connection between pods that sends one byte after the other. Each must come
// back before the next is sent.
type linkStream struct {
	conn    net.Conn
	longest atomic.Int64 // between two answers, in nanoseconds
	ended   chan error
}

// streamPace is the time between two bytes of all connections together, if there are many.
const streamPace = 500 * time.Microsecond

// linkStreams opens connections from a pod of one cluster to a pod of the other.
func linkStreams(t *testing.T, from, to *kubeLab, n int) []*linkStream {
	t.Helper()
	return streamsFrom(t, from.pods[:1], to, "5300", 0, n)
}

// echoBytes answers each byte of each connection with the same byte, until the listener is closed.
func echoBytes(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for b := make([]byte, 1); ; {
				if _, err := conn.Read(b); err != nil {
					return
				}
				if _, err := conn.Write(b); err != nil {
					return
				}
			}
		}()
	}
}

// streamsFrom opens n connections from each of some hosts to a port of a pod of the other cluster,
// with source ports from first on; 0 = any. first must be below 32768: the kernel may have given a
// higher port to another socket.
func streamsFrom(t *testing.T, from []*peerHost, to *kubeLab, port string, first, n int) []*linkStream {
	t.Helper()
	to.pods[0].accept(t, "tcp4", net.JoinHostPort(to.pod(&kubeNodes[0], 5), port), echo)
	var all []*linkStream
	for _, host := range from {
		for i := range n {
			d := net.Dialer{Timeout: startTimeout, LocalAddr: &net.TCPAddr{Port: min(first, 1) * (first + i)}}
			var conn net.Conn
			need.NoError(t, host.do(func() (err error) {
				conn, err = d.Dial("tcp4", net.JoinHostPort(to.seen(to.pod(&kubeNodes[0], 5)), port))
				return err
			}))
			all = append(all, startStream(conn, max(50*time.Millisecond, time.Duration(n)*streamPace)))
		}
	}
	return all
}

// startStream sends a byte through conn every pace, and waits until it comes back.
func startStream(conn net.Conn, pace time.Duration) *linkStream {
	s := &linkStream{conn: conn, ended: make(chan error, 1)}
	go func() {
		defer conn.Close()
		tick := time.NewTicker(pace)
		defer tick.Stop()
		last := time.Now()
		for b := make([]byte, 1); ; {
			if _, err := conn.Write(b); err != nil {
				s.ended <- err
				return
			}
			if _, err := conn.Read(b); err != nil {
				s.ended <- err
				return
			}
			now := time.Now()
			s.longest.Store(max(s.longest.Load(), int64(now.Sub(last))))
			last = now
			<-tick.C
		}
	}()
	return s
}

// requireAlive waits until each stream gets an answer, and returns the longest pause since the last
// call. It fails if a stream has ended.
func requireAlive(t *testing.T, when string, all []*linkStream) (longest time.Duration) {
	t.Helper()
	for _, s := range all {
		longest = max(longest, time.Duration(s.longest.Swap(0)))
	}
	eventually(t, when+": every connection goes on", func() error {
		for _, s := range all {
			select {
			case err := <-s.ended:
				t.Fatalf("%s: the connection from %v has ended: %v", when, s.conn.LocalAddr(), err)
			default:
			}
			if s.longest.Load() == 0 {
				return fmt.Errorf("the connection from %v gets no answer", s.conn.LocalAddr())
			}
		}
		return nil
	})
	for _, s := range all {
		longest = max(longest, time.Duration(s.longest.Load()))
	}
	t.Logf("%s: longest pause %v", when, longest.Round(time.Millisecond))
	return longest
}

// TestKubeLinks: nodes whose kernel has no Geneve get the links that Liqo's resources describe,
// under a real API server and with the rights of the manifest. A stand-in for Liqo's agent adds
// routes through them.
func TestKubeLinks(t *testing.T) {
	isolated(t, func(t *testing.T) {
		rome, milan := newKubeLabs(t)
		labs := []*kubeLab{rome, milan}
		for _, k := range labs {
			k.ready(k.startLiqoGateway(unprivilegedUID, unprivilegedUID))
			if k == milan {
				k.startLinks("--services=all")
			} else {
				k.startLinks()
			}
			k.liqoSteps()
			k.startNodes()
		}
		milan.liqo.keysExchanged(rome.key.PublicKey().Bytes())
		rome.liqo.keysExchanged(milan.key.PublicKey().Bytes())
		for _, k := range labs {
			k.connected()
		}
		for _, way := range [][2]*kubeLab{{rome, milan}, {milan, rome}} {
			testKubePods(t, way[0], way[1])
			testKubeHosts(t, way[0], way[1])
			testKubeNodePort(t, way[0], way[1])
		}
		for i, node := range rome.nodes {
			eventually(t, node.name+" says that its gateway answers", func() error {
				if n := rome.links.status(i); len(n.Links) != 1 || n.Links[0].Interface != rome.linkName() ||
					!n.Links[0].Answers || n.Links[0].RTTSeconds == nil || n.Waiting != nil || n.LeftOut != nil {
					return fmt.Errorf("it says %+v", n)
				}
				return nil
			})
		}
		connections := 20
		if os.Getenv("CULVERT_LONG") != "" {
			connections = 500
		}
		streams := linkStreams(t, rome, milan, connections)

		// A second peering on the same nodes comes and goes.
		again, turin := rome.peerWithTurin()
		testKubePods(t, again, turin)
		requireAlive(t, "a second peering", streams)

		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			for i := range rome.nodes {
				rome.links.end(i, signal)
				rome.links.start(i)
			}
			requireAlive(t, signal.String()+" and start", streams)
		}
		testKubePods(t, again, turin)

		testKubeGatewayMoves(t, rome, milan)
		requireAlive(t, "the gateway has moved", streams)

		// Without the API server a node keeps what it had, also if its process restarts.
		rome.api.relay.hold(true)
		rome.links.end(0, syscall.SIGKILL)
		rome.links.start(0)
		requireAlive(t, "a start without the API server", streams)
		rome.api.relay.hold(false)

		for _, o := range []object{resource("InternalFabric", again.liqo.tenant(), kubeTurin.name, nil),
			again.liqo.tunnel(&kubeNodes[0]), again.liqo.tunnel(&kubeNodes[1])} {
			need.NoError(t, rome.api.admin.delete(o))
		}
		for _, node := range rome.nodes {
			rome.has(node, again.linkName(), false)
		}
		requireAlive(t, "the second peering gone", streams)

		t.Run("services", func(t *testing.T) { testKubeLinksServe(t, milan) })
		requireAlive(t, "services", streams)
		t.Run("bad resources", func(t *testing.T) { testKubeBadLinks(t, rome) })
		requireAlive(t, "bad resources", streams)
		t.Run("uninstall", func(t *testing.T) { testKubeLinksGone(t, rome) })
		requireWithinLinksRole(t, rome)
	}, kubernetes, liqoMode)
}

// maxMovePause limits for how long no packet passes when a gateway gets another address and its
// InternalFabric says so.
const maxMovePause = time.Second

// testKubeGatewayMoves: the gateway's pod gets another address.
func testKubeGatewayMoves(t *testing.T, k, to *kubeLab) {
	own := to.pod(&kubeNodes[0], 5)
	datagrams := watchPath(t, to.pods[0], own+":5301", k.pods[0], to.seen(own)+":5301")
	datagrams.pause(t, "before the gateway moves")
	moved := *k.kubeEnd
	moved.gatewayN = 19
	link := k.network.name
	k.gatewayHost.ip(fmt.Sprintf("address del %s/24 dev %s", k.gateway(), link), fmt.Sprintf("address add %s/24 dev %s",
		moved.gateway(), link))
	k.kubeEnd, k.liqo.here = &moved, &moved
	k.liqo.gatewayRuns()
	if pause := datagrams.pause(t, "the gateway has moved"); pause > maxMovePause {
		t.Errorf("no packet passes for %v when the gateway moves, want at most %v: %s", pause, maxMovePause,
			k.links.said())
	} else {
		t.Logf("no packet passes for %v when the gateway moves", pause.Round(time.Millisecond))
	}
}

// testKubeBadLinks: each bad resource gets an Event that names its field.
func testKubeBadLinks(t *testing.T, k *kubeLab) {
	k.nodes[0].ip("link add liqo.taken type veth peer name liqo.takenpeer")
	fabric := func(name, link, gatewayIP, mtu string) object {
		return resource("InternalFabric", k.liqo.tenant(), name, object{"mtu": number(mtu), "remoteCIDRs": []string{},
			"gatewayIP": gatewayIP,
			"interface": object{"gateway": object{"ip": "10.80.0.77"}, "node": object{"name": link}}})
	}
	tunnel := func(name string, id int) object {
		return resource("GeneveTunnel", k.liqo.tenant(), name, object{"id": id,
			"internalFabricRef": object{"name": name, "namespace": k.liqo.tenant()},
			"internalNodeRef":   object{"name": kubeNodes[0].name}})
	}
	_, own := k.outer(&kubeNodes[0])
	for _, bad := range []struct {
		name, field string
		all         []object
	}{
		{"bad-taken", "interface: liqo.taken exists and is a veth link",
			[]object{fabric("bad-taken", "liqo.taken", "192.0.2.50", "1340"), tunnel("bad-taken", 1000)}},
		{"bad-twice", "spec.interface.node.name: " + k.linkName(),
			[]object{fabric("bad-twice", k.linkName(), "192.0.2.51", "1340"), tunnel("bad-twice", 1001)}},
		{"bad-own", own + " is an address of this node", []object{fabric("bad-own", "liqo.own", own, "1340"),
			tunnel("bad-own", 1002)}},
		{"bad-mtu", "MTU 9000 needs 9050 bytes", []object{fabric("bad-mtu", "liqo.mtu", k.gateway(), "9000"),
			tunnel("bad-mtu", 1003)}},
		{"bad-alone", "spec.internalFabricRef: there is no InternalFabric", []object{tunnel("bad-alone", 1004)}},
		{"bad-fabric", "there is no GeneveTunnel from node " + kubeNodes[0].name,
			[]object{fabric("bad-fabric", "liqo.fabric", "192.0.2.52", "1340")}},
	} {
		for _, o := range bad.all {
			k.liqo.apply(o)
		}
		k.api.awaitEvent(t, startTimeout, k.liqo.tenant(), bad.name+" has "+bad.field,
			func(e object, message string) bool {
				return field(e, "involvedObject", "name") == bad.name && strings.Contains(message, bad.field)
			})
		eventually(t, "culvert status names "+bad.name, func() error {
			if n := k.links.status(0); !slices.ContainsFunc(n.LeftOut, func(l control.LeftOut) bool {
				return strings.HasSuffix(l.Resource, "/"+k.liqo.tenant()+"/"+bad.name) &&
					strings.Contains(l.Reason, bad.field)
			}) {
				return fmt.Errorf("it says %+v", n.LeftOut)
			}
			return nil
		})
		for _, o := range bad.all {
			need.NoError(t, k.api.admin.delete(o))
		}
	}
	k.nodes[0].ip("link del liqo.taken")
}

func number(s string) (n int) {
	fmt.Sscan(s, &n)
	return n
}

// testKubeLinksGone: links stay as long as their DaemonSet exists. They are removed with it, or by
// the command.
func testKubeLinksGone(t *testing.T, k *kubeLab) {
	for i := range k.nodes {
		k.links.end(i, syscall.SIGTERM)
		k.has(k.nodes[i], k.linkName(), true)
	}
	k.links.start(0)
	await(t, "the first node's link is up", func() bool {
		return strings.Contains(k.links.processes[0].output(), "link is up")
	})
	k.links.uninstalled(0)
	if out := k.nodes[1].run(os.Getenv(binaryEnv), "node", "--liqo", "--remove"); !strings.Contains(out,
		"removed link "+k.linkName()+"\n") || !strings.Contains(out, "removed nftables table ip culvert\n") {
		t.Error(out)
	}
	k.has(k.nodes[1], k.linkName(), false)
}

// uninstalled deletes the DaemonSet and stops the process of a node, which removes its link.
func (l *kubeLinks) uninstalled(i int) {
	l.k.t.Helper()
	need.NoError(l.k.t, l.k.api.admin.delete(object{"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": object{"namespace": liqoNamespace, "name": "culvert-links"}}))
	l.end(i, syscall.SIGTERM)
	l.k.has(l.k.nodes[i], l.k.linkName(), false)
}

// testKubeLinksServe: if the process that makes the links also serves Services, both survive its
// restart and its kill, and are removed with the DaemonSet. A second process for the links of the
// node refuses to run.
func testKubeLinksServe(t *testing.T, k *kubeLab) {
	for i := range kubeNodes {
		k.liqo.apply(object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": kubeNodes[i].name},
			"status": object{"addresses": []object{{"type": "InternalIP", "address": k.address(kubeNodes[i].number)}}}})
	}
	k.liqo.apply(object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "echo",
		"namespace": "default"},
		"spec": object{"clusterIP": "10.96.0.50", "ports": []object{{"port": 80, "protocol": "TCP"}}}})
	k.liqo.apply(object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": object{"name": "echo-1", "namespace": "default",
			"labels": object{"kubernetes.io/service-name": "echo"}},
		"ports":     []object{{"port": 5300, "protocol": "TCP"}},
		"endpoints": []object{{"addresses": []string{k.pod(&kubeNodes[0], 5)}, "nodeName": kubeNodes[0].name}}})
	var streams []*linkStream
	eventually(t, "a connection to the Service", func() error {
		conn, err := k.pods[1].dial("tcp4", "10.96.0.50:80")
		if err != nil {
			return fmt.Errorf("%w: %s", err, k.links.said())
		}
		streams = append(streams, startStream(conn, 50*time.Millisecond))
		return nil
	})
	requireAlive(t, "through a Service", streams)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		k.links.end(1, signal)
		k.has(k.nodes[1], k.linkName(), true)
		k.links.start(1)
		requireAlive(t, "through a Service, "+signal.String()+" and start", streams)
	}
	n := k.links.status(1)
	if len(n.Links) != 1 || !slices.ContainsFunc(n.Services,
		func(s control.NodeService) bool { return s.Name == "default/echo" }) {
		t.Errorf("culvert status says %+v", n)
	}

	other := k.nodes[1].start(nil, os.Getenv(binaryEnv), "node", "--kube", "--node-name", kubeNodes[1].name,
		"--kubeconfig", k.api.kubeconfig("nobody"))
	<-other.ended
	if said := other.output(); !strings.Contains(said,
		"another culvert node with --liqo or --kube keeps the links of this node") {
		t.Errorf("a second process does not say that another one keeps the links: %s", said)
	}
	k.has(k.nodes[1], k.linkName(), true)
	requireAlive(t, "through a Service, a second process", streams)

	k.links.uninstalled(1)
	if rules := k.nodes[1].run("ip", "rule"); strings.Contains(rules, "7091") {
		t.Errorf("routing rules are left: %s", rules)
	}
	requireWithinLinksRole(t, k, "list services", "watch services", "list nodes", "watch nodes", "list endpointslices",
		"watch endpointslices")
}

// requireWithinLinksRole fails if something was forbidden, or if a right was not used.
func requireWithinLinksRole(t *testing.T, k *kubeLab, more ...string) {
	t.Helper()
	if more == nil {
		more = []string{"create events"}
	}
	requireUsed(t, linksUser, k.api.requested(t, linksUser), append(more, "list genevetunnels", "watch genevetunnels",
		"list internalfabrics",
		"watch internalfabrics", "list internalnodes", "watch internalnodes", "get daemonsets")...)
}
