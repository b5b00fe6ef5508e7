package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// bySocket returns one port of a Service for the file of a node with mode: sockets. places are the
// hosts of its endpoints.
func bySocket(name, protocol string, nodePort, port int, more string, places ...string) string {
	s := fmt.Sprintf("  - {name: %s, protocol: %s, port: 80, nodePort: %d, %s endpoints: [", name, protocol,
		nodePort, more)
	for _, place := range places {
		node := map[string]string{"pa": "n1", "pb": "n2"}[place]
		for _, address := range serviceAddresses[place] {
			s += fmt.Sprintf("{address: %q, port: %d, node: %s}, ", address, port, node)
		}
	}
	return s + "]}\n"
}

// writeReadable writes a file that any user may read.
func writeReadable(t *testing.T, file, text string) {
	t.Helper()
	need.NoError(t, os.Chmod(filepath.Dir(file), 0o711))
	need.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(file)), 0o711))
	need.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

// startUnprivileged starts culvert node as a user without any capability, and returns once it
// serves.
func startUnprivileged(h *peerHost, file string, flags ...string) *peerProcess {
	h.t.Helper()
	p := h.start(&syscall.Credential{Uid: unprivilegedUID, Gid: unprivilegedUID}, os.Getenv(binaryEnv),
		append([]string{"node", "--config", file}, flags...)...)
	p.awaitOutput(h.t, "services are served by sockets")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil || !bytes.Contains(status, []byte("CapEff:\t0000000000000000\n")) ||
		!bytes.Contains(status, []byte("CapPrm:\t0000000000000000\n")) {
		h.t.Fatalf("it has capabilities (%v):\n%s", err, status)
	}
	return p
}

// socketServices is the file of a node that serves by sockets; web are the endpoints of two of its
// Services.
func socketServices(web ...string) string {
	const local = "externalTrafficPolicy: Local,"
	return strings.Replace(serviceConfig[:strings.Index(serviceConfig, "  serviceCIDRs")], "services:\n",
		"services:\n  mode: sockets\n", 1) + "  serve:\n" +
		bySocket("web", "tcp", 30010, 8080, "", web...) + bySocket("dns", "udp", 30010, 8080, "", web...) +
		bySocket("near", "tcp", 30011, 8080, local, "pa", "pb") + bySocket("near-dns", "udp", 30011, 8080,
		local, "pa", "pb") +
		bySocket("far", "tcp", 30014, 8080, local, "pb") + bySocket("nobody", "tcp", 30013, 8080, "") +
		bySocket("hash", "tcp", 30015, 8085, "proxyProtocol: v2,", "pa", "pb")
}

// TestServicesBySockets serves node ports as a user without any capability, over TCP, UDP and both
// families: to a host outside, to pods and to the node itself, with the policies and PROXY protocol
// headers of a device, and large streams. Nothing in the kernel changes.
func TestServicesBySockets(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		for _, h := range []*peerHost{l.a, l.b} {
			h.acceptHeaded(t, "[::]:8085", func(conn net.Conn) {
				answerHash(conn)
				fmt.Fprintf(conn, " %s", toldOf(conn))
			})
		}
		writeReadable(t, l.file, socketServices("pa", "pb"))
		before := l.kernelState()
		l.node = startUnprivileged(l.n1, l.file)
		l.askNodePorts()
		for port, want := range map[int]error{30013: unix.ECONNREFUSED, 30014: unix.ECONNRESET} {
			if who, _, err := l.ask(l.out, "tcp", nodePort(0, port)); !errors.Is(err, want) {
				t.Errorf("port %d: %q answers: %v, want %v", port, who, err, want)
			}
		}
		l.sendLarge()
		stream := l.stream(l.out, "tcp", nodePort(0, 30010))
		l.changeEndpoints(stream)
		if after := l.kernelState(); after != before {
			t.Errorf("rules, routes or links have changed:\n%s\nthere was:\n%s", after, before)
		}
		out, err := l.n1.try("", os.Getenv(binaryEnv), "node", "--config", l.file, "--check")
		if name := fmt.Sprintf("process %d", l.node.cmd.Process.Pid); err != nil ||
			!strings.Contains(out, "nodePort: 172.18.0.2:30010/tcp is in use by culvert, "+name) {
			t.Errorf("--check beside who serves: %v: %s", err, out)
		}
		l.node.stop()
		if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("at the end the connection sees %v", err)
		}
		if !strings.Contains(l.node.output(), "services are no longer served") {
			t.Errorf("it ends otherwise than it should:\n%s", l.node.output())
		}
	}, programs("ip", "ip"))
}

