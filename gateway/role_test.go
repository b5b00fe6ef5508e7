package gateway

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/path"
	"culvert/gateway/role"
	"culvert/nat/nattest"
)

// TestBecome: in each role a gateway carries and says what that role may.
func TestBecome(t *testing.T) {
	p := newPair(t, func(rome, _ *config.Config) { rome.Elected = true })
	rome, milan := p.rome, p.milan
	payload := nattest.Payload(64, 1)
	out := udpPacket("10.0.1.5", "10.61.1.5", payload)
	back := udpPacket("10.0.1.5", "10.62.1.5", payload)
	dropped := func(direction string) (n uint64) {
		st := rome.inspect.Status()
		drops := st.Outbound.Drops
		if direction == "inbound" {
			drops = st.Inbound.Drops
		}
		for _, d := range drops {
			if d.Reason == "standby" {
				n += d.Packets
			}
		}
		return n
	}
	sent := func() (n uint64) {
		for _, s := range rome.inspect.Status().Sockets {
			n += s.SentBytes
		}
		return n
	}
	refused := func(what, direction string, send func()) {
		t.Helper()
		before := dropped(direction)
		waitFor(t, what+": "+direction+" is dropped", func() bool { send(); return dropped(direction) > before })
	}
	passes := func(what string) {
		t.Helper()
		rome.nodes[0].Send(out)
		expect(t, milan.nodes[0], "10.62.1.5", "10.0.1.5")
		milan.nodes[0].Send(back)
		expect(t, rome.nodes[0], "10.61.1.5", "10.0.1.5")
	}
	toRome := func() { rome.nodes[0].Send(out) }

	stranger, err := net.Dial("udp4", rome.endpoint.LocalAddr().String()) // a node would first ask for the gateway, in vain
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	refused("a standby", "outbound", func() { stranger.Write(payload) })
	if n := sent(); n != 0 || rome.Role() != role.Standby || rome.Signs() != (role.Signs{}) {
		t.Errorf("a standby has sent %d bytes", n)
	}
	rome.Become(role.Active)
	passes("active")
	told := func() uint64 { return milan.path.Inbound().Dropped(path.DropNoService) } // nobody takes exports there
	rome.Tell([]byte("exports"))
	waitFor(t, "an active gateway tells of exports", func() bool { return told() == 1 })
	rome.Become(role.Static)
	rome.Tell([]byte("exports"))
	passes("static")
	if n := told(); n != 1 {
		t.Errorf("a static gateway has told of exports %d times", n-1)
	}

	rome.Become(role.Silent)
	refused("silent", "outbound", toRome)
	before := rome.Signs()
	waitFor(t, "data of the peer is noticed", func() bool {
		milan.nodes[0].Send(back)
		now := rome.Signs()
		return now.Data > before.Data && now.Heard > before.Heard
	})
	rome.Become(role.Static)
	passes("static again")

	rome.Become(role.Standby)
	if rome.Role() != role.Standby {
		t.Fatal("no standby")
	}
	was := sent()
	refused("a standby again", "outbound", toRome)
	refused("a standby again", "inbound", func() { milan.nodes[0].Send(back) })
	if n := sent(); n != was {
		t.Errorf("a standby has sent %d bytes", n-was)
	}
	began := time.Now()
	rome.Become(role.Active)
	passes("active again")
	if took := time.Since(began); took > 4*time.Second { // WireGuard would repeat a lost handshake after 5 s
		t.Errorf("packets passed after %v", took)
	}
}

// TestLostHandshake: a gateway that takes over repeats a first handshake that is lost before WireGuard would, and the packet that waits for the session
// is not lost.
func TestLostHandshake(t *testing.T) {
	rc := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16")
	rc.WireGuard.PeerPublicKey, mc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public(), rc.WireGuard.PrivateKey.Public()
	rc.Elected = true
	milan := start(t, mc, 20)
	between := newRelay(t, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), milan.wg.Port()))
	rc.WireGuard.Endpoint = between.socket.LocalAddr().String()
	rome := start(t, rc, 10)
	between.drop.Store(2)
	rome.Become(role.Active)
	began := time.Now()
	rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.5", nattest.Payload(64, 1)))
	expect(t, milan.nodes[0], "10.62.1.5", "10.0.1.5")
	if took := time.Since(began); took > 4*time.Second || between.drop.Load() >= 0 {
		t.Errorf("a packet passed after %v; %d initiations were still to be lost", took, between.drop.Load())
	}
}
