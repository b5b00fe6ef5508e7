package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/control"
	"culvert/gateway/node/services"
	"culvert/integration/need"
	"culvert/nat"
)

// A source gets only free places, and later sources find room, down to the last place.
func TestCrowd(t *testing.T) {
	c := newConnLimiter(16)
	many := func(a string) (n int, last nat.Reason) {
		for last == nat.ReasonNone {
			if last = c.take(netip.MustParseAddr(a)); last == nat.ReasonNone {
				n++
			}
		}
		return n, last
	}
	for _, r := range []struct {
		from string
		n    int
		last nat.Reason
	}{
		{"198.51.100.1", 8, nat.ReasonConnectionShare}, {"2001:db8::1", 4, nat.ReasonConnectionShare},
		{"2001:db8::ffff", 0, nat.ReasonConnectionShare},
		{"198.51.100.2", 2, nat.ReasonConnectionShare}, {"198.51.100.3", 1, nat.ReasonConnectionShare},
		{"198.51.100.4", 1, nat.ReasonTableFull},
		{"198.51.100.1", 0, nat.ReasonTableFull},
	} {
		if n, last := many(r.from); n != r.n || last != r.last {
			t.Errorf("%s gets %d, and then %v; want %d and %v", r.from, n, last, r.n, r.last)
		}
	}
	for range 8 {
		c.give(netip.MustParseAddr("198.51.100.1"))
	}
	if n, _ := many("198.51.100.5"); n != 4 || c.count() != 12 {
		t.Errorf("of eight places that are free again one source gets %d; there are %d", n, c.count())
	}
}

// The status has what is served, the connections of both protocols, and why others were refused.
func TestStatus(t *testing.T) {
	needHosts(t)
	naming(t, endpointA)
	c := config(unix.IPPROTO_TCP, nil, endpointA)
	c.Services = append(c.Services, config(unix.IPPROTO_UDP, func(s *services.Service) { s.Name = "dns" },
		endpointA).Services...)
	c.Services = append(c.Services, config(unix.IPPROTO_TCP, func(s *services.Service) {
		s.Name, s.NodePort = "none",
			30081
	}, endpointB).Services...)
	s := serving(t, c)
	for _, at := range []struct{ network, port string }{{"tcp", "30080"}, {"udp", "30080"}, {"tcp", "30081"}} {
		conn, err := dialPort(t, at.network, outside[0], at.port)
		if err == nil {
			_, err = conn.Write([]byte("?"))
		}
		if at.port == "30080" { // the other one is reset at any moment
			need.NoError(t, err)
		}
	}
	need.Eventually(t, patience, "the status to tell of all", func() error {
		st := s.Status()
		if st.Mode != "sockets" || len(st.Services) != 3 || st.Fault != "" || st.Table.Connections != 2 ||
			st.Table.Created != 2 || len(st.Traffic.Drops) != 1 ||
			st.Traffic.Drops[0] != (control.Drop{Reason: "tcp no-backend", Packets: 1}) {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// Each cause that can keep a socket from listening is reported under its field, with a remedy.
func TestWhatStandsInTheWay(t *testing.T) {
	needHosts(t)
	taken, err := net.Listen("tcp", "172.18.0.2:30080")
	need.NoError(t, err)
	defer taken.Close()
	c := config(unix.IPPROTO_TCP, nil, endpointA)
	process := fmt.Sprintf("process %d", os.Getpid())
	const field = "services: web: nodePort: 172.18.0.2:30080/tcp"
	if _, err := New(c, false, quiet()); err == nil || !strings.Contains(err.Error(), field) ||
		!strings.Contains(err.Error(), process) {
		t.Errorf("a port that is in use: %v", err)
	}
	if free, err := net.Listen("tcp", "[fd18::2]:30080"); err != nil {
		t.Errorf("what was opened stays: %v", err)
	} else {
		free.Close()
	}
	if all := Check(c); len(all) != 1 || !strings.Contains(all[0].Error(), process) {
		t.Errorf("--check: %v", all)
	}
	c.Services[0].NodePort = 80
	need.WithoutCapabilities(t, func() {
		_, err := New(c, false, quiet())
		if err == nil || !strings.Contains(err.Error(), "nodePort: 172.18.0.2:80/tcp needs CAP_NET_BIND_SERVICE") ||
			!strings.Contains(err.Error(), "ip_unprivileged_port_start=80") {
			t.Errorf("a port below 1024: %v", err)
		}
	})
	c.Services[0].NodePort, c.Services[0].ExternalIPs = 0, []netip.Addr{netip.MustParseAddr("203.0.113.7")}
	if _, err := New(c, false, quiet()); err == nil || !strings.Contains(err.Error(),
		"services: web: externalIPs: 203.0.113.7:80/tcp is not an address of this machine") {
		t.Errorf("an external address of another machine: %v", err)
	}
	c.Addresses = []netip.Addr{netip.MustParseAddr("172.18.0.99")}
	if _, err := New(c, false, quiet()); err == nil || !strings.Contains(err.Error(),
		"services.addresses[0]: 172.18.0.99 is not an address of this machine") {
		t.Errorf("an address of another machine: %v", err)
	}
}

// A limit of descriptors that leaves none is reported as such.
func TestNoDescriptorLeft(t *testing.T) {
	var was unix.Rlimit
	need.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	need.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: was.Max}))
	_, err := (&Server{}).open(&services.Place{Service: "web", Field: "nodePort", Protocol: unix.IPPROTO_UDP,
		At: netip.MustParseAddrPort("127.0.0.1:30080")}, listenerAt)
	need.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	if err == nil || !strings.Contains(err.Error(),
		"services: web: nodePort: 127.0.0.1:30080/udp: this process has no descriptor left; raise") {
		t.Error(err)
	}
}

// A tolerant server serves the rest, reports what is missing, and serves that as soon as it can.
func TestTolerant(t *testing.T) {
	needHosts(t)
	naming(t, endpointA)
	taken, err := net.Listen("tcp", "172.18.0.2:30080")
	need.NoError(t, err)
	defer taken.Close()
	s, end := tolerating(t, config(unix.IPPROTO_TCP, nil, endpointA))
	if name, err := who(t, outside[1]); err != nil || name != endpointA[1] {
		t.Errorf("%q answers: %v", name, err)
	}
	if fault := s.fault(); !strings.Contains(fault, "172.18.0.2:30080/tcp is in use") {
		t.Errorf("health: %q", fault)
	}
	if !strings.Contains(s.metrics(), "culvert_sockets_missing 1\n") {
		t.Error("the metrics miss nothing")
	}
	taken.Close()
	s.again()
	if name, err := who(t, outside[0]); err != nil || name != endpointA[0] {
		t.Errorf("%q answers: %v", name, err)
	}
	if fault := s.fault(); fault != "" {
		t.Errorf("health: %q", fault)
	}
	end()
	if err := s.Apply(t.Context(), config(unix.IPPROTO_TCP, nil, endpointA)); err == nil {
		t.Error("a server that has ended serves again")
	}
	if _, err := who(t, outside[0]); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after the end: %v", err)
	}
}

