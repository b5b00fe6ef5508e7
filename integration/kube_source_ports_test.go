package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/control"
	"culvert/integration/need"
)

// What a server sees of a client's source port, the less the worse.
const (
	seenOther = iota
	seenPrivileged
	seenOwn
)

// startKubeProxyItself starts kube-proxy on the second node.
func (l *kubeAnnounceLab) startKubeProxyItself() {
	l.Helper()
	l.n2.start(nil, filepath.Join(os.Getenv(kubeAssetsEnv), "kube-proxy"), "--kubeconfig="+l.api.kubeconfig(adminToken),
		"--proxy-mode=nftables",
		"--hostname-override=n2", "--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0",
		"--healthz-bind-address=127.0.0.1:10256")
}

// service makes a Service at a cluster address and a node port, over TCP and UDP, with endpoints on
// these hosts.
func (l *kubeAnnounceLab) service(name, cluster, policy string, nodePort, target int, hosts ...*peerHost) {
	l.Helper()
	ports, at, endpoints := []object{}, []object{}, []object{}
	for _, protocol := range []string{"TCP", "UDP"} {
		of := strings.ToLower(protocol)
		ports = append(ports, object{"name": of, "port": 80, "nodePort": nodePort, "protocol": protocol})
		at = append(at, object{"name": of, "port": target, "protocol": protocol})
	}
	for _, h := range hosts {
		endpoints = append(endpoints, object{"addresses": []string{serviceAddresses[h.name][0]},
			"nodeName": map[*peerHost]string{l.a: "n1", l.b: "n2"}[h]})
	}
	l.apply(object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name, "namespace": "default"},
		"spec": object{"type": "NodePort", "clusterIP": cluster, "externalTrafficPolicy": policy, "ports": ports}})
	l.apply(object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": object{"name": name + "-1", "namespace": "default",
			"labels": object{"kubernetes.io/service-name": name}},
		"ports": at, "endpoints": endpoints})
}

// tellPorts answers with the client's source port. Over UDP the answer goes to the port that the
// request names: so do DHCP servers, and SIP without rport.
func (l *kubeAnnounceLab) tellPorts(h *peerHost, port int) {
	l.Helper()
	h.accept(l.T, "tcp", fmt.Sprintf("[::]:%d", port), func(conn net.Conn) {
		fmt.Fprint(conn, netip.MustParseAddrPort(conn.RemoteAddr().String()).Port())
	})
	var socket net.PacketConn
	need.NoError(l, h.do(func() (err error) {
		socket, err = net.ListenPacket("udp", fmt.Sprintf("[::]:%d", port))
		return err
	}))
	l.Cleanup(func() { socket.Close() })
	go func() {
		for b := make([]byte, 100); ; {
			n, from, err := socket.ReadFrom(b)
			if err != nil {
				return
			}
			to, port := *from.(*net.UDPAddr), 0
			seen := to.Port
			if _, err := fmt.Sscan(string(b[:n]), &port); err == nil && port != 0 {
				to.Port = port
			}
			socket.WriteTo(fmt.Append(nil, seen), &to)
		}
	}()
}

// sees asks from a source port, and returns the one that the server sees; named: the server answers
// to the port that the client names.
func (l *kubeAnnounceLab) sees(h *peerHost, network string, port int, to string, named bool) (seen int, err error) {
	err = h.do(func() error {
		d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{Port: port}}
		if network == "udp4" {
			d.LocalAddr = &net.UDPAddr{Port: port}
		}
		d.Control = func(_, _ string, conn syscall.RawConn) (err error) {
			e := conn.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			})
			return errors.Join(e, err)
		}
		conn, err := d.Dial(network, to)
		if err != nil {
			return err
		}
		defer conn.Close()
		request := "0"
		if named {
			request = fmt.Sprint(port)
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetLinger(0) // nothing waits at the port afterwards
		} else if _, err := conn.Write([]byte(request)); err != nil {
			return err
		}
		conn.SetDeadline(time.Now().Add(2 * time.Second))
		b := make([]byte, 100)
		n, err := conn.Read(b)
		if err == nil {
			_, err = fmt.Sscan(string(b[:n]), &seen)
		}
		return err
	})
	return seen, err
}

