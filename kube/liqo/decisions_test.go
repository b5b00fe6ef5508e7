package liqo

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

const start = nat.Time(time.Hour)

// The nodes of every capture.
const linkN1, linkN2 = nat.Link(1), nat.Link(2)

// engine returns an engine with the configuration of g, and with its rules, which it gets piece by
// piece.
func (g *fakeGateway) engine(t testing.TB, self Self) *nat.Engine {
	t.Helper()
	base := baseOf(self.Remote)
	if !self.Server {
		base.WireGuard.Role = config.Client
	}
	c := g.site.Config(base)
	e, err := nat.New([16]byte{1}, c.NAT(config.Links{}.Assign(c.Geneve.Nodes), 0))
	need.NoError(t, err)
	for key, r := range g.pieces {
		need.NoError(t, e.Put(key, r))
	}
	e.CommitRules()
	return e
}

func capturedEngine(t testing.TB, self Self, more ...*Object) *nat.Engine {
	t.Helper()
	s, g := NewState(self), newFakeGateway()
	for _, o := range append(loadCapture(t, captures[0]), more...) {
		s.Put(o)
	}
	g.take(s)
	return g.engine(t, self)
}

func udp(source, destination string, from, to uint16) nattest.IP {
	return nattest.IP{Source: source, Destination: destination, Body: nattest.UDP{SourcePort: from, DestinationPort: to,
		Payload: []byte("x")}}
}

// send returns the verdict and what goes on, as "source > destination".
func send(t *testing.T, e *nat.Engine, in nat.Link, p nattest.IP) (nat.Verdict, nattest.View) {
	t.Helper()
	work := bytes.Clone(p.Bytes())
	var parsed packet.Packet
	parsed.Parse(work)
	v := e.Process(&parsed, in, start)
	if v.Action != nat.Forward {
		return v, nattest.View{}
	}
	var c packet.Cutter
	c.Start(&parsed, v.SegmentSize, v.MTU)
	out := make([]byte, 65536)
	view, err := nattest.Check(out[:c.Next(out)])
	need.NoError(t, err)
	return v, view
}

func expectSent(t *testing.T, e *nat.Engine, in nat.Link, p nattest.IP, source, destination string, out nat.Link) {
	t.Helper()
	v, view := send(t, e, in, p)
	if v.Action != nat.Forward || v.Out != out || view.Source.String() != source ||
		view.Destination.String() != destination {
		t.Errorf("%s > %s from %d: %v %v, %s > %s to %d; want %s > %s to %d",
			p.Source, p.Destination, in, v.Action, v.Reason, view.Source, view.Destination, v.Out, source,
			destination, out)
	}
}

func expectDropped(t *testing.T, e *nat.Engine, in nat.Link, p nattest.IP, want nat.Reason) {
	t.Helper()
	if v, _ := send(t, e, in, p); v.Action != nat.Drop || v.Reason != want {
		t.Errorf("%s > %s from %d: %v %v, want drop %v", p.Source, p.Destination, in, v.Action, v.Reason, want)
	}
}

const (
	podN1, podN2   = "10.244.0.8", "10.244.1.2"
	remotePod      = "10.244.3.4" // by its own address
	remotePodHere  = "10.71.3.4"  // as the local cluster sees it
	nodeOfItsOwn   = "192.0.2.12" // no route leads to it
	unknownAddress = "10.70.0.0"
)

func TestSourceWithoutRouteBackGetsUAndIsPinned(t *testing.T) {
	e := capturedEngine(t, gatewayOf("cluster-b"))
	expectSent(t, e, linkN2, udp(nodeOfItsOwn, remotePodHere, 4000, 80), unknownAddress, remotePod, nat.Tunnel)
	expectSent(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, 4000), remotePodHere, nodeOfItsOwn, linkN2)
	// A client behind another node has the same address there: its answers go to that node.
	expectSent(t, e, linkN1, udp(nodeOfItsOwn, remotePodHere, 4001, 80), unknownAddress, remotePod, nat.Tunnel)
	expectSent(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, 4001), remotePodHere, nodeOfItsOwn, linkN1)
}

func TestSourceWithRouteBackIsLeftAlone(t *testing.T) {
	e := capturedEngine(t, gatewayOf("cluster-b"))
	expectSent(t, e, linkN2, udp(podN2, remotePodHere, 4000, 80), podN2, remotePod, nat.Tunnel)
	// Its answers follow the route, not the node that it came from.
	expectSent(t, e, linkN1, udp(podN2, remotePodHere, 4001, 80), podN2, remotePod, nat.Tunnel)
	expectSent(t, e, nat.Tunnel, udp(remotePod, podN2, 80, 4001), remotePodHere, podN2, linkN2)
}

func TestLiqosOwnMarksWin(t *testing.T) {
	e := capturedEngine(t, gatewayOf("cluster-b"))
	for port, node := range []nat.Link{linkN1, linkN2} {
		from := uint16(5000 + port)
		expectSent(t, e, node, udp(unknownAddress, remotePodHere, from, 80), unknownAddress, remotePod, nat.Tunnel)
		expectSent(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, from), remotePodHere, unknownAddress, node)
	}
	expectDropped(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, 6000), nat.ReasonNoMapping)
}