// To find the process that occupies a port, all descriptors of the machine are read: a tolerant
// server starts that once, and does not wait for it.
func TestWhoHasThePortIsAskedOnce(t *testing.T) {
	needHosts(t)
	naming(t, endpointA)
	taken, err := net.Listen("tcp", "172.18.0.2:30080")
	need.NoError(t, err)
	defer taken.Close()
	asked, found := make(chan struct{}, 10), make(chan string)
	defer func(before func(*services.Place) string) { listenerAt = before }(listenerAt)
	listenerAt = func(*services.Place) string {
		asked <- struct{}{}
		return <-found
	}
	s, end := tolerating(t, config(unix.IPPROTO_TCP, nil, endpointA))
	<-asked
	s.again()
	if name, err := who(t, outside[1]); err != nil || name != endpointA[1] {
		t.Errorf("%q answers: %v", name, err)
	}
	if fault := s.fault(); !strings.Contains(fault, "is in use by a process that is being looked for") {
		t.Errorf("health: %q", fault)
	}
	found <- "sshd, process 7"
	for deadline := time.Now().Add(time.Minute); !strings.Contains(s.fault(),
		"is in use by sshd, process 7"); s.again() {
		if time.Now().After(deadline) {
			t.Fatalf("health: %q", s.fault())
		}
	}
	if len(asked) > 0 {
		t.Errorf("asked %d times more", len(asked))
	}
	end()
}

