package services

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/control"
	"culvert/gateway/node/rtnl"
	"culvert/gateway/node/services/steer"
	"culvert/gateway/state"
	"culvert/integration/need"
)

// everywhere are the addresses of web.
var everywhere = []string{"10.96.0.10:80", "[fd96::10]:80", "172.18.0.2:30010", "[fd18::2]:30010"}

// A Server follows its configuration: UDP moves with its next packet, TCP stays. What it refuses
// changes nothing.
func TestServerChanges(t *testing.T) {
	n := newNode(t)
	before := n.kernelState()
	s := n.start(n.config())
	n.requireServed("at first", "pa", everywhere...)
	tcp, udp := n.dial("tcp", "172.18.0.2:30010"), n.dial("udp", "172.18.0.2:30010")
	change := func(oldnew ...string) error { return s.Apply(t.Context(), n.config(oldnew...)) }
	need.NoError(t, change("PA", "PC")) // endpoints alone
	n.requireServed("with other endpoints", "pc", everywhere...)
	need.NoError(t, change("PA", "PC", "serve:\n", "serve:\n"+more))
	n.requireServed("with another Service", "pc", "10.96.0.15:80", "[fd96::15]:80", "172.18.0.2:30015",
		"[fd18::2]:30015")
	n.requireAnswer("TCP", tcp, "still")
	n.requireAnswer("UDP", udp, "pc")

	n.address(netlink.AddrAdd, "172.18.0.3/24")
	serving := n.kernelState()
	for _, r := range []struct{ from, to, want string }{
		{"addresses:", "mtu: 1400\naddresses:",
			"interface, mtu, clientPorts, state and metrics change only at a restart"},
		{`, "fd18::2"`, "", "services.addresses: IPv4 or IPv6 comes and goes only at a restart"},
		{"172.18.0.2", "172.18.0.99", "services.addresses[0]: 172.18.0.99 is not an address of this machine"},
		{"nodePort: 30010, ", "nodePort: 30010, externalIPs: [10.244.9.9, 10.244.9.8], ",
			"this node has another route to 10.244.9.9"},
	} {
		other := &netlink.Route{LinkIndex: n.lan.Attrs().Index, Dst: kernelAddress(n.T, "10.244.9.9/32").IPNet}
		need.NoError(t, netlink.RouteAdd(other))
		if err := change(r.from, r.to); err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%q: %v, want %q", r.to, err, r.want)
		}
		need.NoError(t, netlink.RouteDel(other))
		n.requireState(r.want, serving)
		n.requireServed(r.want, "pc", everywhere...)
	}

	need.NoError(t, change("serve:\n- {name: web,", "serve:\n"+more+"- {name: web, protocol: sctp,")) // no web any more
	n.requireAnswer("TCP without its Service", tcp, "still")
	if conn, err := net.DialTimeout("tcp", "172.18.0.2:30010", 150*time.Millisecond); err == nil {
		conn.Close()
		t.Error("a Service that was deleted answers")
	}
	led := func() bool {
		return slices.ContainsFunc(kernelRules(t), func(r string) bool {
			return strings.Contains(r, "ipproto 6 dport 30010-30010")
		})
	}
	if !led() {
		t.Error("no rule leads the node port of a living connection to the device")
	}
	tcp.Close()
	need.Eventually(t, patient, "the rule of a node port without Service or connections to go", func() error {
		if _, err := s.mend(t.Context()); err != nil || led() {
			return errors.Join(err, errors.New("it is there"))
		}
		return nil
	})
	n.address(netlink.AddrDel, "172.18.0.3/24")
	s.stop()
	n.requireState("left behind", before)
	if err := change(); err == nil || !strings.Contains(err.Error(), "no longer served") {
		t.Errorf("a change after the end: %v", err)
	}
}

