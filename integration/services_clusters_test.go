package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"

	"culvert/integration/lab"
)

// A servingCluster is one of two clusters whose node serves Services with endpoints in both.
type servingCluster struct {
	name              string
	node, pod, client *peerHost
	address           string // of the node, which clients have in common with it
	farPod, seenAs    string // the other cluster's pod as this one sees it; what that pod sees of this cluster
	process           *peerProcess
}

// The Services of each cluster, whose node is NODE and has the addresses ADDRESS and 203.0.113.1. The other cluster's pod is FAR.
const clusterServices = `name: NODE
services:
  addresses: [ADDRESS, 203.0.113.1]
  pods: [10.0.0.0/16]
  serviceCIDRs: [10.96.0.0/12]
  announce: [203.0.113.77/32]
  serve:
  - {name: web, clusterIP: 10.96.0.10, port: 80, nodePort: 30080, externalIPs: [198.51.100.10], loadBalancerIPs: [203.0.113.77],
     endpoints: [{address: 10.0.1.5, port: 8080, node: NODE}, {address: FAR, port: 8080}]}
  - {name: web-udp, protocol: udp, clusterIP: 10.96.0.10, port: 80, nodePort: 30080, externalIPs: [198.51.100.10], loadBalancerIPs: [203.0.113.77],
     endpoints: [{address: 10.0.1.5, port: 8080, node: NODE}, {address: FAR, port: 8080}]}
  - {name: sticky, clusterIP: 10.96.0.11, port: 80, nodePort: 30081, affinity: clientIP,
     endpoints: [{address: 10.0.1.5, port: 8080, node: NODE}, {address: FAR, port: 8080}]}
  - {name: near, clusterIP: 10.96.0.12, port: 80, nodePort: 30082, externalTrafficPolicy: Local, internalTrafficPolicy: Local,
     endpoints: [{address: 10.0.1.5, port: 8080, node: NODE}, {address: FAR, port: 8080}]}
  - {name: far, clusterIP: 10.96.0.13, port: 80, nodePort: 30083, externalTrafficPolicy: Local, internalTrafficPolicy: Local,
     endpoints: [{address: FAR, port: 8080}]}
  - {name: nobody, clusterIP: 10.96.0.14, port: 80, nodePort: 30084}
  - {name: told, clusterIP: 10.96.0.15, port: 80, nodePort: 30085, proxyProtocol: v2,
     endpoints: [{address: 10.0.1.5, port: 8085, node: NODE}, {address: FAR, port: 8085}]}
`

// TestServicesOfTwoClusters has the nodes of two clusters serve Services with endpoints in both, through two gateways, at cluster addresses, node
// ports under both policies, an external address and one that is answered for at layer 2, with affinity and with PROXY protocol headers, to
// clients outside, pods and the nodes. To no process of culvert's the kernel gives a socket of nftables, iptables or IPVS. In the end the
// far gateway is one of kernel parts, which knows nothing of headers: its pod is told the client all the same.
func TestServicesOfTwoClusters(t *testing.T) {
	beside(t, func(t *testing.T) {
		requireNetfilterRefused(t)
		c := newMilanAcross(t, peerFamily{}, func(rome, milan *peerHost) {
			rome.refused, milan.refused = refuseNetfilter, refuseNetfilter
			join(rome, milan, "192.0.2.1/24", "192.0.2.7/24", 1500)
		})
		c.addRome()
		both := []*servingCluster{
			{name: "rome", node: c.romeNode, pod: c.romePod, address: "172.18.0.2", farPod: milanPodAtRome, seenAs: "10.72.0.0"},
			{name: "milan", node: c.milanNode, pod: c.milanPod, address: "172.19.0.130", farPod: romePodAtMilan, seenAs: "10.71.0.0"},
		}
		for _, s := range both {
			s.client = newPeerHost(t, s.name+"-out")
			join(s.node, s.client, "203.0.113.1/24", "203.0.113.5/24", 1500)
			s.client.ip("route add default via 203.0.113.1")
			(&serviceLab{T: t}).serve(s.pod)
			serveTold(t, s.pod)
			s.start(t)
		}
		for i, s := range both {
			t.Run(s.name, func(t *testing.T) { s.check(t, both[1-i]) })
		}
		for _, p := range []*peerProcess{both[0].process, both[1].process, c.romeCulvert, c.milanCulvert} {
			requireFiltered(t, p)
		}
		t.Run("kernel gateway", func(t *testing.T) {
			c.milanCulvert.stop()
			c.romeCulvert.stop()
			c.startMilanReference(t)
			c.milanNode.ip("neigh flush dev tunnel")
			c.startRome()
			rome, milan := both[0], both[1]
			eventually(t, "milan's pod", func() error {
				for range 8 {
					if who, _, err := (&serviceLab{T: t}).ask(rome.client, "tcp", "203.0.113.1:30080"); err == nil && who == milan.pod.name {
						return nil
					}
				}
				return errNotYet
			})
			rome.checkTold(t, milan)
		})
	}, programs("nft", "nft"))
}

