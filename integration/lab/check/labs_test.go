package check

import (
	"testing"

	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/plan"
)

// checksOf counts the checks of the labs of a kind, by name; each lab for itself where it has both
// families: of those only what is over IPv6, or of one family as attacks are.
func checksOf(kind string) map[string]int {
	all := make(map[string]int)
	o := Options{Modes: []node.Mode{node.VXLAN}, Offloads: []bool{true}, Labs: []string{kind}}
	for _, planned := range o.labs(node.VXLAN) {
		l := lab.Unbuilt(planned.options)
		short := make(map[string]bool) // what labs of both families try over IPv4 in short
		if planned.options.Inside == lab.IPv4AndIPv6 {
			for _, c := range l.OfFamilies(func(*plan.Plan) []lab.Check { return nil }) {
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
	attacks := (&Options{Offloads: []bool{true}}).attackLabs(node.VXLAN)
	if len(attacks) != 2 || attacks[0].options.Outside6 || !attacks[1].options.Outside6 {
		t.Errorf("attacks in %d labs, want one over IPv4 and one over IPv6", len(attacks))
	}
}
