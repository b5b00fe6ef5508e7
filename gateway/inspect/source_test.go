package inspect

import (
	"net/netip"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/lifecycle"
	"culvert/gateway/monitor"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/integration/need"
	"culvert/nat"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSource returns the Source of a gateway with two silent nodes, and a peer without an address.
func newSource(t *testing.T) *Source {
	t.Helper()
	c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	for i := range c.Geneve.Nodes {
		c.Geneve.Nodes[i].Underlay = netip.AddrFrom4([4]byte{127, 0, 51, byte(2 + i)})
	}
	var current config.Current
	links := config.Links{}.Assign(c.Geneve.Nodes)
	current.Set(c, links)
	log := logrus.NewEntry(logrus.New())
	life := lifecycle.New(lifecycle.Options{Log: log, Current: &current}, nil)
	need.NoError(t, life.Open(c))
	engine, err := nat.New([16]byte{1}, c.NAT(links, 0))
	need.NoError(t, err)
	endpoint, err := geneve.Listen(geneve.Options{Listen: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 51, 1}),
		0)})
	need.NoError(t, err)
	need.NoError(t, endpoint.Apply(c.Tunnels(links)))
	own, peer := c.WireGuard.Role.TunnelAddresses()
	device := wg.New(wg.Options{PrivateKey: c.WireGuard.PrivateKey, MTU: int(c.MTU), Own: own.V4,
		Peer: peer.V4, Log: log})
	p := path.New(engine, endpoint, device, int(c.MTU))
	m := monitor.New(p, &current, log, false)
	p.Local = m
	need.NoError(t, p.Open(wg.Peer{}))
	t.Cleanup(func() {
		endpoint.Close()
		device.Close()
	})
	return New(Options{Log: log, Path: p, Monitor: m, Current: &current, Life: life})
}
