package node

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/carry"
	"culvert/gateway/node/rtnl"
	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
)

// gatewayUnderlay makes an underlay address local until the end of the test.
func gatewayUnderlay(t *testing.T, underlay string) netip.Addr {
	t.Helper()
	address := netip.MustParseAddr(underlay)
	lo := up(t, "lo")
	a := &netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(address, 32))}
	need.NoError(t, netlink.AddrAdd(lo, a))
	t.Cleanup(func() {
		if err := netlink.AddrDel(lo, a); err != nil {
			t.Error(err)
		}
	})
	return address
}

// gatewayEnd is an endpoint that answers in place of a gateway at an underlay address.
func gatewayEnd(t *testing.T, c *Config, underlay string) *geneve.Endpoint {
	t.Helper()
	return listenAt(t, c, gatewayUnderlay(t, underlay))
}

// listenAt is gatewayEnd for an address that is local.
func listenAt(t *testing.T, c *Config, underlay netip.Addr) *geneve.Endpoint {
	t.Helper()
	e, err := geneve.Listen(geneve.Options{Listen: netip.AddrPortFrom(underlay, c.Port)})
	need.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	err = e.Apply([]geneve.Tunnel{{ID: 7, VNI: geneve.VNI(c.VNI), Remote: c.Underlay, Local: c.GatewayAddress,
		Peer: c.Address, Role: geneve.Gateway}})
	need.NoError(t, err)
	return e
}

// sendBack returns every UDP packet to its sender: with swapped addresses all checksums stay right.
// It sends the sources to seen while there is room.
func sendBack(e *geneve.Endpoint, seen chan<- netip.Addr) {
	receiver, sender := e.NewReceiver(), e.NewSender()
	for receiver.Fill() == nil {
		for p, ok := receiver.Next(); ok; p, ok = receiver.Next() {
			at, size, protocol := 12, 4, p.Data[9]
			if p.Data[0]>>4 == 6 {
				at, size, protocol = 8, 16, p.Data[6]
			}
			if protocol != 17 && protocol != 44 { // UDP, or an IPv6 fragment
				continue
			}
			source, _ := netip.AddrFromSlice(p.Data[at : at+size])
			select {
			case seen <- source:
			default:
			}
			back := bytes.Clone(p.Data)
			copy(back[at:], p.Data[at+size:at+2*size])
			copy(back[at+size:], source.AsSlice())
			sender.Send(7, back)
		}
		sender.Flush()
	}
}

// talk sends datagrams to an address behind the gateway, with equal source and destination ports,
// so that a returned one arrives here.
func talk(t *testing.T, to string) {
	t.Helper()
	network := "udp4"
	if strings.Contains(to, ":") {
		network = "udp6"
	}
	conn, err := net.ListenUDP(network, &net.UDPAddr{})
	need.NoError(t, err)
	defer conn.Close()
	port := uint16(conn.LocalAddr().(*net.UDPAddr).Port)
	for _, size := range []int{1, 1312, 1313, 9000} {
		payload := bytes.Repeat([]byte{byte(size)}, size)
		if _, err := conn.WriteToUDPAddrPort(payload, netip.AddrPortFrom(netip.MustParseAddr(to), port)); err != nil {
			t.Fatal(err)
		}
		need.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		buffer := make([]byte, 65536)
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			t.Fatalf("%d bytes to %s: %v", size, to, err)
		}
		if from.Addr().String() != to || !bytes.Equal(buffer[:n], payload) {
			t.Errorf("%d bytes to %s came back as %d from %s", size, to, n, from)
		}
	}
}

func TestTUNCarriesPackets(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	first := make(chan netip.Addr, 1)
	go sendBack(gatewayEnd(t, c, "172.18.0.9"), first)
	stop := start(t, c)
	talk(t, "10.61.1.5")
	talk(t, "10.71.0.9")
	if source := <-first; source != c.Address.V4 {
		t.Errorf("the gateway saw source %s, want %s", source, c.Address)
	}
	if err := stop(); err != nil {
		t.Error("Run returned", err)
	}
	requireNothingLeft(t, c)
}

// TestTUNCarriesFamilies: without IPv4, both ends find each other by neighbour discovery, and
// packets of each configured family pass.
func TestTUNCarriesFamilies(t *testing.T) {
	needTUN(t)
	for _, tt := range []struct {
		name    string
		change  *strings.Replacer
		targets []string
	}{
		{"IPv6", v6only, []string{"fd00:61::5"}},
		{"both", dual, []string{"fd00:61::5", "10.61.1.5"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testConfigOf(t, TUN, tt.change.Replace(goodFile))
			seen := make(chan netip.Addr, 1)
			e := gatewayEnd(t, c, "172.18.0.9")
			go sendBack(e, seen)
			stop := start(t, c)
			untilLocal(t, c.Address.V6)
			for _, to := range tt.targets {
				talk(t, to)
			}
			if source := <-seen; source != c.Address.V6 {
				t.Errorf("the gateway saw source %s, want %s", source, c.Address.V6)
			}
			if s := e.Stats(); tt.change == v6only && (s.NDReceived == 0 || s.ARPReceived+s.ARPSent > 0) {
				t.Errorf("%d messages of neighbour discovery received, %d of ARP; want some, none", s.NDReceived,
					s.ARPReceived)
			}
			if err := stop(); err != nil {
				t.Error("Run returned", err)
			}
			requireNothingLeft(t, c)
		})
	}
}

