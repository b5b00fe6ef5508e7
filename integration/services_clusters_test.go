package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// A servingCluster is one of two clusters whose nodes serve Services with endpoints in both.
type servingCluster struct {
	name              string
	node, pod, client *peerHost
	second            *peerHost // a node without a pod, or nil
	address           string    // of the node; clients whose source is translated share it
	farPod, seenAs    string    // the other cluster's pod as this one sees it; what that pod sees of this cluster
}

// The Services of each cluster, in the file of the node SELF with ADDRESSES. NODE is the node with
// the pod, FAR the other cluster's pod.
const clusterServices = `name: SELF
services:
  addresses: [ADDRESSES]
  pods: [10.0.0.0/16]
  serviceCIDRs: [10.96.0.0/12]
  announce: [ANNOUNCED]
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

// Rome's second node, which has no pod, and its entry in the gateway's file.
const (
	secondAddress = "172.18.0.3"
	secondVNI     = 259
	secondNode    = "\n    - {name: rome-2, vni: 259, underlay: 172.18.0.3, address: 10.80.0.6, podCIDRs: [10.0.2.0/24]}"
)

// TestServicesOfTwoClusters serves Services with endpoints in two clusters, through two gateways,
// on the nodes of both: at cluster addresses, node ports under both policies, an external address
// and one announced at layer 2, with affinity and with PROXY protocol headers, to clients outside,
// pods and the nodes, over IPv4 and IPv6. One cluster has a second node, without endpoints. The
// kernel refuses culvert's processes the sockets of nftables, iptables and IPVS. In the end a
// kernel-based gateway, without IPv6 and without knowledge of the headers, replaces the far one;
// its pod must still learn the client's address.
func TestServicesOfTwoClusters(t *testing.T) {
	besideFamilies(t, func(t *testing.T, f peerFamily) {
		requireNetfilterRefused(t)
		c := newMilanAcross(t, f, func(rome, milan *peerHost) {
			rome.refused, milan.refused = refuseNetfilter, refuseNetfilter
			join(rome, milan, "192.0.2.1/24", "192.0.2.7/24", 1500)
		})
		c.joinRome()
		second := c.joinSecond()
		c.startRomeOfTwo(t)
		both := []*servingCluster{
			{name: "rome", node: c.romeNode, pod: c.romePod, second: second, address: "172.18.0.2",
				farPod: milanPodAtRome, seenAs: "10.72.0.0"},
			{name: "milan", node: c.milanNode, pod: c.milanPod, address: "172.19.0.130", farPod: romePodAtMilan,
				seenAs: "10.71.0.0"},
		}
		processes := []*peerProcess{c.romeCulvert, c.milanCulvert}
		for _, s := range both {
			s.client = newPeerHostOf(t, f, s.name+"-out")
			join(s.node, s.client, "203.0.113.1/24", "203.0.113.5/24", 1500)
			s.client.ip("route add default via 203.0.113.1")
			(&serviceLab{T: t}).serve(s.pod)
			serveTold(t, s.pod)
			processes = append(processes, s.start(t, s.node, s.name+"-1", s.address+", 203.0.113.1", "203.0.113.77/32"))
			if s.second != nil {
				processes = append(processes, s.start(t, s.second, s.name+"-2", secondAddress, ""))
			}
		}
		for i, s := range both {
			t.Run(s.name, func(t *testing.T) { s.check(t, both[1-i]) })
		}
		for _, p := range processes {
			requireFiltered(t, p)
		}
		if f.inside {
			return
		}
		t.Run("kernel gateway", func(t *testing.T) {
			c.milanCulvert.stop()
			c.romeCulvert.stop()
			c.startMilanReference(t)
			c.milanNode.ip("neigh flush dev tunnel")
			c.startRomeOfTwo(t)
			rome, milan := both[0], both[1]
			eventually(t, "milan's pod", func() error {
				for range 8 {
					if who, _, err := (&serviceLab{T: t}).ask(rome.client, "tcp", "203.0.113.1:30080"); err == nil &&
						who == milan.pod.name {
						return nil
					}
				}
				return errNotYet
			})
			rome.checkTold(t, milan)
		})
	}, programs("nft", "nft"))
}

// joinSecond gives rome a second node, which has no pod. A bridge in the gateway's host joins the
// nodes.
func (c *clusters) joinSecond() *peerHost {
	g := c.romeGateway
	g.t.Helper()
	second := newPeerHostOf(g.t, g.family, "rome-second")
	join(g, second, "", secondAddress+"/24", 1500)
	g.ip("address del 172.18.0.9/24 dev rome-node", "link add lan type bridge", "link set rome-node master lan",
		"link set rome-second master lan",
		"link set lan up", "address add 172.18.0.9/24 dev lan")
	second.router()
	second.ip(vxlanLink(secondVNI, secondAddress, "172.18.0.9")...)
	second.ip(internalAddress("10.80.0.6", romeInternal, "10.61.0.0/16", "10.71.0.0/16")...)
	second.ip("route add 10.0.1.0/24 via 172.18.0.2", "route add 203.0.113.0/24 via 172.18.0.2")
	return second
}

// startRomeOfTwo starts the gateway of rome with two nodes.
func (c *clusters) startRomeOfTwo(t *testing.T) {
	t.Helper()
	config := strings.Replace(romeConfig, "\n  nodes:", "\n  nodes:"+secondNode, 1)
	c.romeCulvert = startGateway(c.romeGateway, config, c.romeKey, c.milanKey.public)
}

// start starts culvert node with Services on a node of the cluster.
func (s *servingCluster) start(t *testing.T, node *peerHost, name, addresses, announced string) *peerProcess {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := strings.NewReplacer("SELF", name, "NODE", s.name+"-1", "ADDRESSES", addresses, "ANNOUNCED", announced,
		"FAR", s.farPod).Replace(clusterServices)
	need.NoError(t, os.WriteFile(file, []byte(node.family.of(text)), 0o600))
	node.refused = refuseNetfilter
	process := node.start(nil, os.Getenv(binaryEnv), "node", "--config", file)
	process.awaitOutput(t, "services are served")
	return process
}

// serveTold answers at port 8085, which expects a PROXY protocol header, with the host's name and
// the header's content.
func serveTold(t *testing.T, h *peerHost) {
	t.Helper()
	h.acceptHeaded(t, ":8085", func(conn net.Conn) { fmt.Fprintf(conn, "%s %s", h.name, toldOf(conn)) })
}

// questions limits how often a Service is asked until each of two endpoints has answered: all
// answers come from one endpoint by chance once in 2^23 times.
const questions = 24

// check uses all of the cluster's Services.
func (s *servingCluster) check(t *testing.T, far *servingCluster) {
	l := &serviceLab{T: t}
	type row struct {
		from      *peerHost
		to        string
		near, far string // the sources that the pods see; "" if a pod must not answer
		udp       bool
	}
	rows := []row{
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
	}
	if s.second != nil { // it forwards everything to the node with the pod
		rows = append(rows,
			row{s.client, secondAddress + ":30080", secondAddress, s.seenAs, true},
			row{s.pod, secondAddress + ":30080", secondAddress, s.seenAs, true},
			row{s.node, secondAddress + ":30080", secondAddress, s.seenAs, true},
			row{s.second, "10.96.0.10:80", secondAddress, s.seenAs, true},
			row{s.second, secondAddress + ":30082", secondAddress, s.seenAs, false})
	}
	for _, r := range rows {
		for _, network := range []string{"tcp", "udp"} {
			if network == "tcp" || r.udp {
				s.ask(t, far, r.from, network, r.to, r.near, r.far)
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
	s.checkUnserved(t, s.client, "203.0.113.1:30083", false)
	s.checkUnserved(t, s.client, "203.0.113.1:30084", true)
	if s.second != nil {
		s.checkUnserved(t, s.client, secondAddress+":30082", false)
		s.checkUnserved(t, s.second, "10.96.0.12:80", false)
		s.checkUnserved(t, s.client, secondAddress+":30084", true)
	}
	s.checkTold(t, far)
}

// ask asks until each endpoint that must answer has done so, and checks the source that each sees.
// An endpoint that must not answer is given every chance to.
func (s *servingCluster) ask(t *testing.T, far *servingCluster, from *peerHost, network, to, nearSees, farSees string) {
	t.Helper()
	want := map[string]string{}
	for host, sees := range map[*peerHost]string{s.pod: nearSees, far.pod: farSees} {
		if sees != "" {
			want[host.name] = host.family.of(sees)
		}
	}
	got := map[string]bool{}
	for range questions {
		who, sees, err := (&serviceLab{T: t}).ask(from, network, to)
		if err != nil || want[who] == "" || want[who] != sees {
			t.Fatalf("%s asks %s %s: %q answers and sees %q (%v), want %v", from.name, network, to, who,
				sees, err, want)
		}
		if got[who] = true; len(got) == 2 {
			return
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s asks %s %s: only %v answer, want %v", from.name, network, to, got, want)
	}
}

// checkUnserved asks at addresses where nobody may answer: the request is refused or dropped.
func (s *servingCluster) checkUnserved(t *testing.T, from *peerHost, to string, refused bool) {
	t.Helper()
	patience := startTimeout
	if !refused {
		patience = silence
	}
	conn, err := from.dialWithin(patience, "tcp", to)
	if err == nil {
		conn.Close()
	}
	timeout := net.Error(nil)
	if refused != errors.Is(err, unix.ECONNREFUSED) || !refused && !(errors.As(err, &timeout) && timeout.Timeout()) {
		t.Errorf("%s asks %s, refused %t: %v", from.name, to, refused, err)
	}
}

// checkTold checks the clients that PROXY protocol headers name to the pods of both clusters: a
// host outside, and this cluster's own pod.
func (s *servingCluster) checkTold(t *testing.T, far *servingCluster) {
	t.Helper()
	for from, to := range map[*peerHost]string{s.client: "203.0.113.1:30085", s.pod: "10.96.0.15:80"} {
		got := map[string]bool{}
		for range questions {
			conn, err := from.dial("tcp", to)
			need.NoError(t, err)
			conn.SetDeadline(time.Now().Add(startTimeout))
			answer, err := io.ReadAll(conn)
			own, at := conn.LocalAddr().(*net.TCPAddr), netip.MustParseAddrPort(from.family.of(to))
			conn.Close()
			who, told, _ := strings.Cut(string(answer), " ")
			if want := fmt.Sprintf("%s %d %s %d", own.IP, own.Port, at.Addr(), at.Port()); err != nil || told != want {
				t.Fatalf("%s asks %s: %q was told %q, want %q: %v", from.name, to, who, told, want, err)
			}
			if got[who] = true; len(got) == 2 {
				break
			}
		}
		if !got[s.pod.name] || !got[far.pod.name] {
			t.Errorf("%s asks %s: %v answer, want both pods", from.name, to, got)
		}
	}
}

// startMilanReference replaces milan's gateway by a kernel-based one.
func (c *clusters) startMilanReference(t *testing.T) {
	t.Helper()
	file := gatewayFile(c.milanGateway, milanConfig, c.milanKey, c.romeKey.public)
	c.milanGateway.refused = nil
	c.milanGateway.start(nil, labBinary(os.Getenv(binaryEnv)), "reference", "--config", file)
}
