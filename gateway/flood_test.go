package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/wg"
	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// A peerFlood makes handshake initiations that only the owner of the peer's private key can make.
func peerFlood(t *testing.T, own, peer wgkey.Key, count int) (messages [][]byte) {
	t.Helper()
	d := device.NewDevice(tuntest.NewChannelTUN().TUN(), conn.NewDefaultBind(),
		device.NewLogger(device.LogLevelSilent, ""))
	defer d.Close()
	need.NoError(t, d.IpcSet(fmt.Sprintf("private_key=%x\npublic_key=%x\n", own[:], peer[:])))
	var macs device.CookieGenerator
	macs.Init(device.NoisePublicKey(peer))
	for range count {
		m, err := d.CreateMessageInitiation(d.LookupPeer(device.NoisePublicKey(peer)))
		need.NoError(t, err)
		var b bytes.Buffer
		need.NoError(t, binary.Write(&b, binary.LittleEndian, m))
		macs.AddMacs(b.Bytes())
		messages = append(messages, b.Bytes())
	}
	return messages
}

// TestPeerFloods: the peer itself floods a gateway with valid handshakes, new and repeated, and
// replays messages of its session. That costs little memory, and nobody loses a packet.
func TestPeerFloods(t *testing.T) {
	const (
		handshakes = 1500
		rounds     = 10
		replays    = 200 // of each message of the session
		messages   = 4   // of the session, in each round; the gateways ping each other too
		window     = 2 * wg.BatchSize
		// The windows of both gateways, and a quarter of what unlimited handshakes would take.
		mostMemory = 2*2*window*device.MaxMessageSize + device.QueueHandshakeSize*device.MaxMessageSize/4
	)
	mc := configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16")
	rc := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	rc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public()
	mc.WireGuard.PeerPublicKey = rc.WireGuard.PrivateKey.Public()
	milan := start(t, mc, 20)
	// Messages from rome pass through the test, which can repeat them from rome's address.
	relay, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	need.NoError(t, err)
	toMilan := net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(milan.wg.Port())}
	rc.WireGuard.Endpoint = relay.LocalAddr().String()
	session := make(chan []byte, 1000)
	go func() {
		defer close(session)
		var toRome *net.UDPAddr
		for b := make([]byte, 65536); ; {
			n, from, err := relay.ReadFromUDP(b)
			switch {
			case err != nil:
				return
			case from.Port == toMilan.Port:
				relay.WriteToUDP(b[:n], toRome)
			default:
				toRome = from
				relay.WriteToUDP(b[:n], &toMilan)
				select {
				case session <- bytes.Clone(b[:n]):
				default:
				}
			}
		}
	}()
	rome := start(t, rc, 10)
	t.Cleanup(func() { // before rome and milan stop
		relay.Close()
		for range session {
		}
	})
	ping := func(mark int) {
		t.Helper()
		rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nattest.Payload(100+mark, uint32(mark))))
		if v := expect(t, milan.nodes[0], "10.62.1.5", "10.0.1.7"); !bytes.Equal(v.Payload, nattest.Payload(100+mark,
			uint32(mark))) {
			t.Fatalf("%d bytes came through, want packet %d", len(v.Payload), mark)
		}
	}
	ping(0)
	flood := peerFlood(t, rc.WireGuard.PrivateKey, mc.WireGuard.PrivateKey.Public(), handshakes)
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC() // so that only live memory counts
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most := memory(), uint64(0)
	for mark := range rounds {
		for _, m := range flood {
			relay.WriteToUDP(m, &toMilan)
		}
		most = max(most, memory())
		ping(1 + 2*mark)
		// All repetitions of a round fit into milan's socket, however late it is read; otherwise a
		// ping could be lost there.
		for n, m := 0, <-session; ; n, m = n+1, <-session {
			for range replays {
				if n < messages {
					relay.WriteToUDP(m, &toMilan)
				}
			}
			if len(session) == 0 {
				break
			}
		}
		ping(2 + 2*mark)
	}
	if most > before+mostMemory {
		t.Errorf("%d MiB in use, %d before the flood", most>>20, before>>20)
	}
	milan.wg.Settle()
	milan.wg.Settle()
	dropped := milan.wg.Stats().Inbound
	if dropped[wg.HandshakeRate] == 0 {
		t.Error("no handshake was too many")
	}
	if n := dropped[wg.TunnelDiscard]; n < replays {
		t.Errorf("%d messages counted as discarded, want those that were repeated", n)
	}
}
