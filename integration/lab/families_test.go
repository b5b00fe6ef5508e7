package lab

import (
	"testing"

	"culvert/gateway/node"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// unbuilt is a lab of which there are only names and addresses.
func unbuilt(o Options) *Lab {
	l := &Lab{Options: o, six: make(map[string]*netns.Host)}
	for i := range plan.V4 {
		c, c6 := &plan.V4[i], &plan.V6[i]
		add := func(name string, four, six *netns.Host) {
			four.Name, six.Name = c.Name+"/"+name, c.Name+"/"+name
			l.hosts, l.six[four.Name] = append(l.hosts, four), six
		}
		add("router", &netns.Host{Address: c.Underlay.Addr()}, &netns.Host{Address: c6.Underlay.Addr()})
		add("gateway", &netns.Host{Address: c.Gateway}, &netns.Host{Address: c6.Gateway})
		add("client", &netns.Host{Address: c.Client}, &netns.Host{Address: c6.Client})
		for j, n := range c.Nodes {
			add(n.Name, &netns.Host{Address: n.Underlay}, &netns.Host{Address: c6.Nodes[j].Underlay})
			add(n.PodName, &netns.Host{Address: n.Pod}, &netns.Host{Address: c6.Nodes[j].Pod})
		}
	}
	return l
}

// checksOf counts the checks of the labs of a kind, by name; each lab for itself where it has both
// families: of those only what is over IPv6, or of one family as attacks are.
func checksOf(kind string) map[string]int {
	all := make(map[string]int)
	o := CheckOptions{Modes: []node.Mode{node.VXLAN}, Offloads: []bool{true}, Labs: []string{kind}}
	for _, planned := range o.labs(node.VXLAN) {
		l := unbuilt(planned.options)
		short := make(map[string]bool) // what labs of both families try over IPv4 in short
		if planned.options.Inside == IPv4AndIPv6 {
			for _, c := range l.ofFamilies(func(*plan.Plan) []Check { return nil }) {
				short[c.Name+c.Path] = true
			}
		}
		for _, c := range planned.checks(l) {
			if !short[c.Name+c.Path] {
				all[c.Name]++
			}
		}
	}
	return all
}

// TestNoCheckIsOfIPv4Alone: what is tried over IPv4 is tried over IPv6 as often, with IPv6 alone
// inside or with IPv6 outside too.
func TestNoCheckIsOfIPv4Alone(t *testing.T) {
	ipv4, inside, outside := checksOf(ipv4Labs), checksOf(inside6Labs), checksOf(outer6Labs)
	if len(ipv4) < 50 {
		t.Fatalf("only %d names of checks: %v", len(ipv4), ipv4)
	}
	once := map[string]int{"reload, bad files": 1} // with IPv6 in one kind of lab
	for name, n := range ipv4 {
		if outside[name] < n {
			t.Errorf("%q is tried %d times over IPv4, and %d times over IPv6 with IPv6 outside", name, n, outside[name])
		}
		if inside[name] < n-once[name] {
			t.Errorf("%q is tried %d times over IPv4, and %d times with IPv6 alone inside", name, n, inside[name])
		}
	}
	if inside["service reset"] == 0 || checksOf(dualLabs)["fragment orders"] == 0 {
		t.Errorf("checks are missing: %v, %v", outside, inside)
	}
	attacks := (&CheckOptions{Offloads: []bool{true}}).attackLabs(node.VXLAN)
	if len(attacks) != 2 || attacks[0].options.Outside6 || !attacks[1].options.Outside6 {
		t.Errorf("attacks in %d labs, want one over IPv4 and one over IPv6", len(attacks))
	}
}
