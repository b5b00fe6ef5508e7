package lab

import (
	"net/netip"
	"strings"
	"testing"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/need"
)

// TestServedChecksFail breaks what the checks of Services promise, with pods that are asked where a
// node would be.
func TestServedChecksFail(t *testing.T) {
	l := buildOne(t, true)
	pod, other := l.Host("rome/pod1"), l.Host("rome/pod2")
	server, err := probe.NewNameServer(other, BackendPort)
	need.NoError(t, err)
	defer server.Close()
	s := &servedCheck{lab: l, plan: &plan.V4, endpoints: []*netns.Host{pod, other}}
	to, closed := netip.AddrPortFrom(other.Address, BackendPort), netip.AddrPortFrom(other.Address, BackendPort+1)
	node, nobody := l.Host("rome/node1").Address, netip.Addr{}
	for _, test := range []struct {
		to   netip.AddrPort
		sees []netip.Addr
		want string
	}{
		{to, []netip.Addr{nobody, node}, "rome/pod2 answered and saw 10.0.1.5, want map[rome/pod2:172.18.0.2]"},
		{to, []netip.Addr{node, nobody}, "rome/pod2 answered and saw 10.0.1.5, want map[rome/pod1:172.18.0.2]"},
		{to, []netip.Addr{node, pod.Address}, "100 calls to 10.0.2.6:8080: rome/pod2 100, want all of map["},
		{closed, []netip.Addr{nobody, pod.Address}, "call 1 to 10.0.2.6:8081: "},
		{to, nil, "call to 10.0.2.6:8080: <nil>, want connection refused"},
	} {
		if figure, err := s.answers(t.Context(), pod, test.to, test.sees); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%q, %v; want %q", figure, err, test.want)
		}
	}
	for _, test := range []struct {
		to   netip.AddrPort
		sees []netip.Addr
		want string
	}{{to, []netip.Addr{nobody, pod.Address}, "calls: rome/pod2 100, seen: 10.0.1.5"}, {closed, nil, "refused"}} {
		if figure, err := s.answers(t.Context(), pod, test.to, test.sees); err != nil || figure != test.want {
			t.Errorf("%q, %v; want %q", figure, err, test.want)
		}
	}
}
