package node

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"

	"culvert/gateway/node/rtnl"
	"culvert/integration/need"
)

// TestWarnings compares valid files with this machine.
func TestWarnings(t *testing.T) {
	needNamespace(t)
	underlay := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "under0", MTU: 1390}, PeerName: "under1"}
	need.NoError(t, netlink.LinkAdd(underlay))
	t.Cleanup(func() { netlink.LinkDel(underlay) })
	address := &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix("172.18.0.2/24"))}
	address.IP = address.IP.To4()
	address.IP[3] = 2
	for _, err := range []error{netlink.AddrAdd(underlay, address), netlink.LinkSetUp(underlay)} {
		need.NoError(t, err)
	}
	forward := func(on string) {
		t.Helper()
		need.Kernel(t, "ip_forward", os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(on), 0))
	}
	t.Cleanup(func() { forward("0") })
	for _, tt := range []struct {
		name, old, new string
		want           string // "" = no warning
	}{
		{name: "fits", want: ""},
		{name: "underlay of another", old: "underlay: 172.18.0.2", new: "underlay: 172.18.0.3",
			want: "underlay: 172.18.0.3 is not an address of this machine, whose first is 172.18.0.2"},
		{name: "gateway's address is ours", old: "address: 10.80.0.4}", new: "address: 172.18.0.2}",
			want: "gateway.address: 172.18.0.2 is an address of this machine"},
		{name: "no way to the gateway", old: "underlay: 172.18.0.9", new: "underlay: 192.0.2.9",
			want: "gateway.underlay: this machine has no route to 192.0.2.9"},
		{name: "mtu", old: "mtu: 1340", new: "mtu: 1341",
			want: "mtu: 1341 needs 1391 bytes on the way to gateway.underlay 172.18.0.9, where under0 carries 1390; write at most 1340"},
		{name: "no routes", old: "routes: [10.61.0.0/16, 10.71.0.0/16]", new: "routes: []",
			want: "routes: none, so nothing goes to the gateway"},
		{name: "route over the tunnel's end", old: "10.71.0.0/16", new: "10.80.0.0/16",
			want: "routes[1]: 10.80.0.0/16 contains an end of the tunnel"},
		{name: "link of another", old: "interface: culvert0", new: "interface: under0",
			want: "interface: under0 exists and is a veth link"},
		{name: "no forwarding", old: "mtu: 1340", new: "mtu: 1300", want: "routes: this machine forwards no packets"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			forward("1")
			if tt.name == "no forwarding" {
				forward("0")
			}
			if !strings.Contains(goodFile, tt.old) {
				t.Fatalf("%q is not in the file", tt.old)
			}
			c, err := parseConfig([]byte(strings.Replace(goodFile, tt.old, tt.new, 1)))
			need.NoError(t, err)
			if got := strings.Join(c.Warnings, "\n"); tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) ||
				len(c.Warnings) > 1 {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestWarningsOfName: a gateway given by name is compared with this machine once the name is
// resolved.
func TestWarningsOfName(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	lo := up(t, "lo")
	need.NoError(t, netlink.LinkSetMTU(lo, 1389))
	t.Cleanup(func() { netlink.LinkSetMTU(lo, lo.Attrs().MTU) })
	c.Gateway = "localhost"
	log, said := test.NewNullLogger()
	n, err := New(t.Context(), c, log)
	need.NoError(t, err)
	first := said.AllEntries()[0].Message
	want := "mtu: 1340 needs 1390 bytes on the way to gateway.underlay 127.0.0.1, where lo carries 1389"
	if !strings.HasPrefix(first, want) {
		t.Errorf("says %q first, want %q", first, want)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Run(ended); err != nil {
		t.Error(err)
	}
	requireNothingLeft(t, c)
}