// The status and the page tell what is served, what waits for nobody, and what is wrong.
func TestServerStatus(t *testing.T) {
	n := newNode(t)
	s := n.start(n.config("addresses:", "metrics: 127.0.0.1:8083\naddresses:"))
	n.requireServed("at first", "pa", everywhere...)
	status := s.Status()
	if status.Interface != "culvert1" || status.Mode != "tun" || status.Name != "n1" || status.Fault != "" ||
		status.Table.Created < uint64(len(everywhere)) || status.Traffic.Forwarded == 0 {
		t.Errorf("%+v", status)
	}
	if len(status.Services) != 2 || status.Services[1].Name != "dns" || status.Services[1].Protocol != "udp" ||
		status.Services[1].NodePort != 30010 || status.Services[1].Endpoints != 2 {
		t.Errorf("%+v", status.Services)
	}
	get := func(path string) string {
		t.Helper()
		response, err := http.Get("http://127.0.0.1:8083/" + path)
		need.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		need.NoError(t, err)
		return response.Status + " " + string(text)
	}
	if page := get("metrics"); !strings.Contains(page, "culvert_services 2\n") ||
		strings.Contains(page, "culvert_connections_created_total 0\n") {
		t.Error(page)
	}
	if health := get("healthz"); health != "200 OK ok\n" {
		t.Error(health)
	}
	n.address(netlink.AddrDel, "fd18::2/64")
	n.logged("fd18::2 is not an address of this machine")
	if health := get("healthz"); !strings.HasPrefix(health, "503 ") || !strings.Contains(health, "fd18::2") ||
		!strings.Contains(s.Status().Fault, "fd18::2") {
		t.Errorf("%s; %s", health, s.Status().Fault)
	}
	n.address(netlink.AddrAdd, "fd18::2/64")
	n.logged("the addresses, rules and routes that services need are there again")
	if health := get("healthz"); health != "200 OK ok\n" {
		t.Error(health)
	}
	// An end that does not answer refuses, and is counted.
	need.NoError(t, s.Apply(t.Context(), n.config("addresses:", "metrics: 127.0.0.1:8083\naddresses:", "PA", "")))
	if _, err := dial("tcp", "172.18.0.2:30010"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without endpoints: %v", err)
	}
	if drops := s.Status().Traffic.Drops; !slices.ContainsFunc(drops,
		func(d control.Drop) bool { return d.Reason == "no-backend" }) {
		t.Errorf("%v", drops)
	}
}

// A Server that cannot serve says why, and leaves nothing behind.
func TestServerRefused(t *testing.T) {
	n := newNode(t)
	before := n.kernelState()
	folder := t.TempDir()
	for _, r := range []struct {
		disturb, mend func() error
		from, to      string
		want          string
	}{
		{nil, nil, "172.18.0.2", "172.18.0.99", "services.addresses[0]: 172.18.0.99 is not an address of this machine"},
		{nil, nil, "addresses:", "interface: lan\naddresses:",
			"services.interface: lan exists; stop the culvert node that it belongs to, or choose another name"},
		{nil, nil, "addresses:", "metrics: 192.0.2.1:8083\naddresses:", "services.metrics: "},
		{func() error {
			r := localRule(200)
			r.Table, r.Protocol = table, 3
			return netlink.RuleAdd(r)
		},
			func() error {
				r := localRule(200)
				r.Table, r.Protocol = table, 3
				return netlink.RuleDel(r)
			},
			"", "", "remove it: ip rule del pref 200"},
	} {
		if r.disturb != nil {
			need.NoError(t, r.disturb())
		}
		if s, err := n.open(n.config(r.from, r.to)); s != nil || err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%v, want %q", err, r.want)
		}
		if r.mend != nil {
			need.NoError(t, r.mend())
		}
		n.requireState(r.want, before)
	}
	n.start(n.config("addresses:", "state: "+folder+"\naddresses:"))
	serving := n.kernelState()
	for to, want := range map[string]string{
		"interface: culvert9\naddresses:":     "a culvert node serves Services by culvert1",
		"state: " + folder + "\naddresses:":   "services.state: state: in use",
		"state: " + folder + "/b\naddresses:": "services.interface: culvert1 is held by exe, process",
	} {
		if s, err := n.open(n.config("addresses:", to)); s != nil || err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("beside another: %v, want %q", err, want)
		}
		n.requireState(want, serving)
	}
	n.requireServed("after those", "pa", everywhere...)
}

// The kernel gives client ports to its own connections: --check says so, and a Server that starts
// serves all the same and says so too, as one that runs. Ports that are reserved are not given.
func TestServerLentPorts(t *testing.T) {
	n := newNode(t)
	set := func(name, value string) {
		t.Helper()
		need.NoError(t, os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value+"\n"), 0))
	}
	t.Cleanup(func() { set("ip_local_port_range", "32768 60999"); set("ip_local_reserved_ports", "") })
	const remedy = "sysctl -w net.ipv4.ip_local_reserved_ports=8080,61000-65534,"
	set("ip_local_reserved_ports", "8080")
	set("ip_local_port_range", "1024 65535")
	if err := n.config().Check(); err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("--check: %v", err)
	}
	s := n.start(n.config())
	n.logged(remedy)
	if f := s.Status().Findings; len(f) != 1 || !strings.Contains(f[0].Text, remedy) {
		t.Errorf("%v", f)
	}
	n.requireServed("with a long range", "pa", everywhere...)
	look := func(when string, findings int) {
		t.Helper()
		_, err := s.mend(t.Context()) // as every few seconds
		need.NoError(t, err)
		if f := s.Status().Findings; len(f) != findings {
			t.Errorf("%s: %v", when, f)
		}
	}
	set("ip_local_reserved_ports", "8080,61000-65534")
	look("reserved", 0)
	n.logged("no longer given")
	if err := n.config().Check(); err != nil {
		t.Errorf("--check, reserved: %v", err)
	}
	set("ip_local_reserved_ports", "8080,61000-65000")
	look("not all reserved", 1)
	s.stop()
	set("ip_local_port_range", "32768 60999")
	need.NoError(t, n.config().Check())
}

