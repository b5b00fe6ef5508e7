package integration

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

// The times of the election in these tests: Liqo's 15, 10 and 2 s, divided by five.
const (
	standbyLease = 3 * time.Second
	standbyRetry = 400 * time.Millisecond
	// The Lease expires, a standby attempts twice, and nodes follow.
	standbyKilled = standbyLease + 2*22*standbyRetry/10 + 2*time.Second
)

// A kubeReplica is a pod of a gateway that has several.
type kubeReplica struct {
	*kubeLab
	flags []string
}

// kubeReplicas returns two pods of rome's gateway on different nodes, each with a link of its own
// to milan's gateway. Each node sends to the pod on itself from another address than to the other
// pod.
func kubeReplicas(t *testing.T, rome, milan *kubeLab) []*kubeReplica {
	t.Helper()
	second := *rome
	here, own := *rome.kubeEnd, *rome.liqo
	here.gatewayN, here.on = 19, 1
	own.here, own.pod = &here, 1
	second.kubeEnd, second.liqo = &here, &own
	second.gatewayHost = rome.join("gw2", here.gateway())
	second.gatewayHost.confined = true
	join(second.gatewayHost, milan.gatewayHost, "192.0.4.1/24", "192.0.4.7/24", 1500)
	for _, at := range []*kubeEnd{rome.kubeEnd, &here} {
		local, _ := at.outer(&kubeNodes[at.on])
		rome.nodes[at.on].ip("route add " + at.gateway() + "/32 dev " + rome.network.name + " src " + local)
	}
	flags := []string{"--leader-election", "--leader-election-lease-duration=" + standbyLease.String(),
		"--leader-election-renew-deadline=2s",
		"--leader-election-retry-period=" + standbyRetry.String(), "--ping-interval=400ms"}
	return []*kubeReplica{{rome, flags}, {&second, append(flags, "--endpoint-address=192.0.4.7")}}
}

func (r *kubeReplica) start() {
	r.t.Helper()
	r.ready(r.startLiqoGateway(unprivilegedUID, unprivilegedUID, r.flags...))
}

// newStandbyLab builds rome and milan and connects them. The first pod of rome's gateway is active.
func newStandbyLab(t *testing.T) (rome, milan *kubeLab, all []*kubeReplica) {
	t.Helper()
	rome, milan = newKubeLabs(t)
	all = kubeReplicas(t, rome, milan)
	milan.ready(milan.startLiqoGateway(unprivilegedUID, unprivilegedUID))
	rome.startLinks()
	rome.liqoSteps()
	rome.liqo.apply(all[1].liqo.gatewayPod())
	milan.liqoSteps()
	// Count what the gateways send: a standby sends no handshake, no ARP in a tunnel, and no probe.
	for _, r := range all {
		r.gatewayHost.feed(
			"table inet said { chain output { type filter hook output priority 0; meta l4proto udp counter; }; }\n",
			"nft", "-f", "-")
	}
	all[0].start()
	all[0].await(t, "active", startTimeout)
	all[1].start()
	all[1].await(t, "standby", startTimeout)
	rome.startNodes()
	milan.startNodes()
	milan.liqo.keysExchanged(rome.key.PublicKey().Bytes())
	rome.liqo.keysExchanged(milan.key.PublicKey().Bytes())
	rome.connected()
	milan.connected()
	return rome, milan, all
}

// kill ends the gateway's process by SIGKILL, and waits until it has ended.
func (r *kubeReplica) kill() {
	r.culvert.cmd.Process.Kill()
	<-r.culvert.ended
}

// role returns the gateway's role according to its metrics.
func (r *kubeReplica) role() string {
	page, err := r.gatewayHost.getFrom(metricsAddress, "/metrics")
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, `culvert_role{role="`); ok && strings.HasSuffix(line, " 1\n") {
			role, _, _ := strings.Cut(rest, `"`)
			return role
		}
	}
	return "none"
}

func (r *kubeReplica) await(t *testing.T, role string, limit time.Duration) {
	t.Helper()
	eventuallyWithin(t, limit, r.liqo.podName()+" is "+role, func() error {
		if is := r.role(); is != role {
			return fmt.Errorf("it is %s", is)
		}
		return nil
	})
}

// A labelWatch does what Liqo does about the pod that is labelled as active: its agents write from
// which address each node sends to that pod, and its controller, unless it is away, points nodes to
// it. Both change nothing while two pods are labelled.
type labelWatch struct {
	switches, none, many atomic.Int32
	away                 atomic.Bool
	stop                 func()
}

