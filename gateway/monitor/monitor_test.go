package monitor

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// monitored returns a Monitor whose look is never called, of a path that carries packets between
// its nodes. Nobody is at the other end of its tunnel.
func monitored(t *testing.T) (*Monitor, []*genevetest.Node) {
	t.Helper()
	c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	for i := range c.Geneve.Nodes {
		c.Geneve.Nodes[i].Underlay = netip.AddrFrom4([4]byte{127, 0, 50, byte(2 + i)})
	}
	var current config.Current
	links := config.Links{}.Assign(c.Geneve.Nodes)
	current.Set(c, links)
	engine, err := nat.New([16]byte{1}, c.NAT(links, 0))
	need.NoError(t, err)
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 50, 1)}) // nodes have the same port
	need.NoError(t, err)
	free.Close()
	endpoint, err := geneve.Listen(geneve.Options{Listen: free.LocalAddr().(*net.UDPAddr).AddrPort()})
	need.NoError(t, err)
	need.NoError(t, endpoint.Apply(c.Tunnels(links)))
	log, _ := logtest.NewNullLogger()
	own, peer := c.WireGuard.Role.TunnelAddresses()
	device := wg.New(wg.Options{PrivateKey: c.WireGuard.PrivateKey, MTU: int(c.MTU), Own: own.V4, Peer: peer.V4,
		Log: logrus.NewEntry(log)})
	p := path.New(engine, endpoint, device, int(c.MTU))
	m := New(p, &current, logrus.NewEntry(log), false)
	p.Local = m
	need.NoError(t, p.Open(wg.Peer{}))
	t.Cleanup(func() {
		endpoint.Close()
		device.Close()
		m.Close()
	})
	var nodes []*genevetest.Node
	for _, n := range c.Geneve.Nodes {
		nodes = append(nodes, genevetest.NewNode(t, genevetest.NodeConfig{
			Listen: netip.AddrPortFrom(n.Underlay, endpoint.LocalAddr().Port()), Gateway: endpoint.LocalAddr(),
			VNI: uint32(n.VNI), VXLAN: n.Encap == geneve.VXLAN, Address: n.Address.V4,
			GatewayAddress: c.Geneve.GatewayAddress.V4,
		}))
	}
	return m, nodes
}

func udpPacket(source, destination string, payload []byte) []byte {
	return nattest.IP{Source: source, Destination: destination, Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53,
		Payload: payload}}.Bytes()
}

// waitFor calls condition until it holds.
func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(genevetest.Timeout)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("%s: not within %v", what, genevetest.Timeout)
		case <-time.After(time.Millisecond):
		}
	}
}
