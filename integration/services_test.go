package integration

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// A serviceLab is two nodes on a network with a host outside. Their pods are routed: pa and pc on
// the first node, pb on the second. culvert serves Services on the first.
type serviceLab struct {
	*testing.T
	n1, n2, out, a, b, c *peerHost
	lan                  *peerHost
	file                 string
	state                string // "": nothing survives a run
	more                 string // lines of the file below services
	node                 *peerProcess
	repeated             atomic.Int64 // connections for which a server had to repeat its SYN-ACK
}

// serviceAddresses are the addresses of each host, and of the node that serves.
var serviceAddresses = map[string][2]string{
	"n1": {"172.18.0.2", "fd18::2"}, "n2": {"172.18.0.3", "fd18::3"}, "out": {"172.18.0.4", "fd18::4"},
	"pa": {"10.244.1.5", "fd24:1::5"}, "pc": {"10.244.1.6", "fd24:1::6"}, "pb": {"10.244.2.5", "fd24:2::5"},
}

const serviceConfig = `name: n1
services:
  addresses: [172.18.0.2, "fd18::2"]
  pods: [10.244.0.0/16, "fd24::/16"]
  serviceCIDRs: [10.96.0.0/12, "fd96::/112"]
  serve:
`

// served returns one port of a Service for the file. places are the hosts of its endpoints.
func served(name, protocol string, number int, policies string, places ...string) string {
	s := fmt.Sprintf("  - {name: %s, protocol: %s, clusterIP: [10.96.0.%d, \"fd96::%[3]d\"], port: 80, nodePort: %d, %s endpoints: [",
		name, protocol, number, 30000+number, policies)
	for _, place := range places {
		node := map[string]string{"pa": "n1", "pc": "n1", "pb": "n2", "n1": "n1"}[place]
		for _, address := range serviceAddresses[place] {
			s += fmt.Sprintf("{address: %q, port: 8080, node: %s}, ", address, node)
		}
	}
	return s + "]}\n"
}

func newServiceLab(t *testing.T) *serviceLab {
	l := &serviceLab{T: t, file: filepath.Join(t.TempDir(), "node.yaml")}
	lan := newServiceHost(t, "lan")
	l.lan = lan
	lan.ip("link add lan type bridge", "link set lan up")
	for _, h := range []struct {
		at   **peerHost
		name string
	}{{&l.n1, "n1"}, {&l.n2, "n2"}, {&l.out, "out"}} {
		*h.at = newServiceHost(t, h.name)
		join(lan, *h.at, "", serviceAddresses[h.name][0]+"/24", 1500)
		lan.ip("link set " + h.name + " master lan")
		(*h.at).ip("address add " + serviceAddresses[h.name][1] + "/64 dev lan nodad")
	}
	for _, p := range []struct {
		at   **peerHost
		name string
		node *peerHost
	}{{&l.a, "pa", l.n1}, {&l.c, "pc", l.n1}, {&l.b, "pb", l.n2}} {
		*p.at = newServiceHost(t, p.name)
		own := serviceAddresses[p.name]
		join(p.node, *p.at, "169.254.1.1/32", own[0]+"/32", 1500)
		dev := p.node.name
		(*p.at).ip("address add "+own[1]+"/128 dev "+dev+" nodad", "route add 169.254.1.1 dev "+dev,
			"route add default via 169.254.1.1",
			"route add default via fe80::1 dev "+dev)
		p.node.ip("address add fe80::1/64 dev "+p.name+" nodad", "route add "+own[0]+" dev "+p.name+" src "+
			serviceAddresses[p.node.name][0], "route add "+own[1]+" dev "+p.name)
		l.serve(*p.at)
	}
	l.serve(l.n1)
	for _, h := range []struct {
		at       *peerHost
		via4     string
		via6     string
		pods     [2]string
		default4 bool
	}{
		{l.n1, "172.18.0.3", "fd18::3", [2]string{"10.244.2.0/24", "fd24:2::/32"}, false},
		{l.n2, "172.18.0.2", "fd18::2", [2]string{"10.244.1.0/24", "fd24:1::/32"}, false},
		{l.out, "172.18.0.2", "fd18::2", [2]string{"default", "default"}, true},
	} {
		h.at.ip("route add "+h.pods[0]+" via "+h.via4, "route add "+h.pods[1]+" via "+h.via6)
		if !h.default4 {
			h.at.ip("route add default via 172.18.0.4", "route add default via fd18::4")
			h.at.router()
			h.at.sysctl("net/ipv6/conf/all/forwarding", "1")
		}
	}
	return l
}

