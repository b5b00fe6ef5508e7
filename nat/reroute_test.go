package nat

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"culvert/integration/need"
	"culvert/nat/rules"
)

// routed returns milan with routes by link, and no others.
func routed(routes map[Link][]netip.Prefix) *Config {
	c := milan()
	c.Routes = nil
	for _, link := range slices.Sorted(maps.Keys(routes)) {
		for _, p := range routes[link] {
			c.Routes = append(c.Routes, rules.Route{Prefix: p, Link: link})
		}
	}
	return c
}

// Two engines have the same packets. One gets whole configurations, the other only what has changed
// of its routes: they never differ, whatever moves from node to node, comes or goes, and a whole
// configuration goes on from there.
func TestRerouteIsApply(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var pool []netip.Prefix
	for i := range 30 {
		bits := []int{32, 32, 32, 28, 24}[i%5]
		pool = append(pool, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i % 3), byte(7 * i)}),
			bits).Masked())
	}
	links := []Link{4, 9}
	routes := map[Link][]netip.Prefix{4: {pfx("10.80.0.2/32")}, 9: {pfx("10.80.0.3/32")}}
	whole, part := newEngine(t, routed(routes)), newEngine(t, routed(routes))
	port, forwarded, refused := uint16(0), 0, 0
	for round := range 400 {
		next := maps.Clone(routes)
		for range 1 + r.IntN(3) {
			p, to := pool[r.IntN(len(pool))], links[r.IntN(len(links))]
			for link := range next {
				next[link] = slices.DeleteFunc(slices.Clone(next[link]), func(q netip.Prefix) bool { return q == p })
			}
			if r.IntN(3) > 0 {
				next[to] = append(next[to], p)
			}
		}
		changed := map[Link][]netip.Prefix{}
		for link, list := range next {
			if !slices.Equal(list, routes[link]) {
				changed[link] = list
			}
		}
		routes = next
		need.NoError(t, whole.Apply(routed(routes)))
		if r.IntN(10) == 0 { // whoever applies a whole one goes on from what was rerouted
			need.NoError(t, part.Apply(routed(routes)))
		} else if !part.Reroute(changed) {
			t.Fatalf("round %d: %v is refused", round, changed)
		}
		for range 30 {
			pod, far := pool[r.IntN(len(pool))].Addr(), netip.AddrFrom4([4]byte{10, 71, 3, byte(r.IntN(3))})
			in, source, destination := []Link{4, 9, Tunnel}[r.IntN(3)], pod, far
			if in == Tunnel {
				source, destination = netip.AddrFrom4([4]byte{10, 200, 3, far.As4()[3]}), pod
			}
			port = uint16(1 + r.IntN(40)) // old connections too
			if sameVerdict(t, whole, part, in, source, destination, port) {
				forwarded++
			} else {
				refused++
			}
		}
	}
	if forwarded < 1000 || refused < 1000 {
		t.Errorf("%d forwarded, %d refused: too few to compare", forwarded, refused)
	}
}

// sameVerdict gives both engines the same packet and reports whether they forward it. They must not
// differ.
func sameVerdict(t *testing.T, whole, part *Engine, in Link, source, destination netip.Addr, port uint16) bool {
	t.Helper()
	a, x := send(whole, in, source, destination, port, 80)
	b, y := send(part, in, source, destination, port, 80)
	if a != b || !bytes.Equal(x, y) {
		t.Fatalf("from %s port %d to %s on %d: %+v, with whole configurations %+v", source, port, destination, in, b, a)
	}
	return a.Action == Forward
}

func newEngine(t *testing.T, c *Config) *Engine {
	t.Helper()
	e, err := New([16]byte{1}, c)
	need.NoError(t, err)
	return e
}

// What is not as it has to be is refused whole, and what is prepared loses its place.
func TestRerouteRefuses(t *testing.T) {
	host := func(s string) []netip.Prefix { return []netip.Prefix{pfx(s)} }
	good := map[Link][]netip.Prefix{4: host("10.200.9.9/32")}
	for name, c := range map[string]struct {
		routes map[Link][]netip.Prefix
		change func(*Config)
	}{
		"no node":    {map[Link][]netip.Prefix{4: host("10.200.9.9/32"), 5: host("10.200.9.8/32")}, nil},
		"the tunnel": {map[Link][]netip.Prefix{Tunnel: host("10.200.9.9/32")}, nil},
		"another's":  {map[Link][]netip.Prefix{4: host("10.200.1.0/24")}, nil},
		"twice":      {map[Link][]netip.Prefix{4: append(host("10.200.9.9/32"), host("10.200.9.9/32")...)}, nil},
		"of both":    {map[Link][]netip.Prefix{4: host("10.200.9.9/32"), 9: host("10.200.9.9/32")}, nil},
		"bits":       {map[Link][]netip.Prefix{4: {netip.MustParsePrefix("10.200.9.9/24")}}, nil},
		"none":       {map[Link][]netip.Prefix{4: {{}}}, nil},
		"mapped":     {map[Link][]netip.Prefix{4: {netip.PrefixFrom(addr("::ffff:10.200.9.9"), 128)}}, nil},
		"tables":     {good, func(c *Config) { c.Routing = c.PolicyTables() }},
	} {
		config := milan()
		if c.change != nil {
			c.change(config)
		}
		e := newEngine(t, config)
		before := e.current()
		if e.Reroute(c.routes) || e.current() != before {
			t.Errorf("%s: not refused", name)
		}
		// by 10.200.0.0/20
		if v, _ := send(e, Tunnel, addr("10.200.3.9"), addr("10.200.9.9"), 1, 80); v.Out != 4 && c.change == nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
	e := newEngine(t, milan())
	p, err := e.Prepare(milan())
	if err != nil || !e.Reroute(good) {
		t.Fatal(err)
	}
	defer func() {
		if got := fmt.Sprint(recover()); got != "nat: commit of what was not prepared last" {
			t.Error(got)
		}
	}()
	e.Commit(p)
}