func nodePort(family, port int) string {
	return net.JoinHostPort(serviceAddresses["n1"][family], strconv.Itoa(port))
}

// askNodePorts asks under both policies: the right endpoints answer, which see the node.
func (l *serviceLab) askNodePorts() {
	l.Helper()
	for _, r := range []struct {
		from *peerHost
		port int
		want string // the servers that answer
	}{
		{l.out, 30010, "pa pb"}, {l.c, 30010, "pa pb"}, {l.a, 30010, "pa pb"}, {l.n1, 30010, "pa pb"},
		{l.out, 30011, "pa"}, {l.c, 30011, "pa pb"}, {l.n1, 30011, "pa pb"},
	} {
		for family := range 2 {
			for _, network := range []string{"tcp", "udp"} {
				at, got := nodePort(family, r.port), map[string]bool{}
				for range questions {
					who, sees, err := l.ask(r.from, network, at)
					if err != nil || sees != serviceAddresses["n1"][family] {
						l.Fatalf("%s asks %s %s: %q answers and sees %q: %v", r.from.name, network, at, who, sees, err)
					}
					got[who] = true
				}
				for _, who := range strings.Fields(r.want) {
					if !got[who] || len(got) != len(strings.Fields(r.want)) {
						l.Errorf("%s asks %s %s: %v answer, want %s", r.from.name, network, at, got, r.want)
					}
				}
			}
		}
	}
}

// sendLarge sends large streams to servers that are told of the client.
func (l *serviceLab) sendLarge() {
	l.Helper()
	for family := range 2 {
		for i := range 4 { // either endpoint may answer
			size, at := int64(1<<20), nodePort(family, 30015)
			if i == 0 {
				size = 100 << 20
			}
			rate, err := l.out.hashTold(netip.MustParseAddrPort(at), size)
			if err != nil {
				l.Error(err)
			}
			if i == 0 {
				l.Logf("%d bytes to %s: %.0f MB/s", size, at, rate/1e6)
			}
		}
	}
}

// changeEndpoints leaves one endpoint, then the other: a TCP connection stays, and UDP follows.
func (l *serviceLab) changeEndpoints(stream *serviceStream) {
	l.Helper()
	questions := l.stream(l.out, "udp", nodePort(0, 30010))
	for _, only := range []string{"pa", "pb"} {
		applied := strings.Count(l.node.output(), "configuration applied")
		writeReadable(l.T, l.file, socketServices(only))
		l.node.cmd.Process.Signal(unix.SIGHUP)
		await(l.T, "the other endpoint", func() bool {
			return strings.Count(l.node.output(), "configuration applied") != applied
		})
		if err := stream.echo(); err != nil {
			l.Errorf("with %s alone, the connection to %s: %v", only, stream.who, err)
		}
		if who, err := questions.hear(); err != nil || who != only {
			l.Errorf("with %s alone, %s answers: %v", only, who, err)
		}
	}
}