// untilLocal waits until the kernel accepts packets to a new IPv6 address, whose route it makes
// later.
func untilLocal(t *testing.T, a netip.Addr) {
	t.Helper()
	need.Eventually(t, 10*time.Second, a.String()+" is local", func() error {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
			return fmt.Errorf("%v, %v", routes, err)
		}
		return nil
	})
}

// TestTUNLosesTrains: if trains to the gateway are lost, the node notices, logs it once, and sends
// single datagrams.
func TestTUNLosesTrains(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	gateway := genevetest.NewNode(t, genevetest.NodeConfig{
		Listen:  netip.AddrPortFrom(gatewayUnderlay(t, "172.18.0.9"), c.Port),
		Gateway: netip.AddrPortFrom(c.Underlay, c.Port),
		VNI:     c.VNI, Address: c.GatewayAddress.V4, GatewayAddress: c.Address.V4,
	})
	gateway.LoseTrains(true)
	log, said := test.NewNullLogger()
	n, err := New(t.Context(), c, log)
	need.NoError(t, err)
	stop := run(t, n)
	endpoint, id := n.link.(*tunLink).hub.Endpoint(), n.link.(*tunLink).device.ID
	if s := endpoint.Stats().Socket; !s.GSO || !s.GRO {
		stop()
		need.Offloads(t, false)
	}
	sender := endpoint.NewSender()
	sendTrain := func(content string) {
		for i := range 3 {
			from, to := netip.AddrPortFrom(c.Address.V4, 1), netip.MustParseAddrPort("10.61.1.5:1")
			sender.Send(id, genevetest.UDP(from, to, fmt.Appendf(nil, "%s %d", content, i)))
		}
		sender.Flush()
	}
	need.Eventually(t, 20*time.Second, "the loss is noticed", func() error {
		sendTrain("lost")
		if s, _ := endpoint.TunnelStats(id); s.Train {
			return errors.New("the node sends trains")
		}
		return nil
	})
	sendTrain("single")
	for i := 0; i < 3; {
		if bytes.HasSuffix(gateway.Receive(), fmt.Appendf(nil, "single %d", i)) {
			i++
		}
	}
	if err := stop(); err != nil {
		t.Error("Run returned", err)
	}
	var warnings []*logrus.Entry
	for _, e := range said.AllEntries() {
		if e.Level == logrus.WarnLevel {
			warnings = append(warnings, e)
		}
	}
	if len(warnings) != 1 || warnings[0].Data["remedy"] != carry.TrainRemedy || warnings[0].Data["node"] != c.Name {
		t.Errorf("warnings %v, want one with its remedy", warnings)
	}
	requireNothingLeft(t, c)
}

func TestTUNFollowsGateway(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	moved := make(chan netip.Addr, 1)
	go sendBack(gatewayEnd(t, c, "172.18.0.77"), moved)
	n, err := New(t.Context(), c, quiet())
	need.NoError(t, err)
	need.NoError(t, n.link.setRemote(netip.MustParseAddr("172.18.0.77")))
	stop := run(t, n)
	talk(t, "10.61.1.5")
	if err := stop(); err != nil {
		t.Error("Run returned", err)
	}
	requireNothingLeft(t, c)
}

func TestTUNRemovedByOthers(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	n, err := New(t.Context(), c, quiet())
	need.NoError(t, err)
	l, err := netlink.LinkByName(c.Interface)
	need.NoError(t, err)
	need.NoError(t, netlink.LinkDel(l))
	if err := n.Run(t.Context()); err == nil {
		t.Error("Run returned nil for a device that is gone")
	}
	requireNothingLeft(t, c)
}

func TestTUNRefusals(t *testing.T) {
	needTUN(t)
	t.Run("port in use", func(t *testing.T) {
		c := testConfig(t, TUN)
		s, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(c.Port)})
		need.NoError(t, err)
		defer s.Close()
		requireRefusal(t, c, "port: UDP port 6091 is in use")
		requireNothingLeft(t, c)
	})
	t.Run("foreign underlay", func(t *testing.T) {
		c := testConfig(t, TUN)
		c.Underlay = netip.MustParseAddr("172.18.0.3")
		requireRefusal(t, c, "underlay: 172.18.0.3 is no address of this node")
		requireNothingLeft(t, c)
	})
	t.Run("no privilege", func(t *testing.T) {
		c := testConfig(t, TUN)
		need.WithoutCapabilities(t, func() { requireRefusal(t, c, "CAP_NET_ADMIN; run culvert node as root") })
		requireNothingLeft(t, c)
	})
}

func TestNoLeakedSocket(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	for range 3 {
		need.NoError(t, start(t, c)())
	}
	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: c.Underlay.AsSlice(), Port: int(c.Port)})
	if err != nil {
		t.Fatal("the port is still open:", err)
	}
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}
