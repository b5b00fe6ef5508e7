package integration

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"culvert/gateway/config"
	"culvert/geneve"
	"culvert/integration/need"
)

// fakeNodes are all nodes of a large cluster except the first two, on one host. They answer ARP,
// and report which packets reach them.
type fakeNodes struct {
	lab   *kubeLab
	nodes []kubeNode
	conn  *ipv4.PacketConn
	far   net.PacketConn // in a pod of the other cluster

	changes int // of pods so far
	known   int // changes of the last node's pods, which the gateway has all obeyed

	mu      sync.Mutex
	waiting map[netip.Addr]chan<- geneve.VNI // by pod; +checklocks:mu
	told    map[string]time.Time             // last event of a watch, by the name of routes; +checklocks:mu
}

const (
	fakeNodesHost     = 70
	fakeNodesUnderlay = "198.18.0" // the first three bytes of their addresses
	fakeNodePods      = 50         // of each
	fakeNodeKept      = 20         // of a node's pods, which no test changes
	kubeDiscard       = 9          // port that nobody answers at
)

// fakeNode returns the fake node with a number that no other node has.
func fakeNode(number int) kubeNode {
	return kubeNode{fmt.Sprintf("fake%03d", number), number, fmt.Sprintf("10.80.1.%d", number),
		fmt.Sprintf("liqo.fake%06d", number)}
}

// addFakeNodes extends a cluster under Liqo to a number of nodes. Requests to their pods come from
// far.
func (k *kubeLab) addFakeNodes(nodes int, far *peerHost) *fakeNodes {
	k.t.Helper()
	c := k.newFakeNodes(nodes, far)
	k.liqo.nodes = append(slices.Clone(kubeNodes), c.nodes...)
	k.liqoSteps()
	for i := range c.nodes {
		k.liqo.podsRun(&c.nodes[i], c.podsOf(&c.nodes[i], 0)...)
	}
	return c
}

// newFakeNodes makes the host of fake nodes that no API server knows yet.
func (k *kubeLab) newFakeNodes(nodes int, far *peerHost) *fakeNodes {
	k.t.Helper()
	c := &fakeNodes{lab: k, waiting: make(map[netip.Addr]chan<- geneve.VNI), told: make(map[string]time.Time)}
	h := k.join("fakes", k.address(fakeNodesHost))
	h.ip("route add local " + fakeNodesUnderlay + ".0/24 dev lo")
	k.gatewayHost.ip("route add " + fakeNodesUnderlay + ".0/24 via " + k.address(fakeNodesHost))
	open := func(h *peerHost, port int) net.PacketConn {
		conn, err := h.listenPacket("udp4", fmt.Sprintf(":%d", port))
		need.NoError(k.t, err)
		k.t.Cleanup(func() { conn.Close() })
		return conn
	}
	c.conn, c.far = ipv4.NewPacketConn(open(h, config.DefaultGenevePort)), open(far, 0)
	go c.receive()
	for number := len(kubeNodes) + 1; number <= nodes; number++ {
		c.nodes = append(c.nodes, fakeNode(number))
	}
	return c
}

// watch records when the API server reports changes of routes, as it does to the gateway.
func (c *fakeNodes) watch(t *testing.T) {
	t.Helper()
	admin := c.lab.api.admin
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin.base+kubePath(liqoVersion,
		"RouteConfiguration", "", "")+"?watch=1", nil)
	need.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+admin.token)
	response, err := admin.http.Do(request)
	need.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	go func() {
		for events := json.NewDecoder(response.Body); ; {
			var e struct {
				Object struct{ Metadata struct{ Name string } }
			}
			if events.Decode(&e) != nil {
				return
			}
			c.mu.Lock()
			c.told[e.Object.Metadata.Name] = time.Now()
			c.mu.Unlock()
		}
	}()
}

// toldOf returns when the watch last reported an object.
func (c *fakeNodes) toldOf(o object) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[field(o, "metadata", "name").(string)]
}

// podsOf returns a node's pods after a number of changes, each of which replaces the oldest.
func (c *fakeNodes) podsOf(n *kubeNode, changes int) []string {
	pods := make([]string, fakeNodePods)
	for i := range pods {
		pods[i] = c.pod(n, changes+i)
	}
	return pods
}

func (c *fakeNodes) pod(n *kubeNode, i int) string { return c.lab.pod(n, byte(1+i%250)) }

// receive answers ARP and reports IP packets until the socket is closed.
func (c *fakeNodes) receive() {
	b := make([]byte, 1<<16)
	for {
		size, _, from, err := c.conn.ReadFrom(b)
		if err != nil {
			return
		}
		h, frame, reason := geneve.ParseHeader(b[:size])
		if reason != geneve.Accepted || len(frame) < 14+20 {
			continue
		}
		switch inner := frame[14:]; {
		case binary.BigEndian.Uint16(frame[12:]) == 0x0806 && len(inner) >= 28 && inner[7] == 1:
			to := inner[24:28] // the node's own address
			answer := c.frame(h.VNI, 0x0806, append(append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, fakeNodeMAC(h.VNI)...),
				to...), inner[8:18])
			// A kernel's link answers to its own port, whatever port a request comes from.
			c.send(h.VNI, answer, &net.UDPAddr{IP: from.(*net.UDPAddr).IP, Port: config.DefaultGenevePort})
		case inner[0]>>4 == 4:
			to, _ := netip.AddrFromSlice(inner[16:20])
			c.mu.Lock()
			if waits := c.waiting[to]; waits != nil {
				delete(c.waiting, to)
				waits <- h.VNI
			}
			c.mu.Unlock()
		}
	}
}