// If the machine loses an address, a tolerant server continues at the other one, follows changes of
// its endpoints there, and reports what is missing until it is back.
func TestLostAddress(t *testing.T) {
	needHosts(t)
	naming(t, endpointA, endpointC)
	s, end := tolerating(t, config(unix.IPPROTO_TCP, nil, endpointA))
	lose(t, nodeAt[1])
	s.again()
	if err := s.Apply(t.Context(), config(unix.IPPROTO_TCP, nil, endpointC)); err != nil {
		t.Error(err)
	}
	if name, err := who(t, outside[0]); err != nil || name != endpointC[0] {
		t.Errorf("at the address that there is %q answers: %v", name, err)
	}
	if fault := s.fault(); !strings.Contains(fault,
		"services.addresses[1]: fd18::2 is not an address of this machine") {
		t.Errorf("health: %q", fault)
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	need.NoError(t, err)
	for _, a := range addresses {
		if !a.IP.IsLoopback() {
			lose(t, a.IP.String())
		}
	}
	s.again()
	if fault := s.fault(); !strings.Contains(fault,
		"services.addresses[0]: 172.18.0.2 is not an address of this machine") {
		t.Errorf("health without any address: %q", fault)
	}
	needHosts(t)
	s.again()
	for family, from := range outside {
		if name, err := who(t, from); err != nil || name != endpointC[family] {
			t.Errorf("with both, %q answers %s: %v", name, from, err)
		}
	}
	if fault := s.fault(); fault != "" {
		t.Errorf("health: %q", fault)
	}
	end()
}

// A tolerant server starts without an address that its machine lacks, and serves it once it is
// there.
func TestBeginWithoutAddress(t *testing.T) {
	needHosts(t)
	naming(t, endpointA)
	lose(t, nodeAt[1])
	s, end := tolerating(t, config(unix.IPPROTO_TCP, nil, endpointA))
	if name, err := who(t, outside[0]); err != nil || name != endpointA[0] {
		t.Errorf("at the address that there is %q answers: %v", name, err)
	}
	if fault := s.fault(); !strings.Contains(fault,
		"services.addresses[1]: fd18::2 is not an address of this machine") {
		t.Errorf("health: %q", fault)
	}
	needHosts(t)
	s.again()
	if name, err := who(t, outside[1]); err != nil || name != endpointA[1] {
		t.Errorf("with both, %q answers: %v", name, err)
	}
	if fault := s.fault(); fault != "" {
		t.Errorf("health: %q", fault)
	}
	end()
}

// A configuration that cannot be applied changes nothing.
func TestRefusedApply(t *testing.T) {
	needHosts(t)
	naming(t, endpointA)
	s := serving(t, config(unix.IPPROTO_TCP, nil, endpointA))
	taken, err := net.Listen("tcp", "172.18.0.2:30081")
	need.NoError(t, err)
	defer taken.Close()
	for name, change := range map[string]func(*services.Config){
		"port": func(c *services.Config) { c.Services[0].NodePort = 30081 },
		"one more": func(c *services.Config) {
			c.Services[0].ProxyProtocol = true
			c.Services = append(c.Services, c.Services[0])
			c.Services[1].Name, c.Services[1].NodePort = "more", 30081
		},
		"mode":     func(c *services.Config) { c.Mode = services.TUN },
		"families": func(c *services.Config) { c.Addresses = c.Addresses[:1] },
		"engine":   func(c *services.Config) { c.Services[0].Endpoints[0].Weight = -1 },
	} {
		c := config(unix.IPPROTO_TCP, nil, endpointA)
		change(c)
		if err := s.Apply(t.Context(), c); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if who, err := who(t, outside[0]); err != nil || who != endpointA[0] {
			t.Errorf("%s: %q answers: %v", name, who, err)
		}
	}
}

// The page counts what has happened, under valid Prometheus names.
func TestMetrics(t *testing.T) {
	needHosts(t)
	naming(t, endpointA)
	s := serving(t, config(unix.IPPROTO_TCP, nil, endpointA))
	c, err := dial(t, "tcp", outside[0])
	need.NoError(t, err)
	if _, err := heard(c); err != nil {
		t.Fatal(err)
	}
	text := s.metrics()
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	for _, want := range []string{"culvert_services 1\n", "culvert_sockets 2\n", "culvert_sockets_missing 0\n",
		"culvert_connections{protocol=\"tcp\"} 1\n",
		"culvert_connections_created_total{protocol=\"tcp\"} 1\n",
		"culvert_connections_refused_total{protocol=\"udp\",reason=\"table-full\"} 0\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
