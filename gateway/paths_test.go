package gateway

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/monitor"
	"culvert/gateway/seats"
	"culvert/gateway/wgkey"
	"culvert/geneve/genevetest"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// A pathTest is a gateway that measures its paths by the test's clock.
type pathTest struct {
	*cluster
	t    *testing.T
	said *logtest.Hook
	now  time.Duration
	pods [2]string
}

// newPathTest uses IPv4, or only IPv6.
func newPathTest(t *testing.T, net byte, six bool) *pathTest {
	log, said := logtest.NewNullLogger()
	c, pods := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16"),
		[2]string{"10.0.1.5", "10.0.2.5"}
	if six {
		dual(c, configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16"))
		c, pods = alone6(c), [2]string{"fd00:10:0:1::5", "fd00:10:0:2::5"}
	}
	c.WireGuard.PeerPublicKey = wgkey.NewPrivate().Public()
	c.WireGuard.Endpoint = "127.0.0.1:9"
	p := &pathTest{t: t, cluster: open(t, c, net, log, nil), said: said, pods: pods}
	t.Cleanup(func() {
		p.monitor.Close()
		p.close()
	})
	return p
}

// alone6 returns c, which has both families, without IPv4.
func alone6(c *config.Config) *config.Config {
	four := func(p netip.Prefix) bool { return p.Addr().Is4() }
	c.Geneve.GatewayAddress.V4, c.UnknownSource.V4 = netip.Addr{}, netip.Addr{}
	for i := range c.Geneve.Nodes {
		n := &c.Geneve.Nodes[i]
		n.Address.V4 = netip.Addr{}
		n.PodCIDRs = slices.DeleteFunc(n.PodCIDRs, four)
	}
	c.Local.PodCIDRs, c.Local.ExternalCIDRs = slices.DeleteFunc(c.Local.PodCIDRs, four),
		slices.DeleteFunc(c.Local.ExternalCIDRs, four)
	c.Remote = slices.DeleteFunc(c.Remote, func(r rules.RemoteCIDR) bool { return four(r.Real) })
	return c
}

// waitFor calls condition until it holds.
func waitFor(t testing.TB, what string, condition func() bool) {
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

// look lets the gateway measure its paths for a while, during which a pod of the first node talks
// to one of the second, and waits for the answers of each round.
func (p *pathTest) look(lasts time.Duration) {
	p.t.Helper()
	const link nat.Link = 1
	for end := p.now + lasts; p.now < end; p.now += monitor.PathInterval {
		p.nodes[0].Send(udpPacket(p.pods[0], p.pods[1], nil))
		p.nodes[1].Receive()
		p.monitor.LookAtPaths(p.now)
		waitFor(p.t, "answers", func() bool {
			sent, answered := p.monitor.Probes(link)
			asked, replied := p.nodes[0].Echoes()
			return asked == int(sent) && replied == int(answered)
		})
		p.monitor.Look(p.now)
	}
}

// TestPathOfNode: a path to a node that drops large packets is found within 10 s, with its
// direction. The gateway stays below its limit, logs it, and logs when the path is whole again.
func TestPathOfNode(t *testing.T) {
	for i, tt := range []struct {
		name        string
		six         bool
		there, back int
		way         string
	}{
		{"there", false, 1246, 0, "to"}, {"back", false, 0, 1246, "from"},
		{"there, IPv6 alone", true, 1302, 0, "to"}, {"back, IPv6 alone", true, 0, 1302, "from"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, passes := newPathTest(t, byte(60+i), tt.six), max(tt.there, tt.back)
			p.look(10 * time.Second)
			metric := func(size int) string {
				return fmt.Sprintf("culvert_path_mtu_bytes{kind=%q,of=%q} %d\n", "node", "rome-1", size)
			}
			if page := string(p.inspect.Metrics(seats.New(nil), 0)); !strings.Contains(page, metric(1340)) {
				t.Errorf("no line %s", metric(1340))
			}
			p.nodes[0].LoseLarge(tt.there, tt.back)
			p.look(10 * time.Second)

			s := p.inspect.Status()
			size := s.Nodes[0].Path.MTU
			if size > passes || size < passes-4 || s.Nodes[0].Path.Narrow != tt.way {
				t.Fatalf("status says %+v, want about %d, %q", s.Nodes[0].Path, passes, tt.way)
			}
			if s.Nodes[1].Path.Narrow != "" || s.Tunnel.Path.Narrow != "" {
				t.Errorf("others are narrow too: %+v, %+v", s.Nodes[1].Path, s.Tunnel.Path)
			}
			if page := string(p.inspect.Metrics(seats.New(nil), 0)); !strings.Contains(page, metric(size)) {
				t.Errorf("no line %s", metric(size))
			}
			want := fmt.Sprintf("packets of more than %d bytes vanish on the way %s rome-1", size, tt.way)
			if n := p.count(want, logrus.WarnLevel); n != 1 {
				t.Errorf("%d times in the log: %s", n, want)
			}
			p.tooBig(size)

			p.nodes[0].LoseLarge(0, 0)
			p.look(70 * time.Second)
			if s := p.inspect.Status(); s.Nodes[0].Path.MTU != 1340 || s.Nodes[0].Path.Narrow != "" {
				t.Errorf("status says %+v, want 1340", s.Nodes[0].Path)
			}
			if n := p.count("packets of mtu bytes pass to and from rome-1 again", logrus.InfoLevel); n != 1 {
				t.Errorf("%d times in the log that the path is whole", n)
			}
		})
	}
}

// count returns how often the log has a message.
func (p *pathTest) count(message string, level logrus.Level) (n int) {
	for _, e := range p.said.AllEntries() {
		if e.Level == level && strings.HasPrefix(e.Message, message) {
			n++
		}
	}
	return n
}

// tooBig sends a packet that does not fit from a pod of the second node to one of the first.
func (p *pathTest) tooBig(size int) {
	p.t.Helper()
	overhead, protocol, kind, code := 28, byte(1), byte(3), byte(4)
	if strings.Contains(p.pods[0], ":") {
		overhead, protocol, kind, code = 48, 58, 2, 0
	}
	p.nodes[1].Send(nattest.IP{Source: p.pods[1], Destination: p.pods[0], DF: true,
		Body: nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: nattest.Payload(size+1-overhead, 1)}}.Bytes())
	v, err := nattest.Check(p.nodes[1].Receive())
	if err != nil || v.Protocol != protocol || v.Body[0] != kind || v.Body[1] != code {
		p.t.Fatalf("no too-big message: %v, % x", err, v.Body)
	}
	if got := int(binary.BigEndian.Uint16(v.Body[6:])); got != size {
		p.t.Errorf("told %d, want %d", got, size)
	}
}