// TestKubeSourcePorts has culvert on one node and kube-proxy on another one of the same API server.
// Clients bind to ports as NFS, DHCP and SIP do: servers see on culvert's node at least what they
// see on kube-proxy's, and what they send to a client's own port comes from the Service.
func TestKubeSourcePorts(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newKubeAnnounceLab(t)
		const target = 2049
		l.tellPorts(l.a, target)
		l.tellPorts(l.b, target)
		l.service("here", "10.96.0.31", "Cluster", 30031, target, l.a)
		l.service("there", "10.96.0.32", "Cluster", 30032, target, l.b)
		l.service("local", "10.96.0.33", "Local", 30033, target, l.a, l.b)
		l.startKubeProxyItself()
		l.join(l.n1)
		type way struct {
			from *peerHost
			to   string
		}
		for _, who := range []struct {
			name          string
			culvert, kube way
		}{
			{"a pod", way{l.c, "10.96.0.32:80"}, way{l.b, "10.96.0.31:80"}},
			{"the node", way{l.n1, "10.96.0.32:80"}, way{l.n2, "10.96.0.31:80"}},
			{"a host outside", way{l.out, "172.18.0.2:30032"}, way{l.out, "172.18.0.3:30031"}},
			{"a host outside, policy Local", way{l.out, "172.18.0.2:30033"}, way{l.out, "172.18.0.3:30033"}},
		} {
			for _, w := range []way{who.culvert, who.kube} {
				for _, network := range []string{"tcp4", "udp4"} {
					eventually(t, w.to+" is served", func() error {
						_, err := l.sees(w.from, network, 0, w.to, false)
						return err
					})
				}
			}
			for _, c := range []struct {
				network string
				port    int
			}{{"tcp4", 700}, {"udp4", 67}, {"udp4", 5060}} {
				class := func(w way) (seen, is int) {
					seen, err := l.sees(w.from, c.network, c.port, w.to, false)
					switch {
					case err != nil:
						t.Errorf("%s asks %s from %s port %d: %v", who.name, w.to, c.network, c.port, err)
					case seen == c.port:
						is = seenOwn
					case seen < 1024:
						is = seenPrivileged
					}
					return seen, is
				}
				seen, is := class(who.culvert)
				want, least := class(who.kube)
				t.Logf("%s, %s port %d: the server sees %d on culvert's node, %d on kube-proxy's", who.name, c.network,
					c.port, seen, want)
				if is < least || c.port < 1024 && is < seenPrivileged {
					t.Errorf("%s, %s port %d: the server sees %d, with kube-proxy %d", who.name, c.network,
						c.port, seen, want)
				}
				if c.network != "udp4" || least != seenOwn {
					continue
				}
				for _, w := range []way{who.culvert, who.kube} {
					if _, err := l.sees(w.from, c.network, c.port, w.to, true); err != nil {
						t.Errorf("%s, port %d: no answer of %s to the port itself: %v", who.name, c.port, w.to, err)
					}
				}
			}
		}
	}, kubernetes, kubeProxyItself)
}

// numbered puts a number into a text that has a place for it.
func numbered(text string, number int) string {
	return strings.Replace(text, "%d", fmt.Sprint(number), 1)
}

// fails opens connections at once, holds them open, and returns how many got no answer. to may have
// a place for the number of the connection.
func (l *kubeAnnounceLab) fails(from *peerHost, connections int, to string) int {
	failed := make(chan bool)
	var held sync.WaitGroup
	held.Add(connections)
	for i := range connections {
		go func() {
			conn, err := from.dialWithin(2*time.Second, "tcp4", numbered(to, i+1))
			held.Done()
			held.Wait()
			if err == nil {
				conn.Close()
			}
			failed <- err != nil
		}()
	}
	n := 0
	for range connections {
		if <-failed {
			n++
		}
	}
	return n
}

// TestKubeLentPorts gives the kernel of culvert's node, and of kube-proxy's beside it, nearly all
// ports for connections of the nodes themselves. culvert starts and its status has the line that
// reserves its ports. With that line every connection of both nodes succeeds.
func TestKubeLentPorts(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newKubeAnnounceLab(t)
		const target, connections = 2049, 254
		for _, h := range []*peerHost{l.a, l.b, l.out} {
			l.tellPorts(h, target)
		}
		l.service("here", "10.96.0.31", "Cluster", 30031, target, l.a)
		l.service("there", "10.96.0.32", "Cluster", 30032, target, l.b)
		for _, h := range []*peerHost{l.n1, l.n2} {
			h.sysctl("net/ipv4/ip_local_port_range", "1024 65535")
		}
		l.startKubeProxyItself()
		folder := t.TempDir()
		file, flags := l.given(l.n1, "services: {pods: [10.244.0.0/16], serviceCIDRs: [10.96.0.0/16]}\n")
		l.nodes["n1"] = l.n1.start(nil, "env",
			append([]string{"XDG_RUNTIME_DIR=" + folder, os.Getenv(binaryEnv), "node", "--config", file}, flags...)...)
		l.says(l.n1, "services are served", 1)
		var reserve string
		eventually(t, "culvert status names the remedy", func() error {
			var n control.NodeStatus
			out, err := l.n1.try("", "env", "XDG_RUNTIME_DIR="+folder, os.Getenv(binaryEnv), "status", "-o", "json")
			if err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(out), &n); err != nil {
				return err
			}
			for _, f := range n.Findings {
				_, line, _ := strings.Cut(f.Text, "sysctl -w net.ipv4.ip_local_reserved_ports=")
				if reserve, _, _ = strings.Cut(line, ", "); f.Cause == "client-ports" && reserve != "" {
					return nil
				}
			}
			return fmt.Errorf("findings: %v", n.Findings)
		})
		const outside = "192.0.2.%d:2049" // the kernel chooses ports near each other for one address
		l.out.ip("route add local 192.0.2.0/24 dev lo")
		for _, h := range []*peerHost{l.n1, l.n2} {
			h.ip("route add 192.0.2.0/24 via " + serviceAddresses[l.out.name][0])
		}
		ways := []struct {
			from *peerHost
			to   string
		}{{l.n1, outside}, {l.n1, "10.96.0.32:80"}, {l.n2, outside}, {l.n2, "10.96.0.31:80"}}
		for _, w := range ways {
			eventually(t, w.to+" is served", func() error {
				_, err := l.sees(w.from, "tcp4", 0, numbered(w.to, 1), false)
				return err
			})
		}
		n := l.fails(l.n1, connections, outside)
		if t.Logf("without the line, %d of %d connections of culvert's node fail", n, connections); n == 0 {
			t.Error("all succeed without the line")
		}
		for _, h := range []*peerHost{l.n1, l.n2} {
			h.sysctl("net/ipv4/ip_local_reserved_ports", reserve)
		}
		for _, w := range ways {
			if n := l.fails(w.from, connections, w.to); n > 0 {
				t.Errorf("with the line, %d of %d connections of %s to %s fail", n, connections, w.from.name, w.to)
			}
		}
	}, kubernetes, kubeProxyItself)
}
