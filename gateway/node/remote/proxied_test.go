package remote

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"culvert/integration/need"
)

// TestNodePort: the source of what a pod of another node sends to a NodePort here is left to the
// node's masquerade, so that answers come back by this node. What else pods send keeps its source.
func TestNodePort(t *testing.T) {
	needNAT(t)
	need.Programs(t, "nft", "nft")
	for _, x := range []struct {
		family, bits, local, bridge, pod, node, other, far, link, gateway, cidr, remote string
	}{
		{"ip", "/24", "10.244.0.0/16", "10.244.1.1", "10.244.1.2", "172.18.0.2", "172.18.0.3", "10.244.2.2",
			"10.80.0.2", "10.80.0.1", "10.61.0.0/16", "10.61.0.9"},
		{"ip6", "/64", "fd44::/48", "fd44:0:0:1::1", "fd44:0:0:1::2", "fd18::2", "fd18::3", "fd44:0:0:2::2",
			"fd80::2", "fd80::1", "fd61::/64", "fd61::9"},
	} {
		t.Run(x.family, func(t *testing.T) {
			pod := newSpace(t, "pod0", []string{x.bridge + x.bits}, []string{x.pod + x.bits})
			other := newSpace(t, "ul0", []string{x.node + x.bits}, []string{x.other + x.bits, x.far + x.bits})
			milan := newSpace(t, "cv-milan", []string{x.link + x.bits}, []string{x.gateway + x.bits, x.remote + x.bits})
			for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
				need.NoError(t, os.WriteFile("/proc/sys/"+name, []byte("1"), 0))
			}
			uplink, err := netlink.LinkByName("ul0")
			need.NoError(t, err)
			need.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(x.other), LinkIndex: uplink.Attrs().Index}))
			proxy := fmt.Sprintf(`table %s proxy {
				chain pre { type nat hook prerouting priority -100; udp dport 30080 dnat to %s; }
				chain post { type nat hook postrouting priority 100; oif cv-milan masquerade; }
			}`, x.family, at(x.remote, 80))
			if out, err := need.Command(t, "nft", proxy).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Cleanup(func() { need.Command(t, "nft", "delete table "+x.family+" proxy").Run() })
			var got chan netip.AddrPort
			milan.run(func() { got = receive(t, at(x.remote, 80)) })

			k := run(t)
			k.Apply([]Peer{{Name: "milan", Link: "cv-milan", Gateways: []netip.Addr{netip.MustParseAddr(x.gateway)},
				Local: prefixes(x.local), Remote: prefixes(x.cidr)}})
			k.says(t, "")
			for _, c := range []struct {
				what            string
				host            *space
				from, to, wants string
			}{
				{"a pod here", pod, x.pod, at(x.remote, 80), x.pod},
				{"a pod here by a NodePort", pod, x.pod, at(x.node, 30080), x.pod},
				{"a pod of another node", other, x.far, at(x.remote, 80), x.far},
				{"a pod of another node by a NodePort", other, x.far, at(x.node, 30080), x.link},
			} {
				c.host.run(func() { send(t, at(c.from, 0), c.to) })
				expect(t, c.what, got, c.wants)
			}
		})
	}
}
