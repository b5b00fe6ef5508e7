package config

import (
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestWarnings: what is valid but probably unintended is reported, one line each. Tests choose the
// properties of the machine where warnings depend on them.
func TestWarnings(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"nothing", "", "", ""},
		{"one underlay", "underlay: 172.18.0.3", "underlay: 172.18.0.2",
			"geneve.nodes[1].underlay: 172.18.0.2 is geneve.nodes[0].underlay too"},
		{"no pods", "podCIDRs: [10.0.1.0/24]", "podCIDRs: []", "geneve.nodes[0].podCIDRs: no pods"},
		{"pods inside others", "[10.0.1.0/24]", "[10.0.2.128/25]",
			"geneve.nodes[1].podCIDRs[0]: 10.0.2.0/24 overlaps geneve.nodes[0].podCIDRs[0] (10.0.2.128/25)"},
		{"pods over an underlay", "underlay: 172.18.0.2", "underlay: 10.0.9.9",
			"network.local.podCIDRs[0]: 10.0.0.0/16 contains geneve.nodes[0].underlay 10.0.9.9"},
		{"external over an underlay", "underlay: 172.18.0.2", "underlay: 10.70.9.9",
			"network.local.externalCIDRs[0]: 10.70.0.0/16 contains geneve.nodes[0].underlay"},
		{"remap over an underlay", "remap: 10.61.0.0/16", "remap: 172.18.0.0/16",
			"network.remote.podCIDRs[0].remap: 172.18.0.0/16 contains geneve.nodes[0].underlay"},
		{"remote over the endpoint", "{cidr: 10.200.0.0/20}", "{cidr: 192.0.0.0/20}",
			"network.remote.podCIDRs[1].cidr: 192.0.0.0/20 contains wireguard.endpoint 192.0.2.7"},
		{"backend outside", "address: 10.0.1.5", "address: 10.9.1.5",
			"nat.services[0].backends[0].address: 10.9.1.5 is in no CIDR"},
		{"backend outside, by a node", "address: 10.0.1.5", "via: rome-1, address: 10.9.1.5", ""},
		{"rule about a remap", "from: remote,", "src: [10.61.3.0/24],",
			"rules[0].src[0]: 10.61.3.0/24 is a remapped CIDR, which rules never see; write the CIDR that the peer itself uses"},
		{"rule about the peer", "from: remote,", "src: [10.0.3.0/24],", ""},
		{"exports that change nothing", "admit: exports", "admit: all", "nat.exports: they change nothing"},
		{"loopback endpoint", "192.0.2.7:51840", "127.0.0.1:51840", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(goodFile, tt.old) {
				t.Fatalf("%q is not in the file", tt.old)
			}
			c, err := parseText([]byte(strings.Replace(goodFile, tt.old, tt.new, 1)), keyFolder(t))
			need.NoError(t, err)
			var got []string
			for _, w := range c.Warnings {
				if !strings.HasPrefix(w, "mtu: ") { // depends on this machine's route
					got = append(got, w)
				}
			}
			if len(got) > 1 || (len(got) == 0) != (tt.want == "") || len(got) == 1 &&
				!strings.HasPrefix(got[0], tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
