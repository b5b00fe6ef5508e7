package rules

import (
	"testing"

	"culvert/integration/need"
)

// Every statement that Liqo's RouteConfiguration and the kernel's policy routing make about rules
// and routes.
func TestPolicyStatements(t *testing.T) {
	dst := func(s string, r PolicyRule) PolicyRule { r.Destination = pfx(s); return r }
	to := func(device string, dsts ...string) []PolicyRoute {
		var all []PolicyRoute
		for _, d := range dsts {
			all = append(all, PolicyRoute{Destination: pfx(d), Device: device})
		}
		return all
	}
	via := func(gw, dst string) []PolicyRoute { return []PolicyRoute{{Destination: pfx(dst), Via: addr(gw)}} }
	const n1, n2 = "liqo.abcdefghij", "rome-2"
	table := func(name string, rules ...PolicyRule) PolicyTable { return PolicyTable{name, rules} }
	tests := []struct {
		statement string
		tables    []PolicyTable
		in        Link
		mark      uint32
		want      Link // noLink: no route
	}{
		{"a rule without selectors fits all", []PolicyTable{table("a", PolicyRule{Routes: to(n1, "10.0.0.0/8")})}, 5, 0,
			1},
		{"longest prefix in the table",
			[]PolicyTable{table("a", PolicyRule{Routes: append(to(n1, "10.0.0.0/8", "10.1.2.4/32"),
				to(n2, "10.1.2.0/24")...)})}, 5, 0, 2},
		{"all routes of all rules are in the one table", []PolicyTable{table("a",
			PolicyRule{In: n2, Routes: to(n2, "10.1.2.3/32")}, PolicyRule{In: n1, Routes: to(n1, "10.0.0.0/8")})}, 1, 0,
			2},
		{"iif selects", []PolicyTable{table("a", PolicyRule{In: n1, Routes: to(n1, "10.0.0.0/8")})}, 2, 0, noLink},
		{"an unknown iif fits nothing", []PolicyTable{table("a", PolicyRule{In: "eth0", Routes: to(n1, "10.0.0.0/8")})},
			5, 0, noLink},
		{"oif fits nothing that is forwarded",
			[]PolicyTable{table("a", PolicyRule{Out: n1, Routes: to(n1, "10.0.0.0/8")})}, 5, 0, noLink},
		{"fwmark has no mask", []PolicyTable{table("a", PolicyRule{Mark: 1, Routes: to(n1, "10.0.0.0/8")})},
			5, 3, noLink},
		{"fwmark selects", []PolicyTable{table("a", PolicyRule{Mark: 3, Routes: to(n1, "10.0.0.0/8")})}, 5, 3, 1},
		{"a rule without fwmark fits every mark", []PolicyTable{table("a", PolicyRule{Routes: to(n1, "10.0.0.0/8")})},
			5, 3, 1},
		{"dst selects", []PolicyTable{table("a", dst("10.2.0.0/16", PolicyRule{Routes: to(n1, "10.0.0.0/8")}))},
			5, 0, noLink},
		{"dst with host bits selects its network, unlike in a firewall rule",
			[]PolicyTable{table("a", dst("10.1.2.9/24", PolicyRule{Routes: to(n1, "10.0.0.0/8")}))}, 5, 0, 1},
		{"src selects", []PolicyTable{table("a", PolicyRule{Source: pfx("172.16.0.0/12"),
			Routes: to(n1, "10.0.0.0/8")})}, 5, 0, noLink},
		{"src selects: fits",
			[]PolicyTable{table("a", PolicyRule{Source: pfx("10.9.0.0/16"), Routes: to(n1, "10.0.0.0/8")})}, 5, 0, 1},
		{"the lower priority first", []PolicyTable{table("a", PolicyRule{Priority: 20, Routes: to(n1, "10.1.2.3/32")}),
			table("b", PolicyRule{Priority: 10, Routes: to(n2, "10.0.0.0/8")})}, 5, 0, 2},
		{"equal priorities as they come",
			[]PolicyTable{table("a", PolicyRule{Priority: 10, Routes: to(n1, "10.0.0.0/8")}),
				table("b", PolicyRule{Priority: 10, Routes: to(n2, "10.1.2.3/32")})}, 5, 0, 1},
		{"without priority, later rules come first",
			[]PolicyTable{table("a", PolicyRule{Routes: to(n1, "10.1.2.3/32")}),
				table("b", PolicyRule{Routes: to(n2, "10.0.0.0/8")})}, 5, 0, 2},
		{"without priority, before those that have one",
			[]PolicyTable{table("a", PolicyRule{Priority: 1000, Routes: to(n1, "10.1.2.3/32")}),
				table("b", PolicyRule{Routes: to(n2, "10.0.0.0/8")})}, 5, 0, 2},
		{"the next rule when the table has no route",
			[]PolicyTable{table("a", PolicyRule{Priority: 10, Routes: to(n1, "10.2.0.0/16")}),
				table("b", PolicyRule{Priority: 20, Routes: to(n2, "10.0.0.0/8")})}, 5, 0, 2},
		{"a route by the peer's address",
			[]PolicyTable{table("a", PolicyRule{Routes: via("169.254.18.1", "10.0.0.0/8")})}, 5, 0, Tunnel},
		{"a route by a node's address", []PolicyTable{table("a", PolicyRule{Routes: via("10.80.0.3", "10.0.0.0/8")})},
			5, 0, 2},
		{"a route by an unknown address is not there",
			[]PolicyTable{table("a", PolicyRule{Routes: via("10.80.0.77", "10.1.2.3/32")},
				PolicyRule{Routes: to(n1, "10.0.0.0/8")})}, 5, 0, 1},
		{"a route to a device that does not exist is not there",
			[]PolicyTable{table("a", PolicyRule{Routes: to("liqo.zzz9", "10.1.2.3/32")},
				PolicyRule{Routes: to(n1, "10.0.0.0/8")})}, 5, 0, 1},
		{"a device goes before an address",
			[]PolicyTable{table("a", PolicyRule{Routes: []PolicyRoute{{pfx("10.0.0.0/8"), addr("10.80.0.3"), n1}}})}, 5,
			0, 1},
		{"families do not mix", []PolicyTable{table("a", PolicyRule{Routes: to(n1, "::/0")})}, 5, 0, noLink},
		{"a default route", []PolicyTable{table("a", PolicyRule{Routes: to(n1, "0.0.0.0/0")})}, 5, 0, 1},
		{"no rules, no route", nil, 5, 0, noLink},
	}
	for _, tt := range tests {
		c := randomNodes()
		c.Firewall, c.Routing = []Table{}, append([]PolicyTable{}, tt.tables...)
		r, err := newRuleset(c)
		if err != nil {
			t.Errorf("%s: %v", tt.statement, err)
			continue
		}
		hop, ok := r.route(tt.in, tt.mark, addr("10.9.9.9"), addr("10.1.2.3"))
		if !ok {
			hop.link = noLink
		}
		if hop.link != tt.want {
			t.Errorf("%s: link %d, want %d", tt.statement, hop.link, tt.want)
		}
	}
}