// What others remove comes back within a second or two: rules, routes, and the devices.
func TestServerRestores(t *testing.T) {
	n := newNode(t)
	s := n.start(n.config("addresses:", "state: "+t.TempDir()+"\nannounce: [203.0.113.7/32]\naddresses:",
		"nodePort: 30010, ", "nodePort: 30010, loadBalancerIPs: [203.0.113.7], "))
	serving := n.kernelState()
	link := func(name string) netlink.Link {
		l, err := netlink.LinkByName(name)
		need.NoError(t, err)
		return l
	}
	for what, remove := range map[string]func(){
		"rules": func() {
			for _, family := range both {
				list, err := rtnl.List(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
				need.NoError(t, err)
				for _, r := range list {
					if r.Priority < 32766 {
						need.NoError(t, netlink.RuleDel(&r))
					}
				}
			}
		},
		"routes":                    func() { n.flush(unix.RT_TABLE_MAIN, both...) },
		"the table":                 func() { n.flush(table, both...) },
		"the device is up":          func() { need.NoError(t, netlink.LinkSetDown(link("culvert1"))) },
		"the VIP device":            func() { need.NoError(t, netlink.LinkDel(link(steer.VIPPrefix+"0"))) },
		"the VIP device is up":      func() { need.NoError(t, netlink.LinkSetDown(link(steer.VIPPrefix+"0"))) },
		"the local table is behind": func() { need.NoError(t, netlink.RuleAdd(localRule(0))) },
	} {
		remove()
		n.requireState(what, serving)
		n.requireServed(what, "pa", append(everywhere, "203.0.113.7:80")...)
	}
	n.logged("another program has changed rules or routes")
	s.mu.Lock()
	defer s.mu.Unlock()
	if made := s.steering.Made; made < 20 {
		t.Errorf("%d changes are counted", made)
	}
}

// Without one of its addresses a node serves the other family, and follows changes. Everything is
// served once the address is back.
func TestServerLostAddress(t *testing.T) {
	for i, gone := range []string{"172.18.0.2/24", "fd18::2/64"} {
		t.Run(gone, func(t *testing.T) {
			n := newNode(t)
			s := n.start(n.config())
			serving := n.kernelState()
			n.address(netlink.AddrDel, gone)
			n.logged(strings.Split(gone, "/")[0] + " is not an address of this machine")
			other, family := []string{"[fd18::2]", "172.18.0.2"}[i], both[1-i]
			n.requireServed("without it", "pa", other+":30010")
			need.NoError(t, s.Apply(t.Context(), n.config("PA", "PC")))
			n.requireServed("with other endpoints", "pc", other+":30010")
			n.flush(table, family)
			n.logged("another program has changed rules or routes")
			n.requireServed("with routes that were removed", "pc", other+":30010")
			need.NoError(t, s.Apply(t.Context(), n.config("serve:\n", "serve:\n"+more)))
			n.requireServed("with another Service", "pc", other+":30015")
			n.address(netlink.AddrAdd, gone)
			need.NoError(t, s.Apply(t.Context(), n.config()))
			n.requireState("with the address", serving)
			n.requireServed("with the address", "pa", everywhere...)
		})
	}
}

// Whoever removes the device ends the Server, which says so and removes its rules.
func TestServerWithoutDevice(t *testing.T) {
	n := newNode(t)
	before := n.kernelState()
	for range 10 { // the reader hears of it by the poller, or by its next read
		s := n.start(n.config("addresses:", "state: "+t.TempDir()+"\naddresses:"))
		need.NoError(t, netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: s.index}}))
		if err := <-s.ended; err == nil || !strings.Contains(err.Error(), "the device was removed by somebody else") {
			t.Errorf("it ends with %v", err)
		}
		s.ended <- nil
		n.requireState("left behind", before)
	}
}

// Await returns when a process's folder is free, or when it is told to.
func TestAwait(t *testing.T) {
	c := &Config{State: t.TempDir(), Interface: DefaultInterface}
	dir, err := state.Open(c.State, c.Interface)
	need.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*awaitPause)
	defer cancel()
	if Await(ctx, c) {
		t.Error("the folder of a process that lives is taken")
	}
	dir.Close()
	if !Await(t.Context(), c) {
		t.Error("the folder of a process that died is not")
	}
}