// start starts culvert node, which serves.
func (s *servingCluster) start(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := strings.NewReplacer("NODE", s.name+"-1", "ADDRESS", s.address, "FAR", s.farPod).Replace(clusterServices)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.node.refused = refuseNetfilter
	s.process = s.node.start(nil, os.Getenv(binaryEnv), "node", "--config", file)
	eventually(t, s.name+"'s services", func() error {
		if !strings.Contains(s.process.output(), "services are served") {
			return errNotYet
		}
		return s.process.running()
	})
}

// serveTold answers at port 8085, behind a PROXY protocol header, with the host's name and what the header says.
func serveTold(t *testing.T, h *peerHost) {
	t.Helper()
	listener, err := h.listen("tcp", ":8085")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	told := &proxyproto.Listener{Listener: listener, ReadHeaderTimeout: startTimeout,
		ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) { return proxyproto.REQUIRE, nil }}
	go func() {
		for {
			conn, err := told.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				fmt.Fprintf(conn, "%s %s", h.name, toldOf(conn))
			}()
		}
	}()
}

// questions is how often a Service of two endpoints is asked: that all go to one by chance happens once in 2^23.
const questions = 24

// check asks for all of the cluster's Services.
func (s *servingCluster) check(t *testing.T, far *servingCluster) {
	l := &serviceLab{T: t}
	for _, r := range []struct {
		from      *peerHost
		to        string
		near, far string // what the pods see; "": they are not to answer
		udp       bool
	}{
		{s.pod, "10.96.0.10:80", s.address, s.seenAs, true},
		{s.node, "10.96.0.10:80", s.address, s.seenAs, true},
		{s.pod, s.address + ":30080", s.address, s.seenAs, true},
		{s.node, s.address + ":30080", s.address, s.seenAs, true},
		{s.client, s.address + ":30080", s.address, s.seenAs, true},
		{s.client, "203.0.113.1:30080", s.address, s.seenAs, true},
		{s.client, "198.51.100.10:80", s.address, s.seenAs, true},
		{s.client, "203.0.113.77:80", s.address, s.seenAs, true},
		{s.pod, "203.0.113.77:80", s.address, s.seenAs, true},
		{s.client, "203.0.113.1:30082", "203.0.113.5", "", false},
		{s.node, "203.0.113.1:30082", s.address, s.seenAs, false},
		{s.pod, "10.96.0.12:80", s.address, "", false},
	} {
		for _, network := range []string{"tcp", "udp"} {
			if network == "udp" && !r.udp {
				continue
			}
			want := map[string]string{}
			for host, sees := range map[*peerHost]string{s.pod: r.near, far.pod: r.far} {
				if sees != "" {
					want[host.name] = sees
				}
			}
			got := map[string]int{}
			for range questions {
				who, sees, err := l.ask(r.from, network, r.to)
				if err != nil || want[who] == "" || want[who] != sees {
					t.Fatalf("%s asks %s %s: %q answers and sees %q (%v), want %v", r.from.name, network, r.to, who, sees, err, want)
				}
				got[who]++
			}
			if len(got) != len(want) {
				t.Errorf("%s asks %s %s: only %v answer, want %v", r.from.name, network, r.to, got, want)
			}
		}
	}
	for _, to := range []string{"10.96.0.11:80", s.address + ":30081"} {
		from, stays := s.pod, ""
		if to != "10.96.0.11:80" {
			from = s.client
		}
		for range questions {
			who, _, err := l.ask(from, "tcp", to)
			if err != nil || stays != "" && who != stays {
				t.Fatalf("%s asks %s: %q answers after %q: %v", from.name, to, who, stays, err)
			}
			stays = who
		}
	}
	for to, refused := range map[string]bool{"203.0.113.1:30083": false, "203.0.113.1:30084": true} {
		patience := startTimeout
		if !refused {
			patience = silence
		}
		err := s.client.do(func() error {
			conn, err := net.DialTimeout("tcp", to, patience)
			if err == nil {
				conn.Close()
			}
			return err
		})
		timeout := net.Error(nil)
		if refused != errors.Is(err, unix.ECONNREFUSED) || !refused && !(errors.As(err, &timeout) && timeout.Timeout()) {
			t.Errorf("%s asks %s, refused %t: %v", s.client.name, to, refused, err)
		}
	}
	s.checkTold(t, far)
}