// hashTold is hash for a server that also returns the client that its header names.
func (h *peerHost) hashTold(to netip.AddrPort, size int64) (rate float64, err error) {
	c, err := h.dial("tcp", to.String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	own := c.LocalAddr().(*net.TCPAddr)
	rate, got, want, err := hashOver(c, size)
	if err != nil {
		return 0, err
	}
	if want += fmt.Sprintf(" %s %d %s %d", own.IP, own.Port, to.Addr(), to.Port()); got != want {
		err = fmt.Errorf("%d bytes to %s: the answer is %q, want %q", size, to, got, want)
	}
	return rate, err
}

// TestServicesAcrossClusters serves endpoints of both clusters at one node port of rome, with a
// device and with sockets. Each endpoint gets its share of clients, whose addresses it is told, and
// answers come back through the node that was asked.
func TestServicesAcrossClusters(t *testing.T) {
	beside(t, func(t *testing.T) {
		c := newMilan(t)
		c.addRome()
		client := newPeerHost(t, "client")
		join(c.romeNode, client, "203.0.113.1/24", "203.0.113.5/24", 1500)
		for name, pod := range map[string]*peerHost{"rome": c.romePod, "milan": c.milanPod} {
			tell := func(conn net.Conn) { fmt.Fprintf(conn, "%s %s", name, conn.RemoteAddr().(*net.TCPAddr).IP) }
			pod.accept(t, "tcp", ":8080", tell)
			pod.acceptHeaded(t, ":8085", tell)
		}
		file := filepath.Join(t.TempDir(), "node.yaml")
		for _, mode := range []string{"tun", "sockets"} {
			t.Run(mode, func(t *testing.T) {
				const endpoints = "{address: 10.0.1.5, port: %d}, {address: 10.61.1.5, port: %[1]d, weight: 3}"
				writeReadable(t, file,
					fmt.Sprintf("name: rome-1\nservices:\n  mode: %s\n  addresses: [172.18.0.2, 203.0.113.1]\n  pods: [10.0.0.0/16]\n  serve:\n"+
						"  - {name: plain, port: 80, nodePort: 30080, endpoints: [%s]}\n  - {name: told, port: 80, nodePort: 30085, proxyProtocol: v2, endpoints: [%s]}\n",
						mode, fmt.Sprintf(endpoints, 8080), fmt.Sprintf(endpoints, 8085)))
				var node *peerProcess
				if mode == "sockets" {
					node = startUnprivileged(c.romeNode, file)
				} else {
					node = c.romeNode.start(nil, os.Getenv(binaryEnv), "node", "--config", file)
					node.awaitOutput(t, "services are served")
				}
				defer node.stop()
				const n, share = 400, 0.75
				for _, port := range []string{"30080", "30085"} {
					got, seen := map[string]int{}, map[string]bool{}
					for range n {
						conn, err := client.dial("tcp", "203.0.113.1:"+port)
						need.NoError(t, err)
						conn.SetDeadline(time.Now().Add(startTimeout))
						answer, err := io.ReadAll(conn)
						conn.Close()
						who, sees, _ := strings.Cut(string(answer), " ")
						if err != nil || sees == "" {
							t.Fatalf("%q is answered: %v", answer, err)
						}
						got[who]++
						seen[who+" sees "+sees] = true
					}
					// Five times the standard deviation of the binomial distribution.
					if d := float64(got["milan"]) - share*n; got["rome"]+got["milan"] != n ||
						d*d > 25*n*share*(1-share) {
						t.Errorf("port %s: %v answer %d clients, with weights 1 and 3", port, got, n)
					}
					t.Logf("port %s: %v, %v", port, got, seen)
					if port == "30085" && (len(seen) != 2 || !seen["rome sees 203.0.113.5"] ||
						!seen["milan sees 203.0.113.5"]) {
						t.Errorf("who is told of the client: %v", seen)
					}
					if port == "30080" && (len(seen) != 2 || seen["milan sees 203.0.113.5"] ||
						seen["rome sees 203.0.113.5"]) {
						t.Errorf("answers need not come back through the node: %v", seen)
					}
				}
			})
		}
	}, programs("ip", "ip"))
}
