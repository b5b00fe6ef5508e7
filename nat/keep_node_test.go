package nat_test

import (
	"net/netip"
	"slices"
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/rules"
)

// by returns rules whose route to a host leads by a node: by any node if keep is set.
func by(node string, keep bool) func(*nat.Config) {
	return func(c *nat.Config) {
		given(c)
		c.Routing = append(c.Routing, rules.PolicyTable{Name: "host", Rules: []rules.PolicyRule{
			{In: "liqo-tunnel", Keep: keep,
				Routes: []rules.PolicyRoute{{Destination: netip.MustParsePrefix("203.0.113.10/32"), Device: node}}},
		}})
	}
}

// TestKeptNode: a connection to a host that any node could reach stays with the node by which it
// began, in this gateway and in its successors, while that node is there. New connections, and
// those to a pod, go as their route says.
func TestKeptNode(t *testing.T) {
	leaves := func(what string, e *nat.Engine, port uint16, want nat.Link) {
		t.Helper()
		if v, _, _ := forwarded(t, e, nat.Tunnel, udp("192.0.2.9", "203.0.113.10", port, 53).Bytes(),
			start); v.Out != want {
			t.Errorf("%s: it leaves by link %d, want %d", what, v.Out, want)
		}
	}
	first := engine(t, by("rome-1", true))
	leaves("new", first, 1, node1)
	second := engine(t, by("rome-2", true))
	restore(second, start, records(first, 0, start))
	third := engine(t, by("rome-2", true))
	restore(third, start, records(second, 0, start)) // nothing has passed the second one
	for _, e := range []*nat.Engine{second, third} {
		leaves("copied", e, 1, node1)
		leaves("copied, its second packet", e, 1, node1)
		leaves("new", e, 2, node2)
		forwarded(t, e, node1, udp("203.0.113.10", "192.0.2.9", 53, 1).Bytes(), start)
		leaves("answered", e, 1, node1)
		ledger(t, e)
	}

	apply := func(e *nat.Engine, change ...func(*nat.Config)) {
		c := rome()
		for _, f := range change {
			f(c)
		}
		need.NoError(t, e.Apply(c))
	}
	apply(first, by("rome-2", true))
	leaves("another route", first, 1, node1)
	apply(first, by("rome-1", true))
	leaves("the route again", first, 1, node1)
	withoutFirst := func(c *nat.Config) {
		c.Nodes, c.Routes = c.Nodes[1:], slices.DeleteFunc(c.Routes, func(r rules.Route) bool {
			return r.Link == node1
		})
	}
	apply(second, by("rome-2", true), withoutFirst)
	leaves("its node is gone", second, 1, node2)
	apply(second, by("rome-2", true))
	leaves("its node is back", second, 1, node2)
	fourth := engine(t, by("rome-2", true), withoutFirst)
	if r := restore(fourth, start, records(first, 0, start)); r.Connections != 1 || r.UnknownLink != 0 {
		t.Errorf("a gateway without its node: %+v", r)
	}
	leaves("copied without its node", fourth, 1, node2)

	pod := engine(t, by("rome-1", false))
	leaves("a pod", pod, 1, node1)
	moved := engine(t, by("rome-2", false))
	restore(moved, start, records(pod, 0, start))
	leaves("a copied connection to a pod that has moved", moved, 1, node2)
	apply(pod, by("rome-2", false))
	leaves("a pod that has moved", pod, 1, node2)
}
