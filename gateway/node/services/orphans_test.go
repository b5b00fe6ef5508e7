package services

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/gateway/node/services/steer"
	"culvert/nat/rules"
)

// An address at which TCP connections continue is routed to the device as the Service there was: a
// port of the node's own address by a rule, another address by a route. Another program's route
// there does not prevent a start. Answers of the endpoints are routed too.
func TestPlanOfWhatIsLeft(t *testing.T) {
	own := netip.MustParseAddr("172.18.0.2")
	c := &Config{Addresses: []netip.Addr{own}, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, MTU: 1500,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, Ports: rules.PortRange{First: 61000,
			Last: 65534}}
	left := orphans{ends: []portOf{{unix.IPPROTO_TCP, 2049}}}
	for _, at := range []string{"172.18.0.2:30080", "203.0.113.7:80", "10.96.0.10:80"} {
		left.at = append(left.at, netip.MustParseAddrPort(at))
	}
	p := c.plan([]netip.Addr{own}, left)
	for _, want := range []steer.Match{
		{To: steer.Host(own), Protocol: unix.IPPROTO_TCP, Ports: rules.PortRange{First: 30080, Last: 30080}},
		{To: steer.Host(own), Protocol: unix.IPPROTO_TCP, Ports: c.Ports},
		{From: c.Pods[0], To: steer.Host(own), Protocol: unix.IPPROTO_TCP, Ports: rules.PortRange{First: 1, Last: 1023},
			Ends: rules.PortRange{First: 2049, Last: 2049}},
	} {
		if !slices.Contains(p.Front, want) {
			t.Errorf("no %v among %v", want, p.Front)
		}
	}
	if want := (steer.Match{From: c.Pods[0], Protocol: unix.IPPROTO_TCP, Ports: rules.PortRange{First: 1, Last: 1023},
		Ends: rules.PortRange{First: 2049, Last: 2049}}); len(p.Behind) != 2 || p.Behind[1] != want {
		t.Errorf("behind: %v", p.Behind)
	}
	lb := netip.MustParsePrefix("203.0.113.7/32")
	if !slices.Contains(p.Routes, lb) || len(p.Routes) != 2 || !p.Spare[lb] {
		t.Errorf("routes %v, spare %v", p.Routes, p.Spare)
	}
	if len(p.nat.Services) != 1 || p.nat.Services[0].Address != lb.Addr() || p.nat.Services[0].Port != 0 {
		t.Errorf("the engine is told of %v", p.nat.Services)
	}
}

// gone returns addresses at which the next configuration has nothing.
func TestAddressesThatGo(t *testing.T) {
	service := func(cluster, lb string) Service {
		return Service{Protocol: unix.IPPROTO_TCP, Port: 80, NodePort: 30080,
			ClusterIPs:      []netip.Addr{netip.MustParseAddr(cluster)},
			LoadBalancerIPs: []netip.Addr{netip.MustParseAddr(lb)}}
	}
	a, b := &Config{Services: []Service{service("10.96.0.10", "203.0.113.7")}},
		&Config{Services: []Service{service("10.96.0.10", "203.0.113.8")}}
	if got := a.gone(b); !slices.Equal(got, []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:0")}) {
		t.Errorf("%v", got)
	}
}