func watchLabel(t *testing.T, all []*kubeReplica) *labelWatch {
	ctx, cancel := context.WithCancel(t.Context())
	w := &labelWatch{}
	done := make(chan struct{})
	w.stop = func() { cancel(); <-done }
	admin, l := all[0].api.admin, all[0].liqo
	pods := map[string]*liqo{}
	for _, r := range all {
		pods[r.gateway()] = r.liqo
	}
	go func() {
		defer close(done)
		led := all[0].gateway()
		measured := led
		for ctx.Err() == nil {
			list, err := admin.list("v1", "Pod", l.tenant())
			if err != nil {
				continue // the API server is away
			}
			var labelled []string
			for _, p := range list {
				if at, there := field(p, "status", "podIP").(string); there && field(p, "metadata", "labels",
					liqoLabel+"active") == "true" {
					labelled = append(labelled, at)
				}
			}
			switch {
			case len(labelled) == 0:
				w.none.Add(1)
			case len(labelled) > 1:
				w.many.Add(1)
			default:
				if labelled[0] != measured && pods[labelled[0]].measure() == nil {
					measured = labelled[0]
				}
				if labelled[0] != led && !w.away.Load() && admin.apply(l.fabric(labelled[0])) == nil {
					led = labelled[0]
					w.switches.Add(1)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(w.stop)
	return w
}

// TestKubeStandby: a gateway has two pods with the rights of Liqo's role. One of them forwards,
// whichever process ends and whichever pod is cut off.
func TestKubeStandby(t *testing.T) {
	isolated(t, func(t *testing.T) {
		s := newStandbyTest(t)
		s.pause("before", time.Second)
		s.handsOver()
		s.killed()
		s.killedInItsPod()
		s.apiServerAway()
		s.cutOffFromAPIServer()
		s.cutOffFromBoth()
		s.withoutCopy()
		if n := s.labels.many.Load(); n != 0 {
			t.Errorf("two pods were labelled as active %d times, want never", n)
		}
		s.rome.requireWithinRole(t)
		s.requireEvents(5)
	}, kubernetes, liqoMode)
}

// A standbyTest does to one of two pods what may happen to it, while connections go through both.
type standbyTest struct {
	*testing.T
	rome, milan     *kubeLab
	active, standby *kubeReplica
	labels          *labelWatch
	streams         []*linkStream // which must not end
	datagrams       *pathWatch
}

// newStandbyTest opens connections through the gateway, and requires that the standby sent nothing
// until then.
func newStandbyTest(t *testing.T) *standbyTest {
	t.Helper()
	rome, milan, all := newStandbyLab(t)
	s := &standbyTest{T: t, rome: rome, milan: milan, active: all[0], standby: all[1], labels: watchLabel(t, all)}
	testKubePods(t, rome, milan)
	testKubeHosts(t, milan, rome)
	if said := s.standby.gatewayHost.run("nft", "list", "table", "inet", "said"); !strings.Contains(said,
		"packets 0 ") {
		t.Errorf("the standby has sent packets, want none: %s", said)
	}
	// All connections of nodes get U as their source. Both nodes use the same source ports, so the
	// gateway has to change the port of one of them. Only a standby with a copy knows that port.
	s.streams = slices.Concat(linkStreams(t, rome, milan, 20), streamsFrom(t, rome.nodes, milan, "5302", pairPort, 20))
	// A node's kernel masquerades connections to the mapped host, so they end if they leave by
	// another node.
	rome.client.accept(t, "tcp4", net.JoinHostPort(rome.kubeEnd.client(), "5304"), echo)
	for range 20 {
		conn, err := milan.pods[1].dial("tcp4", net.JoinHostPort(rome.seen(kubeMapped), "5304"))
		need.NoError(t, err)
		s.streams = append(s.streams, startStream(conn, 50*time.Millisecond))
	}
	pod := milan.pod(&kubeNodes[0], 5)
	s.datagrams = watchPath(t, milan.pods[0], pod+":5301", rome.pods[0], milan.seen(pod)+":5301")
	return s
}

// pause requires that all connections go on, and limits the longest pause of the path since it was
// called last.
func (s *standbyTest) pause(what string, bound time.Duration) {
	s.Helper()
	requireAlive(s.T, what, s.streams)
	longest := s.datagrams.pause(s.T, what)
	s.Logf("%-45s longest pause %8v, bound %v; %d switches, label nowhere %d times, twice %d times", what,
		longest.Round(time.Millisecond), bound,
		s.labels.switches.Load(), s.labels.none.Load(), s.labels.many.Load())
	if longest > bound {
		s.Errorf("%s: the path pauses for %v, want at most %v", what, longest, bound)
	}
}

// turn makes the standby the active pod, which it has become.
func (s *standbyTest) turn() { s.active, s.standby = s.standby, s.active }

// startFormer starts the pod whose process has ended, which becomes the standby.
func (s *standbyTest) startFormer() {
	s.Helper()
	s.active.start()
	s.active.await(s.T, "standby", startTimeout)
	s.turn()
}

// handsOver: at SIGTERM the active pod hands over to the standby. Connections that begin until
// then go on, and no node drops a packet.
func (s *standbyTest) handsOver() {
	s.Helper()
	s.standby.awaitCopy(s.T)
	begun := beginPairs(s.T, s.rome, s.milan, "5303")
	s.active.culvert.cmd.Process.Signal(syscall.SIGTERM)
	late := begun()
	s.active.culvert.stop()
	s.standby.await(s.T, "active", startTimeout)
	s.Logf("%d connections of nodes were begun until SIGTERM", len(late))
	s.streams = append(s.streams, late...)
	s.pause("SIGTERM", standbyHandover)
	for i := range s.rome.nodes {
		for _, d := range s.rome.links.status(i).LinkDrops {
			if d.Reason == "hold-full" {
				s.Errorf("node %d dropped %d packets while it looked for the gateway that took over", i+1, d.Packets)
			}
		}
	}
	s.startFormer()
}

// killed: the active pod is killed. Liqo's controller, which has one replica, ends with it. Nodes
// follow the pod's label.
func (s *standbyTest) killed() {
	s.Helper()
	s.standby.awaitCopy(s.T)
	s.labels.away.Store(true)
	s.active.kill()
	s.standby.await(s.T, "active", standbyKilled)
	s.pause("SIGKILL, Liqo's controller too", standbyKilled)
	s.labels.away.Store(false)
	s.startFormer()
}

// killedInItsPod: a container that is killed and restarted in its pod gets its Lease back.
func (s *standbyTest) killedInItsPod() {
	s.Helper()
	s.standby.awaitCopy(s.T)
	s.active.kill()
	s.active.start()
	s.active.await(s.T, "active", startTimeout)
	s.pause("container killed", standbyKilled)
}

// apiServerAway: without the API server the active pod stays active, and no node is switched.
func (s *standbyTest) apiServerAway() {
	s.Helper()
	switches := s.labels.switches.Load()
	s.rome.api.relay.cut(true)
	s.active.await(s.T, "static", startTimeout)
	stays := time.NewTimer(3 * standbyLease)
	<-stays.C
	s.active.await(s.T, "static", 0)
	s.pause("API server away", time.Second)
	s.rome.api.relay.open()
	s.active.await(s.T, "active", startTimeout)
	s.pause("API server back", time.Second)
	if n := s.labels.switches.Load() - switches; n != 0 {
		s.Errorf("nodes were switched %d times while the API server was away, want never", n)
	}
}

// cut drops what the active pod exchanges with some addresses, until heal.
func (s *standbyTest) cut(from ...string) {
	s.active.gatewayHost.feed(
		fmt.Sprintf(
			"table inet cut { chain output { type filter hook output priority 0; ip daddr { %[1]s } drop; }; "+
				"chain input { type filter hook input priority 0; ip saddr { %[1]s } drop; }; }\n",
			strings.Join(from, ", ")), "nft", "-f", "-")
}

func (s *standbyTest) heal() { s.active.gatewayHost.run("nft", "delete", "table", "inet", "cut") }

// cutOffFromAPIServer: the active pod alone is cut off from the API server. The standby tells it
// who has the Lease.
func (s *standbyTest) cutOffFromAPIServer() {
	s.Helper()
	switches := s.labels.switches.Load()
	s.standby.awaitCopy(s.T)
	s.cut(s.rome.kubeEnd.api())
	s.standby.await(s.T, "active", standbyKilled)
	s.active.await(s.T, "standby", startTimeout)
	s.pause("active cut off from the API server", standbyHandover)
	if n := s.labels.switches.Load() - switches; n > 1 {
		s.Errorf("nodes were switched %d times, want at most once", n)
	}
	s.heal()
	s.turn()
	s.active.await(s.T, "active", 0)
}

// cutOffFromBoth: the active pod is cut off from the API server and from the standby. It
// becomes silent, because the peer has moved to the other pod.
func (s *standbyTest) cutOffFromBoth() {
	s.Helper()
	s.standby.awaitCopy(s.T)
	s.cut(s.rome.kubeEnd.api(), s.standby.gateway())
	s.standby.await(s.T, "active", standbyKilled)
	s.active.await(s.T, "silent", startTimeout)
	s.pause("cut off from the standby, too", standbyKilled)
	s.heal()
	s.active.await(s.T, "standby", startTimeout)
	s.pause("it is back", time.Second)
	s.turn()
}

// withoutCopy: the pods cannot reach each other, so nothing is copied, and connections are lost.
func (s *standbyTest) withoutCopy() {
	s.Helper()
	s.standby.awaitCopy(s.T)
	for _, r := range []*kubeReplica{s.active, s.standby} {
		r.gatewayHost.feed("table inet cut { chain output { type filter hook output priority 0; "+
			"tcp dport 51841 drop; tcp sport 51841 drop; }; }\n", "nft", "-f", "-")
	}
	s.standby.culvert.stop()
	s.standby.start() // without a copy
	s.standby.await(s.T, "standby", startTimeout)
	s.active.culvert.stop()
	s.standby.await(s.T, "active", startTimeout)
	s.datagrams.pause(s.T, "SIGTERM without a copy")
	for _, one := range s.streams {
		one.longest.Store(0)
	}
	tries := time.NewTimer(10 * time.Second) // until TCP has repeated what was lost
	<-tries.C
	lost := 0
	for _, one := range s.streams {
		if one.longest.Load() == 0 {
			lost++
		}
	}
	s.Logf("without a copy %d of %d connections are lost; the 20 between pods need no copy", lost, len(s.streams))
	if lost == 0 {
		s.Error("without a copy no connection is lost, so the test does not show that copies are needed")
	}
}

// requireEvents requires at least some Events about changes of a role.
func (s *standbyTest) requireEvents(least int) {
	s.Helper()
	events, err := s.rome.api.admin.list("v1", "Event", s.rome.liqo.tenant())
	need.NoError(s, err)
	changes := 0
	for _, e := range events {
		if e["reason"] == "RoleChanged" && e["type"] == "Normal" {
			changes++
		}
	}
	if changes < least {
		s.Errorf("%d Events about changes of a role, want at least %d", changes, least)
	}
}

// Source ports of the nodes' connections: those of streamsFrom begin at pairPort, those of
// beginPairs at latePort. The kernel assigns no ports below 32768, so they are free.
const pairPort, latePort = 20000, 21000

// standbyHandover limits the pause when the active pod hands over to the standby, including the
// time until nodes follow.
const standbyHandover = time.Second

// awaitCopy waits until a standby has a copy of the whole table.
func (r *kubeReplica) awaitCopy(t *testing.T) {
	t.Helper()
	eventually(t, r.liqo.podName()+" has a copy", func() error {
		page, err := r.gatewayHost.getFrom(metricsAddress, "/metrics")
		if err == nil && !strings.Contains(page, "culvert_replica_follows 1\n") {
			return errNotYet
		}
		return err
	})
}

// beginPairs opens connections of both nodes with the same source ports, pair after pair, until
// stop is called, which returns them. The gateway changes the port of one connection of each pair,
// which only a copy knows. When beginPairs returns, there are at least 40 connections.
func beginPairs(t *testing.T, from, to *kubeLab, port string) (stop func() []*linkStream) {
	t.Helper()
	streamsFrom(t, from.nodes[:1], to, port, 0, 1) // so that the pod listens
	ctx, cancel := context.WithCancel(t.Context())
	done, begun := make(chan []*linkStream, 1), make(chan struct{})
	go func() {
		some := begun
		var all []*linkStream
		for local := latePort; ctx.Err() == nil && local < 32768; local++ {
			for _, host := range from.nodes {
				d := net.Dialer{LocalAddr: &net.TCPAddr{Port: local}}
				var conn net.Conn
				if host.do(func() (err error) {
					conn, err = d.DialContext(ctx, "tcp4", net.JoinHostPort(to.seen(to.pod(&kubeNodes[0], 5)), port))
					return err
				}) == nil {
					all = append(all, startStream(conn, 200*time.Millisecond))
				}
			}
			if some != nil && len(all) >= 40 {
				close(some)
				some = nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
		done <- all
	}()
	select {
	case <-begun:
	case <-time.After(startTimeout):
		cancel()
		t.Fatalf("after %v there are %d connections, want at least 40", startTimeout, len(<-done))
	}
	return func() []*linkStream { cancel(); return <-done }
}
