package integration

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/fresh"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/rules"
)

// An oracleDevice is a TUN device of the oracle that stands for a port of the engine.
type oracleDevice struct {
	name      string
	link      nat.Link
	addresses rules.Pair // for masquerade and for the kernel's own messages
}

const oracleMTU = 1340

// oracleNodes are three nodes; some rules name devices that do not exist.
var oracleNodes = []struct {
	name string
	link nat.Link
}{{"liqo.abcdefghij", 1}, {"rome-2", 2}, {"liqo.zzz", 7}}

// oracleDevicesOf returns the devices of a configuration.
func oracleDevicesOf(c *nat.Config) []oracleDevice {
	all := []oracleDevice{{"liqo-tunnel", nat.Tunnel, c.TunnelAddress}}
	for _, n := range c.Nodes {
		name := n.Device
		if name == "" {
			name = n.Name
		}
		all = append(all, oracleDevice{name, n.Link, c.GatewayAddress})
	}
	return all
}

// An oracle is a network namespace whose kernel forwards between TUN devices by nftables and policy
// routing.
type oracle struct {
	t       testing.TB
	devices []oracleDevice
	files   []int                 // of the devices
	via     map[netip.Addr]string // devices by their neighbours' addresses
	calls   chan func()
}

// newOracle makes the namespace for a configuration and loads its rules. Everything happens on one
// thread, with which the namespace ends.
func newOracle(t testing.TB, c *nat.Config) (*oracle, error) {
	o := &oracle{t: t, devices: oracleDevicesOf(c), via: map[netip.Addr]string{}, calls: make(chan func())}
	for a := range c.PeerTunnelAddress.All() {
		o.via[a] = "liqo-tunnel"
	}
	for i, n := range c.Nodes {
		for a := range n.Address.All() {
			o.via[a] = o.devices[i+1].name
		}
	}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in another namespace and must not be used again
		err := o.make()
		made <- err
		if err != nil {
			return
		}
		for f := range o.calls {
			f()
		}
		for _, fd := range o.files {
			unix.Close(fd)
		}
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	if err := o.load(c.Tables(), c.PolicyTables()); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *oracle) close() { close(o.calls) }

// do runs f in the namespace.
func (o *oracle) do(f func() error) error {
	result := make(chan error)
	o.calls <- func() { result <- f() }
	return <-result
}

var oracleSysctls = map[string]string{
	"net/ipv4/ip_forward":                  "1",
	"net/ipv4/conf/all/send_redirects":     "0",
	"net/ipv4/conf/default/send_redirects": "0",
	"net/ipv6/conf/default/addr_gen_mode":  "1", // no link-local address, so that the kernel sends nothing by itself
	"net/ipv6/conf/all/forwarding":         "1",
	"net/ipv6/auto_flowlabels":             "0", // so that the kernel's own messages can be recognised: they have none
	// Masquerade then uses the device's address, as for IPv4, not one of a wider scope (RFC 6724,
	// Section 5, Rule 2).
	"net/ipv6/conf/default/use_oif_addrs_only": "1",
}

func (o *oracle) make() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("new network namespace: %w", err)
	}
	if err := fresh.Network(); err != nil {
		return err
	}
	for name, value := range oracleSysctls {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	for _, d := range o.devices {
		if err := o.device(d); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return nil
}

func (o *oracle) device(d oracleDevice) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	o.files = append(o.files, fd)
	request, err := unix.NewIfreq(d.name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return err
	}
	link, err := netlink.LinkByName(d.name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(link, oracleMTU); err != nil {
		return err
	}
	for a := range d.addresses.All() {
		address := &netlink.Addr{IPNet: netOf(netip.PrefixFrom(a, a.BitLen()))}
		if a.Is6() {
			address.Flags = unix.IFA_F_NODAD // usable at once
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("%v: %w", a, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// load installs tables and policy tables. This file writes them itself and uses nothing of nat.
func (o *oracle) load(tables []rules.Table, routing []rules.PolicyTable) error {
	return o.do(func() error {
		cmd := need.Command(o.t, "nft", "-f", "-")
		// Of chains with equal priority the kernel runs the one that was added last first.
		tables := slices.Clone(tables)
		slices.Reverse(tables)
		// If no rule needs connections, the kernel tracks none, and then does not reassemble
		// fragments either.
		text := nftText(tables) +
			"table inet conntrack {\n\tchain c {\n\t\ttype filter hook prerouting priority 400;\n\t\tct state invalid counter\n\t}\n}\n"
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s\n%s", err, out, text)
		}
		// these files exist once connection tracking is loaded
		for _, name := range []string{"tcp_be_liberal", "checksum"} {
			value := map[string]string{"tcp_be_liberal": "1", "checksum": "0"}[name]
			err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_"+name, []byte(value), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		for i := range routing {
			if err := o.loadRouting(&routing[i], 1000+i); err != nil {
				return fmt.Errorf("routing table %s: %w", routing[i].Name, err)
			}
		}
		return nil
	})
}

func netOf(p netip.Prefix) *net.IPNet {
	if !p.IsValid() {
		return nil
	}
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// loadRouting adds rules in their order, so that the kernel chooses missing priorities, and the
// routes.
func (o *oracle) loadRouting(t *rules.PolicyTable, table int) error {
	for i := range t.Rules {
		r := &t.Rules[i]
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			v6 := family == unix.AF_INET6
			if r.Destination.IsValid() && r.Destination.Addr().Is6() != v6 || r.Source.IsValid() &&
				r.Source.Addr().Is6() != v6 {
				continue
			}
			rule := netlink.NewRule()
			rule.Family, rule.Table = family, table
			rule.Dst, rule.Src = netOf(r.Destination), netOf(r.Source)
			rule.IifName, rule.OifName = r.In, r.Out
			rule.Mark = r.Mark
			if r.Priority != 0 {
				rule.Priority = r.Priority
			}
			if err := netlink.RuleAdd(rule); err != nil {
				return fmt.Errorf("rule %+v: %w", r, err)
			}
		}
		for _, route := range r.Routes {
			device := route.Device
			if device == "" {
				device = o.via[route.Via]
			}
			link, err := netlink.LinkByName(device)
			if err != nil {
				continue // no such device: no such route
			}
			err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: netOf(route.Destination),
				Table: table, Scope: netlink.SCOPE_LINK})
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("route %+v: %w", route, err)
			}
		}
	}
	return nil
}

// An output is a packet that the kernel sent, and where.
type output struct {
	link  nat.Link
	bytes []byte
}

// inject sends a packet, perhaps in fragments, into the kernel through link, and returns what the
// kernel has sent by the time that the write returns.
func (o *oracle) inject(link nat.Link, parts [][]byte) ([]output, error) {
	at := slices.IndexFunc(o.devices, func(d oracleDevice) bool { return d.link == link })
	for _, b := range parts {
		if _, err := unix.Write(o.files[at], b); err != nil {
			return nil, err
		}
	}
	return o.drain()
}

// drain reads what is waiting at all devices.
func (o *oracle) drain() ([]output, error) {
	var all []output
	buf := make([]byte, 65536)
	for i, fd := range o.files {
		for {
			n, err := unix.Read(fd, buf)
			if err == unix.EAGAIN {
				break
			}
			if err != nil {
				return nil, err
			}
			all = append(all, output{o.devices[i].link, slices.Clone(buf[:n])})
		}
	}
	return all, nil
}

// settle is how long to wait for a packet that the kernel has not processed when write returns,
// which is rare. Before a difference counts, the test waits a hundred times as long.
const settle = 20 * time.Millisecond