func TestUnknownSourceIsKeptAsTheKernelDoes(t *testing.T) {
	self := gatewayOf("cluster-b")
	self.KeepUnknown = true
	expectSent(t, capturedEngine(t, self), linkN2, udp(nodeOfItsOwn, remotePodHere, 4000, 80), nodeOfItsOwn,
		remotePod, nat.Tunnel)
}

func TestSourcesAreAdmittedByRoutes(t *testing.T) {
	for _, remote := range []string{"cluster-b", "cluster-c"} {
		e := capturedEngine(t, gatewayOf(remote))
		good, seen := remotePod, remotePodHere
		if remote == "cluster-c" {
			good, seen = "10.245.3.4", "10.245.3.4"
		}
		expectSent(t, e, nat.Tunnel, udp(good, podN1, 7, 80), seen, podN1, linkN1)
		expectDropped(t, e, nat.Tunnel, udp("10.99.0.1", podN1, 7, 80), nat.ReasonBadSource)
		expectDropped(t, e, linkN1, udp(seen, podN2, 7, 80), nat.ReasonBadSource)
	}
}

// The remote cluster knows a pod that reports an error, but not a node.
func TestErrorsOfPodsKeepTheirSource(t *testing.T) {
	e := capturedEngine(t, gatewayOf("cluster-b"))
	expectSent(t, e, nat.Tunnel, udp(remotePod, podN1, 7, 80), remotePodHere, podN1, linkN1)
	arrived := udp(remotePodHere, podN1, 7, 80)
	for source, want := range map[string]string{podN1: podN1, "192.0.2.11": unknownAddress} {
		unreachable := nattest.IP{Source: source, Destination: remotePodHere, Body: nattest.ICMP{Type: 3, Code: 3,
			Payload: arrived.Bytes()}}
		expectSent(t, e, linkN1, unreachable, want, remotePod, nat.Tunnel)
	}
}

const dropText = `{kind: FirewallConfiguration, metadata: {name: no-PORT, namespace: default, uid: PORT, creationTimestamp: "2026-11-21T00:00:00Z",
	labels: {networking.liqo.io/firewall-category: gateway, networking.liqo.io/firewall-subcategory: all-gateways}},
	spec: {table: {name: user, family: IPV4, chains: [{name: c, type: filter, hook: forward, policy: accept, priority: 0, rules: {filterRules: [
	{name: r, action: drop, counter: true, match: [{op: eq, proto: {value: udp}, dev: {value: "liqo-tunnel*", position: in}}, {op: eq, port: {value: "PORT", position: dst}}]}]}}]}}}`

// Two resources whose tables have the same name are two tables, and every tunnel that rules name is
// the gateway's only one.
func TestTablesOfOneName(t *testing.T) {
	var drops []*Object
	for _, port := range []string{"80", "81"} {
		drops = append(drops, object(t, strings.ReplaceAll(dropText, "PORT", port)))
	}
	e := capturedEngine(t, gatewayOf("cluster-b"), drops...)
	expectDropped(t, e, nat.Tunnel, udp(remotePod, podN1, 7, 80), nat.ReasonFiltered)
	expectDropped(t, e, nat.Tunnel, udp(remotePod, podN1, 7, 81), nat.ReasonFiltered)
	expectSent(t, e, nat.Tunnel, udp(remotePod, podN1, 7, 82), remotePodHere, podN1, linkN1)
	expectSent(t, e, linkN1, udp(podN1, remotePodHere, 7, 80), podN1, remotePod, nat.Tunnel)
}

const routeText = `{kind: RouteConfiguration, metadata: {name: user, namespace: default, uid: r, creationTimestamp: "2026-11-21T00:00:00Z",
	labels: {networking.liqo.io/route-category: gateway, networking.liqo.io/route-unique: cluster-b}},
	spec: {table: {name: user, rules: [{iif: liqo.klqsmd2krc, routes: [{dst: 172.16.0.0/12, nextHops: [
	{gw: 169.254.18.6, dev: liqo-tunnel1, weight: 1}, {gw: 169.254.18.2, dev: liqo-tunnel, weight: 1}]}]}]}}}`

// Of several next hops, the one through the tunnel is used, and its destinations are accepted as
// sources.
func TestNextHops(t *testing.T) {
	e := capturedEngine(t, gatewayOf("cluster-b"), object(t, routeText))
	expectSent(t, e, linkN1, udp(podN1, "172.16.0.9", 7, 80), podN1, "172.16.0.9", nat.Tunnel)
	expectSent(t, e, nat.Tunnel, udp("172.16.0.9", podN1, 80, 7), "172.16.0.9", podN1, linkN1)
	expectSent(t, e, nat.Tunnel, udp("172.16.0.10", podN1, 80, 7), "172.16.0.10", podN1, linkN1)
}