// The rule that decided can be named.
func TestPolicyNames(t *testing.T) {
	c := milan()
	r := compiled(t, c)
	hop, ok := r.route(Tunnel, 0, addr("10.200.2.6"), addr("10.200.1.77"))
	if name := hop.rule.path(); !ok || name != "milan-1/2" {
		t.Errorf("rule %s, want the second of table milan-1", name)
	}
	hop, _ = r.route(Tunnel, 9, addr("10.200.2.6"), addr("11.11.11.7"))
	if name := hop.rule.path(); name != "milan-2-service-nodeport-routing/1" {
		t.Errorf("rule %s", name)
	}
}

// A route via the peer leads to the tunnel as long as the peer has that address, whoever has put
// it.
func TestRouteFollowsPeer(t *testing.T) {
	c, s := randomNodes(), NewSet()
	c.Firewall, c.Routing = []Table{}, []PolicyTable{}
	if _, err := s.make(c); err != nil {
		t.Fatal(err)
	}
	d := s.Draft()
	if err := d.Put(Key{Kind: "kind", Name: "via"},
		Resource{Routing: []PolicyTable{{Name: "r", Rules: []PolicyRule{{Routes: []PolicyRoute{
			{Destination: pfx("10.0.0.0/8"), Via: c.PeerTunnelAddress.V4}}}}}}}); err != nil {
		t.Fatal(err)
	}
	r, _ := s.Commit(d)
	if out, ok := r.Route(1, 0, addr("10.9.9.9"), addr("10.1.2.3")); !ok || out != Tunnel {
		t.Errorf("to link %d, %v", out, ok)
	}
	c.PeerTunnelAddress = PairOf(addr("169.254.18.77"))
	r, err := s.make(c)
	need.NoError(t, err)
	if out, ok := r.Route(1, 0, addr("10.9.9.9"), addr("10.1.2.3")); ok {
		t.Errorf("via an address that the peer has no more: to link %d", out)
	}
}