func fakeNodeMAC(vni geneve.VNI) []byte {
	mac := geneve.MAC(vni, geneve.Node)
	return mac[:]
}

// frame makes a datagram of a node to the gateway.
func (c *fakeNodes) frame(vni geneve.VNI, etherType uint16, parts ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, 0, 0x65, 0x58}, uint32(vni)<<8)
	gateway := geneve.MAC(vni, geneve.Gateway)
	b = binary.BigEndian.AppendUint16(append(append(b, gateway[:]...), fakeNodeMAC(vni)...), etherType)
	for _, part := range parts {
		b = append(b, part...)
	}
	return b
}

func (c *fakeNodes) send(vni geneve.VNI, datagram []byte, to net.Addr) error {
	node := net.ParseIP(fmt.Sprintf("%s.%d", fakeNodesUnderlay, int(vni)-c.lab.firstVNI+1))
	_, err := c.conn.WriteTo(datagram, &ipv4.ControlMessage{Src: node}, to)
	return err
}

// ask sends a datagram from the other cluster to an address that leads to a pod, and returns the
// tunnel through which it arrives, if it does.
func (c *fakeNodes) ask(at, pod string, patience time.Duration) (vni geneve.VNI, ok bool) {
	to, arrived := netip.MustParseAddr(pod), make(chan geneve.VNI, 1)
	c.mu.Lock()
	c.waiting[to] = arrived
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.waiting[to] == arrived {
			delete(c.waiting, to)
		}
	}()
	c.far.WriteTo([]byte("?"), &net.UDPAddr{IP: net.ParseIP(at), Port: kubeDiscard})
	select {
	case vni = <-arrived:
		return vni, true
	case <-time.After(patience):
		return 0, false
	}
}

// await asks until datagrams for a pod reach a node, or no node if n is nil, and returns how long
// that took.
func (c *fakeNodes) await(t *testing.T, pod string, n *kubeNode, limit time.Duration) time.Duration {
	t.Helper()
	return c.awaitAt(t, c.lab.seen(pod), pod, n, limit)
}

// awaitAt is await with the address that the other cluster uses for the pod.
func (c *fakeNodes) awaitAt(t *testing.T, at, pod string, n *kubeNode, limit time.Duration) time.Duration {
	t.Helper()
	patience := 20 * time.Millisecond
	if n == nil {
		patience = 100 * time.Millisecond
	}
	for began := time.Now(); ; {
		asked := time.Since(began)
		vni, ok := c.ask(at, pod, patience)
		if ok == (n != nil) && (n == nil || int(vni) == c.lab.vni(n)) {
			return asked
		}
		if asked > limit {
			t.Errorf("after %v a datagram for pod %s arrives: %t, by VNI %d; want it at node %v", asked,
				pod, ok, vni, n)
			return asked
		}
	}
}

// connect opens connections from the last pods of each node to a pod of the other cluster, each
// many of each pod, and continues until the gateway has all of them.
func (c *fakeNodes) connect(t *testing.T, to string, each int) {
	t.Helper()
	const (
		pace  = 20_000 // a second
		batch = 200
	)
	want := float64(len(c.nodes) * fakeNodeKept * each)
	gateway := &net.UDPAddr{IP: net.ParseIP(c.lab.gateway()), Port: config.DefaultGenevePort}
	destination := netip.MustParseAddr(to).As4()
	eventually(t, "the gateway has the connections of all fake nodes", func() error {
		sent, began := 0, time.Now()
		for i := range c.nodes {
			n := &c.nodes[i]
			for pod := fakeNodePods - fakeNodeKept; pod < fakeNodePods; pod++ {
				source := netip.MustParseAddr(c.pod(n, pod)).As4()
				for port := range each {
					ip := append(append([]byte{0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0}, source[:]...),
						destination[:]...)
					sumHeader(ip)
					udp := binary.BigEndian.AppendUint16(nil, uint16(1024+port))
					vni := geneve.VNI(c.lab.vni(n))
					if err := c.send(vni, c.frame(vni, 0x0800, ip, append(udp, 0, kubeDiscard, 0, 8, 0, 0)),
						gateway); err != nil {
						return err
					}
					if sent++; sent%batch == 0 {
						time.Sleep(time.Duration(sent)*time.Second/pace - time.Since(began)) // the pace
					}
				}
			}
		}
		if got := c.lab.gatewayHost.metric("culvert_connections"); got < want {
			return fmt.Errorf("it has %.0f, want %.0f", got, want)
		}
		return nil
	})
}
