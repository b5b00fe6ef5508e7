package kube

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

const start = nat.Time(time.Hour)

// The nodes of every capture.
const portN1, portN2 = nat.Port(1), nat.Port(2)

// config returns what nat is to do, all of it at once.
func (g *fakeGateway) config(self Self) *nat.Config {
	other := self
	other.Server = !self.Server
	s := &g.site
	c := &nat.Config{
		GatewayAddress: s.GatewayAddress, TunnelAddress: other.peer(), PeerTunnelAddress: self.peer(), MTU: self.MTU,
		UnknownSource: s.UnknownSource, Remote: s.Remote, FromTunnel: s.FromTunnel, NotFromNodes: s.NotFromNodes,
		SourceCheck: nat.SourceCheckCluster, Firewall: []nat.Table{}, Routing: []nat.PolicyTable{},
	}
	if u := s.UnknownSource; u.IsValid() {
		c.LocalExternalCIDRs = []netip.Prefix{netip.PrefixFrom(u, 32)}
	}
	for i, n := range s.Nodes {
		c.Nodes = append(c.Nodes, nat.Node{Port: nat.Port(i + 1), Name: n.Name, Device: n.Device, Address: n.Address})
	}
	keys := slices.SortedFunc(maps.Keys(g.pieces), func(a, b nat.Key) int {
		return cmp.Or(cmp.Compare(g.pieces[a].Order, g.pieces[b].Order), compareKeys(a, b))
	})
	for _, key := range keys {
		c.Firewall, c.Routing = append(c.Firewall, g.pieces[key].Tables...), append(c.Routing, g.pieces[key].Routing...)
	}
	return c
}

func capturedEngine(t *testing.T, self Self) *nat.Engine {
	t.Helper()
	s, g := NewState(self), newFakeGateway()
	for _, o := range loadCapture(t, captures[0]) {
		s.Put(o)
	}
	g.take(s)
	e, err := nat.New([16]byte{1}, g.config(self))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func udp(source, destination string, from, to uint16) nattest.IP {
	return nattest.IP{Source: source, Destination: destination, Body: nattest.UDP{SourcePort: from, DestinationPort: to, Payload: []byte("x")}}
}

// send returns the verdict and what goes on, as "source > destination".
func send(t *testing.T, e *nat.Engine, in nat.Port, p nattest.IP) (nat.Verdict, nattest.View) {
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
	if err != nil {
		t.Fatal(err)
	}
	return v, view
}

func expectSent(t *testing.T, e *nat.Engine, in nat.Port, p nattest.IP, source, destination string, out nat.Port) {
	t.Helper()
	v, view := send(t, e, in, p)
	if v.Action != nat.Forward || v.Out != out || view.Source.String() != source || view.Destination.String() != destination {
		t.Errorf("%s > %s from %d: %v %v, %s > %s to %d; want %s > %s to %d",
			p.Source, p.Destination, in, v.Action, v.Reason, view.Source, view.Destination, v.Out, source, destination, out)
	}
}

func expectDropped(t *testing.T, e *nat.Engine, in nat.Port, p nattest.IP, want nat.Reason) {
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
	expectSent(t, e, portN2, udp(nodeOfItsOwn, remotePodHere, 4000, 80), unknownAddress, remotePod, nat.Tunnel)
	expectSent(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, 4000), remotePodHere, nodeOfItsOwn, portN2)
	// A client of another node has the same address, as seen from there: its answers go there.
	expectSent(t, e, portN1, udp(nodeOfItsOwn, remotePodHere, 4001, 80), unknownAddress, remotePod, nat.Tunnel)
	expectSent(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, 4001), remotePodHere, nodeOfItsOwn, portN1)
}

func TestSourceWithRouteBackIsLeftAlone(t *testing.T) {
	e := capturedEngine(t, gatewayOf("cluster-b"))
	expectSent(t, e, portN2, udp(podN2, remotePodHere, 4000, 80), podN2, remotePod, nat.Tunnel)
	// Its answers follow the route, not the node that it came from.
	expectSent(t, e, portN1, udp(podN2, remotePodHere, 4001, 80), podN2, remotePod, nat.Tunnel)
	expectSent(t, e, nat.Tunnel, udp(remotePod, podN2, 80, 4001), remotePodHere, podN2, portN2)
}

func TestLiqosOwnMarksWin(t *testing.T) {
	e := capturedEngine(t, gatewayOf("cluster-b"))
	for port, node := range []nat.Port{portN1, portN2} {
		from := uint16(5000 + port)
		expectSent(t, e, node, udp(unknownAddress, remotePodHere, from, 80), unknownAddress, remotePod, nat.Tunnel)
		expectSent(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, from), remotePodHere, unknownAddress, node)
	}
	expectDropped(t, e, nat.Tunnel, udp(remotePod, unknownAddress, 80, 6000), nat.ReasonNoMapping)
}

func TestUnknownSourceIsKeptAsTheKernelDoes(t *testing.T) {
	self := gatewayOf("cluster-b")
	self.KeepUnknown = true
	expectSent(t, capturedEngine(t, self), portN2, udp(nodeOfItsOwn, remotePodHere, 4000, 80), nodeOfItsOwn, remotePod, nat.Tunnel)
}

func TestSourcesAreAdmittedByRoutes(t *testing.T) {
	for _, remote := range []string{"cluster-b", "cluster-c"} {
		e := capturedEngine(t, gatewayOf(remote))
		good, seen := remotePod, remotePodHere
		if remote == "cluster-c" {
			good, seen = "10.245.3.4", "10.245.3.4"
		}
		expectSent(t, e, nat.Tunnel, udp(good, podN1, 7, 80), seen, podN1, portN1)
		expectDropped(t, e, nat.Tunnel, udp("10.99.0.1", podN1, 7, 80), nat.ReasonBadSource)
		expectDropped(t, e, portN1, udp(seen, podN2, 7, 80), nat.ReasonBadSource)
	}
}

// The remote cluster knows a pod that reports an error, but not a node.
func TestErrorsOfPodsKeepTheirSource(t *testing.T) {
	e := capturedEngine(t, gatewayOf("cluster-b"))
	expectSent(t, e, nat.Tunnel, udp(remotePod, podN1, 7, 80), remotePodHere, podN1, portN1)
	arrived := udp(remotePodHere, podN1, 7, 80)
	for source, want := range map[string]string{podN1: podN1, "192.0.2.11": unknownAddress} {
		unreachable := nattest.IP{Source: source, Destination: remotePodHere, Body: nattest.ICMP{Type: 3, Code: 3, Payload: arrived.Bytes()}}
		expectSent(t, e, portN1, unreachable, want, remotePod, nat.Tunnel)
	}
}