// newServiceHost makes a host whose IPv6 addresses are usable at once.
func newServiceHost(t *testing.T, name string) *peerHost {
	h := newPeerHost(t, name)
	h.acceptAddresses()
	return h
}

// serve answers at TCP and UDP port 8080 with the host's name and the source that it sees. Over TCP
// it then echoes.
func (l *serviceLab) serve(h *peerHost) {
	l.Helper()
	say := func(a net.Addr) []byte {
		return []byte(h.name + " " + netip.MustParseAddrPort(a.String()).Addr().Unmap().String() + "\n")
	}
	h.accept(l.T, "tcp", "[::]:8080", func(conn net.Conn) {
		if n, err := repeats(conn); err != nil || n > 0 {
			l.repeated.Add(1)
		}
		if _, err := conn.Write(say(conn.RemoteAddr())); err == nil {
			echo(conn)
		}
	})
	var socket net.PacketConn
	err := h.do(func() (err error) {
		socket, err = net.ListenPacket("udp", "[::]:8080")
		return err
	})
	need.NoError(l, err)
	l.Cleanup(func() { socket.Close() })
	go func() {
		for b := make([]byte, 2000); ; {
			_, from, err := socket.ReadFrom(b)
			if err != nil {
				return
			}
			socket.WriteTo(say(from), from)
		}
	}()
}

// start starts culvert node on the first node with the given Services. It may use neither nftables
// nor iptables nor packet sockets.
func (l *serviceLab) start(serve ...string) {
	l.Helper()
	l.write(serve...)
	l.n1.refused = refuseNetfilter
	l.node = l.n1.start(nil, os.Getenv(binaryEnv), "node", "--config", l.file)
	l.node.awaitOutput(l.T, "services are served")
}

func (l *serviceLab) write(serve ...string) {
	l.Helper()
	head := strings.Replace(serviceConfig, "  serve:", l.more+"  serve:", 1)
	if l.state != "" {
		head = strings.Replace(head, "  serve:", "  state: "+l.state+"\n  serve:", 1)
	}
	need.NoError(l, os.WriteFile(l.file, []byte(head+strings.Join(serve, "")), 0o600))
}

const (
	askPatience = 20 * time.Second
	silence     = 150 * time.Millisecond // how long to wait where nobody may answer
)

// ask asks a Service. It returns which server has answered and which source it sees.
func (l *serviceLab) ask(h *peerHost, network, to string) (who, sees string, err error) {
	return l.askThen(h, network, to, func(net.Conn) error { return nil })
}

// connect asks a Service over TCP, and fails also if the client had to repeat its SYN.
func (l *serviceLab) connect(h *peerHost, to string) error {
	_, _, err := l.askThen(h, "tcp", to, func(conn net.Conn) error {
		n, err := repeats(conn)
		if n > 0 {
			err = fmt.Errorf("%d segments repeated", n)
		}
		return err
	})
	return err
}

// repeats returns how many segments a TCP connection has repeated, its SYN or SYN-ACK among them.
func repeats(conn net.Conn) (n uint32, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	if e := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP,
			unix.TCP_INFO)
	}); e != nil || err != nil {
		return 0, errors.Join(e, err)
	}
	return info.Total_retrans, nil
}

// askThen is ask, with a check of the connection after the answer.
func (l *serviceLab) askThen(h *peerHost, network, to string, check func(net.Conn) error) (who,
	sees string, err error) {
	err = h.do(func() error {
		conn, err := net.DialTimeout(network, h.family.of(to), askPatience)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(askPatience))
		if network == "udp" {
			if _, err := conn.Write([]byte("?")); err != nil {
				return err
			}
		}
		b := make([]byte, 100)
		n, err := conn.Read(b)
		who, sees, _ = strings.Cut(strings.TrimSpace(string(b[:n])), " ")
		if err != nil {
			return err
		}
		return check(conn)
	})
	return who, sees, err
}

