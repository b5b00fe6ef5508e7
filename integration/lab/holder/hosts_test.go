package holder

import (
	"slices"
	"strings"
	"testing"

	"culvert/integration/lab"
	"culvert/integration/lab/fault"
	"culvert/integration/lab/plan"
)

// TestNamesMeanWhatIsSeenFromThere looks from hosts of one cluster at hosts of both.
func TestNamesMeanWhatIsSeenFromThere(t *testing.T) {
	l := &server{Lab: &fault.Lab{Lab: lab.Unbuilt(lab.Options{})}}
	for _, h := range l.Hosts {
		if !slices.Contains(plan.HostNames(), h.Name) {
			t.Error("HostNames() lacks", h.Name)
		}
	}
	for _, test := range []struct{ from, to, want string }{
		{"rome/pod1", "milan/pod1", "10.61.1.5"},
		{"rome/node2", "milan/pod2", "10.61.130.7"},
		{"milan/pod2", "rome/pod2", "10.62.2.6"},
		{"milan/pod2", "milan/pod1", "10.0.1.5"}, // the same address as rome/pod1's own
		{"rome/pod1", "rome/pod1", "10.0.1.5"},
		{"rome/client", "rome/node1", "172.18.0.2"},
		{"rome/gateway", "milan/gateway", "192.0.2.7"},
		{"rome/pod1", "milan/gateway", ""}, // no address leads there
		{"rome/pod1", "milan/node1", ""},
		{"rome/gateway", "milan/client", ""},
	} {
		var got string
		for line := range strings.Lines(l.hostsFile(l.Host(test.from))) {
			fields := strings.Fields(line)
			if slices.Contains(fields[1:], test.to) && slices.Contains(fields[1:],
				strings.ReplaceAll(test.to, "/", "-")) {
				got = fields[0]
			}
		}
		if got != test.want {
			t.Errorf("%s is %q from %s, want %q", test.to, got, test.from, test.want)
		}
	}
}
