package gateway

import (
	"net"
	"testing"
	"time"

	"culvert/gateway/config"
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
	rome.Become(role.Static)
	passes("static")

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
	if took := time.Since(began); took > 7*time.Second { // a handshake is lost where the same process takes over again: WireGuard repeats it after 5 s
		t.Errorf("packets passed after %v", took)
	}
}