// TestServices uses Services with real clients: at cluster addresses and node ports, over TCP and
// UDP, from the node, its pods and a host outside, under both policies, over both families, with
// each kind of reverse path filter on all of the node's links.
func TestServices(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		l.start(
			served("web", "tcp", 10, "", "pa", "pb"), served("dns", "udp", 10, "", "pa", "pb"),
			served("near", "tcp", 11, "externalTrafficPolicy: Local, internalTrafficPolicy: Local,", "pa", "pb"),
			served("near-dns", "udp", 11, "externalTrafficPolicy: Local, internalTrafficPolicy: Local,", "pa", "pb"),
			served("host", "tcp", 12, "", "n1"), served("host-dns", "udp", 12, "", "n1"),
			served("nobody", "tcp", 13, ""), served("nobody-dns", "udp", 13, ""),
			served("far", "tcp", 14, "externalTrafficPolicy: Local, internalTrafficPolicy: Local,", "pb"),
		)
		rows := []struct {
			from  *peerHost
			to    int // number of the Service; its node port is 30000 more
			seen  map[string]string
			found map[string]bool
		}{
			{l.c, 10, map[string]string{"pa": "pc", "pb": "pc"}, nil},
			{l.n1, 10, map[string]string{"pa": "n1", "pb": "n1"}, nil},
			{l.out, 10, map[string]string{"pa": "n1", "pb": "n1"}, nil},
			{l.a, 10, map[string]string{"pa": "n1", "pb": "pa"}, nil},
			{l.c, 11, map[string]string{"pa": "pc"}, nil},
			{l.n1, 11, map[string]string{"pa": "n1"}, nil},
			{l.n1, 12, map[string]string{"n1": "n1"}, nil},
			{l.c, 12, map[string]string{"n1": "n1"}, nil},
			{l.c, 30010, map[string]string{"pa": "n1", "pb": "n1"}, nil},
			{l.n1, 30010, map[string]string{"pa": "n1", "pb": "n1"}, nil},
			{l.out, 30010, map[string]string{"pa": "n1", "pb": "n1"}, nil},
			{l.a, 30010, map[string]string{"pa": "n1", "pb": "n1"}, nil},
			{l.b, 30010, map[string]string{"pa": "n1", "pb": "n1"}, nil},
			{l.out, 30011, map[string]string{"pa": "out"}, nil},
			{l.n1, 30011, map[string]string{"pa": "n1", "pb": "n1"}, nil},
			{l.c, 30011, map[string]string{"pa": "pc", "pb": "pc"}, nil},
			{l.out, 30012, map[string]string{"n1": "n1"}, nil},
			{l.n1, 30014, map[string]string{"pb": "n1"}, nil},
		}
		for _, filter := range []string{"0", "1", "2"} {
			for _, n := range []*peerHost{l.n1, l.n2} {
				for _, link := range []string{"all", "lan"} {
					n.sysctl("net/ipv4/conf/"+link+"/rp_filter", filter)
				}
			}
			for i := range rows {
				r := &rows[i]
				for family := range 2 {
					to := net.JoinHostPort([]string{fmt.Sprintf("10.96.0.%d", r.to),
						fmt.Sprintf("fd96::%d", r.to)}[family], "80")
					if r.to > 30000 {
						to = net.JoinHostPort(serviceAddresses["n1"][family], strconv.Itoa(r.to))
					}
					for _, network := range []string{"tcp", "udp"} {
						if network == "udp" && r.to%1000 > 12 {
							continue
						}
						for range 4 {
							who, sees, err := l.ask(r.from, network, to)
							if err != nil {
								t.Fatalf("rp_filter %s: %s asks %s %s: %v", filter, r.from.name, network, to, err)
							}
							if want := serviceAddresses[r.seen[who]][family]; want != sees {
								t.Errorf("rp_filter %s: %s asks %s %s: %s answers and sees %s, want %q", filter,
									r.from.name, network, to, who, sees, want)
							}
							if r.found == nil {
								r.found = map[string]bool{}
							}
							r.found[who] = true
						}
					}
				}
			}
			l.neighbours(filter)
			l.refusedUDP(filter)
		}
		for _, r := range rows {
			if len(r.found) != len(r.seen) {
				t.Errorf("%s asks service %d: only %v answer", r.from.name, r.to, r.found)
			}
		}
		l.unserved()
	}, programs("ip", "ip"))
}

