package health

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestLiqoWords: under Liqo no sentence names a field of the file, or a command that does not apply
// there.
func TestLiqoWords(t *testing.T) {
	file := regexp.MustCompile(`network\.(local|remote)|geneve\.[a-z]|wireguard\.[a-z]|\bnat\.|culvert (node|keygen|init)|podCIDRs|connectionCheck|` +
		`[^.{]\bmtu\b|mssClamp|change rules|unknownSource|gatewayAddress|maxConnections|sourceCheck|\(state\)|the file`)
	for name := range reasons {
		means, remedy := Explain(name, ByLiqo)
		if _, without := Explain(name, ByFile); (without == "") != (remedy == "") {
			t.Errorf("%s: %q, and without Liqo %q", name, remedy, without)
		}
		if says := means + " " + remedy; file.MatchString(says) {
			t.Errorf("%s: %s", name, says)
		}
	}
	for _, c := range []*Cause{NeverThere, NodeSilent, NodeDeaf, WrongUnderlay} { // what a masquerade looks like
		if says := c.Liqo().Sentence(); !strings.Contains(says,
			"networking.fabric.config.gatewayMasqueradeBypass=true") {
			t.Errorf("%s does not name the remedy for a network that masquerades: %s", c.Name, says)
		}
	}
	for name := range liqoReasons {
		if _, there := reasons[name]; !there {
			t.Errorf("%s: there is no such reason", name)
		}
	}
	for _, c := range Causes() {
		if says := c.Liqo().Sentence(); file.MatchString(says) {
			t.Errorf("%s: %s", c.Name, says)
		}
		for _, blank := range regexp.MustCompile(`\{\w+\}`).FindAllString(c.Liqo().Sentence(), -1) {
			known := strings.Contains(c.Sentence(), blank)
			if c.Name[:4] == "node" { // nodeHistory fills in the words of these causes
				known = known || blank == "{port}" || blank == "{gateway}"
			}
			if !known {
				t.Errorf("%s: nothing fills %s in", c.Name, blank)
			}
		}
	}
}

// TestLiqoSettles: a warning about a node or a packet is reported, in words for Liqo, once it has
// lasted settles, and not if it ends earlier.
func TestLiqoSettles(t *testing.T) {
	const second = time.Second
	for _, liqo := range []bool{false, true} {
		for _, lasts := range []time.Duration{10 * second, 40 * second} {
			j := NewJudge()
			said := map[string]time.Duration{}
			total := uint64(0)
			for now := second; now <= 60*second; now += second {
				o := &Observation{Peer: Peer{Name: "milan", Liqo: liqo}, Gateway: netip.MustParseAddr("10.80.0.4"),
					Port: 6091,
					Nodes: []Node{{Name: "n1", Underlay: netip.MustParseAddr("192.0.2.1"),
						Address: netip.MustParseAddr("10.80.0.2"), ARP: true, Answered: true}}}
				if now <= lasts {
					o.Nodes[0].Answered, o.Nodes[0].Asked, o.Nodes[0].Knock = false, 9, KnockRefused
					total++
					o.Drops = []Drop{{Reason: "no-route", Inbound: true, Local: true, Total: total,
						Source: netip.MustParseAddr("10.61.0.1"), Destination: netip.MustParseAddr("10.0.1.5")}}
				}
				for _, f := range j.Look(now, o) {
					if _, ok := said[f.Cause.Name]; !ok {
						said[f.Cause.Name] = now
					}
					if f.Cause == NodeRefuses && strings.Contains(f.Text, "liqo-fabric") != liqo {
						t.Errorf("under Liqo %v: %s", liqo, f.Text)
					}
				}
			}
			for _, c := range []*Cause{NodeRefuses, NowhereNode} {
				at, ok := said[c.Name]
				switch {
				case !liqo && (!ok || at > 5*second):
					t.Errorf("without Liqo %s is said at %v, %v", c.Name, at, ok)
				case liqo && ok != (lasts > settles), liqo && ok && (at < settles || at > settles+3*second):
					t.Errorf("under Liqo %s, which lasts %v, is said at %v, %v", c.Name, lasts, at, ok)
				}
			}
		}
	}
}

// TestPeeringWords: in the gateway of a Peering no sentence names a field of the file, for either
// role.
func TestPeeringWords(t *testing.T) {
	file := regexp.MustCompile(
		`network\.(local|remote)|geneve\.[a-z]|wireguard\.[a-z]|\bnat\.|culvert (node|keygen|init)|connectionCheck|` +
			`[^.{]\bmtu\b|mssClamp|change rules|unknownSource|gatewayAddress|maxConnections|sourceCheck|the file`)
	for _, plain := range Causes() {
		for _, role := range []string{"client", "server"} {
			c := plain.by(role)
			says := c.Peering().Sentence()
			if file.MatchString(says) || role == "server" && plain.Server != "" && strings.Contains(says,
				"correct spec.endpoint") {
				t.Errorf("%s, %s: %s", c.Name, role, says)
			}
			for _, blank := range regexp.MustCompile(`\{\w+\}`).FindAllString(says, -1) {
				if !strings.Contains(c.Sentence(), blank) && !(c.Name[:4] == "node" || c.Name[:4] == "no-a") {
					t.Errorf("%s: nothing fills %s in", c.Name, blank)
				}
			}
		}
	}
	for name := range reasons {
		means, remedy := Explain(name, ByPeering)
		if _, without := Explain(name, ByFile); (without == "") != (remedy == "") ||
			file.MatchString(means+" "+remedy) || strings.Contains(means+remedy, "(state)") {
			t.Errorf("%s: %s %s", name, means, remedy)
		}
	}
	for name := range peeringReasons {
		if _, there := reasons[name]; !there {
			t.Errorf("%s: there is no such reason", name)
		}
	}
	for _, role := range []string{"client", "server"} {
		o := &Observation{Peer: Peer{Name: "milan", Peering: true, Role: role,
			Endpoint: netip.MustParseAddrPort("192.0.2.1:31840")}}
		var said []Finding
		j := NewJudge()
		for at := time.Duration(0); at < time.Minute; at += time.Second {
			o.Peer.SentHandshakes, o.Peer.Knock = uint64(at/(5*time.Second)), KnockRefused
			said = append(said, j.Look(at, o)...)
		}
		want := map[string]string{"client": "that of its Service", "server": "spec.endpoint of its Peering"}[role]
		if len(said) != 1 || said[0].Cause.Name != "endpoint-refused" || !strings.Contains(said[0].Text, want) ||
			len(j.Findings(time.Minute)) != 1 ||
			!strings.Contains(j.Findings(time.Minute)[0].Text, want) {
			t.Errorf("%s: %+v", role, said)
		}
	}
}
