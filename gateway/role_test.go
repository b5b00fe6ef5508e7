package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/path"
	"culvert/gateway/role"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// TestBecome: in each role a gateway carries and says what that role may.
func TestBecome(t *testing.T) {
	folder := t.TempDir()
	p := startPair(t, func(rome, _ *config.Config) { rome.Elected, rome.State = true, folder })
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

	// a node would first ask for the gateway, in vain
	stranger, err := net.Dial("udp4", rome.endpoint.LocalAddr().String())
	need.NoError(t, err)
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
	waitFor(t, "where the peer was is in the folder", func() bool {
		identity, err := os.ReadFile(filepath.Join(folder, "milan/identity"))
		return err == nil && strings.Contains(string(identity), fmt.Sprintf("127.0.0.1:%d", milan.wg.Port()))
	})
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

// TestLostHandshake: a gateway that takes over repeats a first handshake that is lost before
// WireGuard would, and the packet that waits for the session is not lost.
func TestLostHandshake(t *testing.T) {
	rc := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16")
	rc.WireGuard.PeerPublicKey, mc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public(),
		rc.WireGuard.PrivateKey.Public()
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

// A nodePort forwards between clients and a gateway as the NodePort of a Service does: nobody
// reaches a client but in answer to it.
type nodePort struct {
	front *net.UDPConn
	to    netip.AddrPort
	back  atomic.Pointer[net.UDPConn]
	from  atomic.Pointer[netip.AddrPort]
	tasks sync.WaitGroup
}

func newNodePort(t *testing.T, to netip.AddrPort) *nodePort {
	t.Helper()
	n := &nodePort{to: to}
	var err error
	if n.front, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0"))); err !=
		nil {
		t.Fatal(err)
	}
	n.flush(t)
	n.tasks.Go(func() {
		for b := make([]byte, 1<<16); ; {
			size, from, err := n.front.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			n.from.Store(&from)
			n.back.Load().Write(b[:size])
		}
	})
	t.Cleanup(func() {
		n.front.Close()
		n.back.Load().Close()
		n.tasks.Wait()
	})
	return n
}

// flush forgets the clients, as a node does whose Service has another endpoint: their next packets
// come from another address.
func (n *nodePort) flush(t *testing.T) {
	back, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(n.to))
	need.NoError(t, err)
	if old := n.back.Swap(back); old != nil {
		old.Close()
	}
	n.tasks.Go(func() {
		for b := make([]byte, 1<<16); ; {
			size, err := back.Read(b)
			if err != nil {
				return
			}
			if from := n.from.Load(); from != nil {
				n.front.WriteToUDPAddrPort(b[:size], *from)
			}
		}
	})
}

// TestBecomeBehindNodePort: a gateway that takes over has a session as soon as packets of the peer
// come to it, where nothing that it sends by itself reaches the peer. WireGuard's own timers would
// take 15 s.
func TestBecomeBehindNodePort(t *testing.T) {
	rc := configtest.Cluster("rome", "milan", config.Server, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Client, "10.62.0.0/16", "10.72.0.0/16")
	rc.WireGuard.PeerPublicKey, mc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public(),
		rc.WireGuard.PrivateKey.Public()
	rc.Elected = true
	rome := start(t, rc, 10)
	front := newNodePort(t, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), rome.wg.Port()))
	mc.WireGuard.Endpoint = front.front.LocalAddr().String()
	rome.Become(role.Active)
	milan := start(t, mc, 20)
	out := udpPacket("10.0.1.5", "10.62.1.5", nattest.Payload(64, 1))
	milan.nodes[0].Send(out)
	expect(t, rome.nodes[0], "10.61.1.5", "10.0.1.5")

	rome.Become(role.Standby)
	front.flush(t)
	began := time.Now()
	rome.Become(role.Active)
	milan.expectPassage(t, out, rome, began)
}

// expectPassage sends a packet again and again until one reaches the other cluster, which has to be
// long before WireGuard's own timers would see to it.
func (cl *cluster) expectPassage(t *testing.T, packet []byte, other *cluster, began time.Time) {
	t.Helper()
	waitFor(t, "a packet arrives", func() bool {
		cl.nodes[0].Send(packet)
		select {
		case <-other.nodes[0].Packets():
			return true
		default:
			return false
		}
	})
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a packet passed after %v", took)
	}
}

// TestServerBeginsAnew: a Server that knows nothing of the process before it has a session as soon
// as packets of the peer come, in the old session. WireGuard's own timers would take 15 s.
func TestServerBeginsAnew(t *testing.T) {
	rc := configtest.Cluster("rome", "milan", config.Server, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Client, "10.62.0.0/16", "10.72.0.0/16")
	rc.WireGuard.PeerPublicKey, mc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public(),
		rc.WireGuard.PrivateKey.Public()
	rome := start(t, rc, 10)
	rc.WireGuard.ListenPort = rome.wg.Port() // of the next one too
	mc.WireGuard.Endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), rome.wg.Port()).String()
	milan := start(t, mc, 20)
	out := udpPacket("10.0.1.5", "10.62.1.5", nattest.Payload(64, 1))
	milan.nodes[0].Send(out)
	expect(t, rome.nodes[0], "10.61.1.5", "10.0.1.5")

	rome.stop()
	rome = start(t, rc, 30)
	began := time.Now()
	milan.expectPassage(t, out, rome, began)
}