// neighbours checks that traffic to addresses that are no Service's is unaffected.
func (l *serviceLab) neighbours(filter string) {
	l.Helper()
	for _, r := range []struct {
		from *peerHost
		to   string
		sees string
	}{{l.c, "pa", "pc"}, {l.b, "pa", "pb"}, {l.out, "pa", "out"}, {l.a, "pb", "pa"}, {l.out, "n1", "out"},
		{l.c, "n1", "pc"}, {l.n1, "pb", "n1"}} {
		for family, address := range serviceAddresses[r.to] {
			for _, network := range []string{"tcp", "udp"} {
				who, sees, err := l.ask(r.from, network, net.JoinHostPort(address, "8080"))
				if err != nil || who != r.to || sees != serviceAddresses[r.sees][family] {
					l.Errorf("rp_filter %s: %s asks %s: %s answers and sees %s: %v", filter, r.from.name, address,
						who, sees, err)
				}
			}
		}
	}
}

// unserved asks at addresses that nobody serves.
func (l *serviceLab) unserved() {
	l.Helper()
	for _, r := range []struct {
		from    *peerHost
		to      string
		refused bool
	}{
		{l.c, "10.96.0.10:81", true}, {l.n1, "10.96.0.10:81", true}, {l.c, "[fd96::10]:81", true}, // another port
		// no endpoint
		{l.c, "10.96.0.13:80", true}, {l.n1, "10.96.0.13:80", true}, {l.out, "172.18.0.2:30013", true},
		{l.out, "[fd18::2]:30013", true},
		{l.c, "10.96.0.14:80", false}, {l.out, "172.18.0.2:30014", false}, // none on this node
		{l.c, "10.96.0.99:80", false}, {l.n1, "10.96.0.99:80", false}, // nobody's
	} {
		patience := startTimeout
		if !r.refused {
			patience = silence
		}
		err := r.from.do(func() error {
			conn, err := net.DialTimeout("tcp", r.to, patience)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if timeout := net.Error(nil); r.refused != errors.Is(err, unix.ECONNREFUSED) || !r.refused &&
			!(errors.As(err, &timeout) && timeout.Timeout()) {
			l.Errorf("%s asks %s: %v", r.from.name, r.to, err)
		}
	}
}

// refusedUDP asks over UDP where there is no endpoint: the ICMP error must come from the address
// that was asked.
func (l *serviceLab) refusedUDP(filter string) {
	l.Helper()
	for _, from := range []*peerHost{l.out, l.c, l.n1} {
		for _, to := range []string{"10.96.0.13:80", "172.18.0.2:30013", "[fd96::13]:80", "[fd18::2]:30013"} {
			if _, _, err := l.ask(from, "udp", to); !errors.Is(err, unix.ECONNREFUSED) {
				l.Errorf("rp_filter %s: %s asks %s: %v", filter, from.name, to, err)
			}
		}
	}
}

// TestServicesCrash kills culvert node at random moments. The node's own address always answers,
// and there is always a rule for its local table. The next run finds what the previous one has
// left, and the last leaves nothing.
func TestServicesCrash(t *testing.T) { crashServices(t, false) }

// TestServicesCrashKept is TestServicesCrash with a state folder: a connection survives all the
// kills.
func TestServicesCrashKept(t *testing.T) { crashServices(t, true) }

func crashServices(t *testing.T, kept bool) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		before := l.kernelState()
		web, near := served("web", "tcp", 10, "", "pa", "pb"), served("near", "tcp", 11,
			"externalTrafficPolicy: Local,", "pa")
		monitors := l.monitorRules()
		var stream *serviceStream
		if kept {
			l.state = t.TempDir()
			l.start(web, near)
			stream = l.stream(l.out, "tcp", "172.18.0.2:30010")
			l.kept()
			l.kill(l.node)
		}
		stopAsking := l.askHosts()
		l.write(web, near)
		kills := l.killAtRandom()
		l.start(web)
		if who, _, err := l.ask(l.out, "tcp", "172.18.0.2:30010"); err != nil {
			t.Errorf("after the kills: %s: %v", who, err)
		}
		if kept {
			if err := stream.echo(); err != nil {
				t.Errorf("the connection from before the kills: %v", err)
			}
			// A connection that was not written is restored by the client's next packet, because
			// the key that chooses ports and endpoints is the same.
			l.kill(l.node)
			if err := os.Remove(filepath.Join(l.state, "culvert1", "connections")); err != nil {
				t.Error(err)
			}
			l.start(web)
			if err := stream.echo(); err != nil {
				t.Errorf("without records: %v", err)
			}
			l.node.stop()
			l.state = ""
			l.start(web)
		}
		l.node.stop()
		t.Logf("%d kills, %d questions answered", kills, stopAsking())
		if after := l.kernelState(); after != before {
			t.Errorf("left behind:\n%s\nthere was:\n%s", after, before)
		}
		for _, m := range monitors {
			m.stop()
			if err := keepsLocal(m.output()); err != nil {
				t.Error(err)
			}
		}
	}, programs("ip", "ip"))
}

