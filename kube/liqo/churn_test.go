package liqo

import (
	"fmt"
	"slices"
	"testing"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/nat"
)

// A liveGateway is an engine that is changed while packets pass.
type liveGateway struct {
	t      *testing.T
	engine *nat.Engine
	links  config.Links
	self   Self
}

func (g *liveGateway) take(s *State) {
	g.t.Helper()
	c := s.Changes()
	if c.Site != nil {
		all := c.Site.Config(baseOf(g.self.Remote))
		g.links = g.links.Assign(all.Geneve.Nodes)
		need.NoError(g.t, g.engine.Apply(all.NAT(g.links, 0)))
	}
	for _, key := range c.Delete {
		g.engine.Delete(key)
	}
	for _, p := range c.Put {
		need.NoError(g.t, g.engine.Put(p.Key, p.Resource))
	}
	g.engine.CommitRules()
}

// A flow is a connection of a pod with a remote one.
type flow struct {
	node, pod string
	port      uint16
}

// passes reports whether both directions of a flow pass, as they should.
func (g *liveGateway) passes(f flow) error {
	v, out := send(g.t, g.engine, g.links.ByName[f.node], udp(f.pod, remotePodHere, f.port, 80))
	if v.Action != nat.Forward || out.Source.String() != f.pod || out.Destination.String() != remotePod {
		return fmt.Errorf("outbound %v %v, %s > %s", v.Action, v.Reason, out.Source, out.Destination)
	}
	v, in := send(g.t, g.engine, nat.Tunnel, udp(remotePod, f.pod, 80, f.port))
	if v.Action != nat.Forward || in.Source.String() != remotePodHere || in.Destination.String() != f.pod ||
		v.Out != g.links.ByName[f.node] {
		return fmt.Errorf("inbound %v %v, %s > %s to %d", v.Action, v.Reason, in.Source, in.Destination, v.Out)
	}
	return nil
}

// Each resource is deleted and created again while 500 connections carry packets. Connections that
// do not need it are not affected. The others work again when it is back.
func TestResourcesDeletedAndRestored(t *testing.T) {
	self := gatewayOf("cluster-b")
	objects := loadCapture(t, captures[0])
	e, err := nat.New([16]byte{1}, new(Site).Config(baseOf(self.Remote)).NAT(config.Links{}, 0))
	need.NoError(t, err)
	g := &liveGateway{t: t, engine: e, self: self}
	s := NewState(self)
	for _, o := range objects {
		s.Put(o)
	}
	g.take(s)
	var flows []flow
	for i := range uint16(250) {
		flows = append(flows, flow{"n1", podN1, 1000 + i}, flow{"n2", podN2, 1000 + i})
	}
	// The resources that connections of each node's pods need.
	needs := map[string][]string{
		"n1": {"cluster-b-remap-podcidr", "cluster-b-gw-ext", "n1-gw-node", "cluster-b-n1", "n1", "cluster-b"},
		"n2": {"cluster-b-remap-podcidr", "cluster-b-gw-ext", "n2-gw-node", "cluster-b-n2", "n2", "cluster-b"},
	}
	all := func(what string, unless string) {
		t.Helper()
		for _, f := range flows {
			if slices.Contains(needs[f.node], unless) {
				continue
			}
			if err := g.passes(f); err != nil {
				t.Fatalf("%s: %v: %v", what, f, err)
			}
		}
	}
	all("at first", "")
	created, gone := e.Stats().Created, 0
	for _, o := range objects {
		if !self.selects(o) {
			continue
		}
		gone++
		before := e.Stats()
		s.Delete(o.Key())
		g.take(s)
		all(o.Key().String()+" is gone", o.Metadata.Name)
		if st := e.Stats(); !slices.Contains(append(needs["n1"], needs["n2"]...), o.Metadata.Name) &&
			(st.Evicted != before.Evicted || st.Created != created) {
			t.Errorf("%s: %d connections were evicted and %d created, want none", o.Key(), st.Evicted-before.Evicted,
				st.Created-created)
		}
		s.Put(o)
		g.take(s)
		all(o.Key().String()+" is back", "")
		created = e.Stats().Created
	}
	if gone < 20 {
		t.Errorf("%d resources were deleted, want at least 20", gone)
	}
	if f := s.Faults(); len(f) > 0 {
		t.Errorf("faults %v, want none", f)
	}
}