// checkTold has the pods of both clusters be told of a client outside, and of this cluster's own pod.
func (s *servingCluster) checkTold(t *testing.T, far *servingCluster) {
	t.Helper()
	for from, to := range map[*peerHost]string{s.client: "203.0.113.1:30085", s.pod: "10.96.0.15:80"} {
		got := map[string]int{}
		for range questions {
			conn, err := from.dial("tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			conn.SetDeadline(time.Now().Add(startTimeout))
			answer, err := io.ReadAll(conn)
			own, at := conn.LocalAddr().(*net.TCPAddr), netip.MustParseAddrPort(to)
			conn.Close()
			who, told, _ := strings.Cut(string(answer), " ")
			if want := fmt.Sprintf("%s %d %s %d", own.IP, own.Port, at.Addr(), at.Port()); err != nil || told != want {
				t.Fatalf("%s asks %s: %q was told %q, want %q: %v", from.name, to, who, told, want, err)
			}
			got[who]++
		}
		if names := []string{s.pod.name, far.pod.name}; len(got) != 2 || slices.ContainsFunc(names, func(n string) bool { return got[n] == 0 }) {
			t.Errorf("%s asks %s: %v answer, want both of %v", from.name, to, got, names)
		}
	}
}

// startMilanReference puts a gateway of kernel parts in the place of milan's.
func (c *clusters) startMilanReference(t *testing.T) {
	t.Helper()
	address, prefix := netip.MustParseAddr, netip.MustParsePrefix
	text, err := json.Marshal(lab.ReferenceConfig{
		Underlay: address("172.19.0.9"), Internal: address(milanInternal), TunnelAddress: prefix("169.254.18.1/30"), MTU: 1340, ListenPort: 51840,
		PrivateKey: hexKey(t, c.milanKey.private), PeerPublicKey: hexKey(t, c.romeKey.public),
		Nodes:  []lab.ReferenceNode{{VNI: milanVNI, Underlay: address("172.19.0.130"), Address: address("10.80.0.3"), PodCIDR: prefix("10.0.1.0/24")}},
		Remaps: []lab.ReferenceRemap{{Real: prefix("10.0.0.0/16"), Remapped: prefix("10.62.0.0/16")}, {Real: prefix("10.70.0.0/16"), Remapped: prefix("10.72.0.0/16")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "reference.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c.milanGateway.refused = nil
	c.milanGateway.start(nil, os.Getenv(binaryEnv), "lab", "reference", "--config", file)
}

// requireNetfilterRefused: behind the filter none of netfilter's calls succeeds, and without it some do.
func requireNetfilterRefused(t *testing.T) {
	t.Helper()
	try := func() map[string]error {
		all := map[string]error{}
		for name, protocol := range map[string]int{"nftables": unix.NETLINK_NETFILTER, "IPVS by netlink": unix.NETLINK_GENERIC} {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
			if all[name] = err; err == nil {
				unix.Close(fd)
			}
		}
		for family, level := range map[int]int{unix.AF_INET: unix.SOL_IP, unix.AF_INET6: unix.SOL_IPV6} {
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				t.Fatal(err)
			}
			for name, option := range map[string]int{"iptables": iptablesControl, "IPVS": ipvsControl} {
				if name == "IPVS" && family == unix.AF_INET6 {
					continue
				}
				_, err := unix.GetsockoptInt(fd, level, option)
				all[fmt.Sprintf("%s, get, family %d", name, family)] = err
				all[fmt.Sprintf("%s, set, family %d", name, family)] = unix.SetsockoptInt(fd, level, option, 0)
			}
			unix.Close(fd)
		}
		return all
	}
	var open, refused map[string]error
	err := onPeerThread(func() error {
		open = try()
		err := refuseNetfilter()
		refused = try()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range refused {
		if err != unix.EPERM {
			t.Errorf("%s behind the filter: %v, want %v", name, err, unix.EPERM)
		}
	}
	if err := open["nftables"]; err != nil {
		t.Errorf("nftables without the filter: %v", err)
	}
}

// requireFiltered: the kernel asks a filter before each call of a process.
func requireFiltered(t *testing.T, p *peerProcess) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(status), "\nSeccomp:\t2\n") {
		t.Errorf("%v runs without a filter (%v)", p.cmd.Args, err)
	}
}