func (l *serviceLab) kill(p *peerProcess) {
	p.cmd.Process.Kill()
	<-p.ended
}

// killAtRandom starts and kills culvert node many times, and returns how often.
func (l *serviceLab) killAtRandom() (kills int) {
	l.Helper()
	kills = 12
	if os.Getenv("CULVERT_LONG") != "" {
		kills = 200
	}
	for range kills {
		p := l.n1.start(nil, os.Getenv(binaryEnv), "node", "--config", l.file)
		select {
		case <-time.After(time.Duration(rand.IntN(120)) * time.Millisecond):
		case <-p.ended:
			l.Fatalf("ends by itself: %s", p.output())
		}
		l.kill(p)
	}
	return kills
}

// monitorRules starts an ip monitor of the first node's rules for each family, and returns once
// both see changes.
func (l *serviceLab) monitorRules() (all []*peerProcess) {
	l.Helper()
	families := []string{"-4", "-6"}
	for _, family := range families {
		all = append(all, l.n1.start(nil, "ip", family, "monitor", "rule"))
	}
	eventually(l.T, "the monitors", func() error {
		for i, family := range families {
			if strings.Contains(all[i].output(), "9999") {
				continue
			}
			l.n1.run("ip", family, "rule", "add", "pref", "9999", "lookup", "main")
			l.n1.run("ip", family, "rule", "del", "pref", "9999")
			return errNotYet
		}
		return nil
	})
	return all
}

// askHosts asks servers by their own addresses, all of which must answer, until stop is called,
// which returns how many did.
func (l *serviceLab) askHosts() (stop func() int64) {
	var asked atomic.Int64
	var probes sync.WaitGroup
	ended := make(chan struct{})
	for _, r := range []struct {
		from *peerHost
		to   string
	}{{l.out, "172.18.0.2:8080"}, {l.out, "[fd18::2]:8080"}, {l.n1, "172.18.0.2:8080"}, {l.c, "10.244.2.5:8080"}} {
		probes.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if _, _, err := l.ask(r.from, "tcp", r.to); err != nil {
					l.Errorf("%s asks %s: %v", r.from.name, r.to, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	return func() int64 {
		close(ended)
		probes.Wait()
		return asked.Load()
	}
}

// keepsLocal reads the output of ip monitor about rules, and returns an error if there was a moment
// without a rule to the local table.
func keepsLocal(events string) error {
	local := map[string]bool{"0": true}
	changes := 0
	for line := range strings.Lines(events) {
		added, deleted := strings.CutPrefix(line, "Deleted ")
		priority, what, _ := strings.Cut(added, ":")
		if !strings.HasPrefix(strings.TrimSpace(what), "from all lookup local") {
			continue
		}
		changes++
		if local[priority] = !deleted; deleted {
			delete(local, priority)
		}
		if len(local) == 0 {
			return fmt.Errorf("no rule for the local table after %q of:\n%s", line, events)
		}
	}
	if changes < 4 {
		return fmt.Errorf("%d changes of the rule for the local table were seen:\n%s", changes, events)
	}
	return nil
}

// kernelState returns the rules, routes and links of the first node, without link-local addresses
// and carrier states, which the kernel determines later.
func (l *serviceLab) kernelState() string {
	l.Helper()
	var all bytes.Buffer
	for _, what := range []string{"-4 rule", "-6 rule", "-4 route show table all", "route show table all", "-br link"} {
		out := strings.ReplaceAll(l.n1.run("ip", strings.Fields(what)...), " linkdown", "")
		if what == "-br link" {
			out = strings.NewReplacer("NO-CARRIER,", "", ",LOWER_UP",
				"").Replace(operationalState.ReplaceAllString(out, "$1"))
		}
		lines := slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool {
			return strings.Contains(line, "fe80:")
		})
		slices.Sort(lines)
		fmt.Fprintf(&all, "%s\n%s\n", what, strings.Join(lines, "\n"))
	}
	return all.String()
}

// operationalState matches the state behind a link's name.
var operationalState = regexp.MustCompile(`(?m)^(\S+\s+)\S+\s+`)
