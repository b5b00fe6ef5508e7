package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// An announceLab is a serviceLab in which both nodes serve the same load balancer address, each
// with its own file.
type announceLab struct {
	*serviceLab
	vip   [2]netip.Addr
	files map[string]string
	nodes map[string]*peerProcess
}

func newAnnounceLab(t *testing.T) *announceLab {
	return &announceLab{
		serviceLab: newServiceLab(t), vip: [2]netip.Addr{netip.MustParseAddr("172.18.0.77"),
			netip.MustParseAddr("fd18::77")},
		files: map[string]string{}, nodes: map[string]*peerProcess{},
	}
}

// write writes a node's file, with or without the announcement of the address.
func (l *announceLab) write(h *peerHost, announce string) {
	l.Helper()
	own := serviceAddresses[h.name]
	text := fmt.Sprintf(`name: %s
services:
  addresses: [%s, %q]
  pods: [10.244.0.0/16, "fd24::/16"]
  serviceCIDRs: [10.96.0.0/12, "fd96::/112"]
  %s
  serve:
  - {name: web, clusterIP: [10.96.0.10, "fd96::10"], port: 80, loadBalancerIPs: [%s, %q], endpoints: [{address: 10.244.2.5, port: 8080, node: n2}, {address: "fd24:2::5", port: 8080, node: n2}]}
`, h.name, own[0], own[1], announce, l.vip[0], l.vip[1].String())
	if l.files[h.name] == "" {
		l.files[h.name] = filepath.Join(l.TempDir(), h.name+".yaml")
	}
	need.NoError(l, os.WriteFile(l.files[h.name], []byte(text), 0o600))
}

func (l *announceLab) run(h *peerHost, announce string) {
	l.Helper()
	l.write(h, announce)
	l.nodes[h.name] = h.start(nil, os.Getenv(binaryEnv), "node", "--config", l.files[h.name])
	l.says(h, "services are served", 1)
}

// reload changes what a node announces.
func (l *announceLab) reload(h *peerHost, announce string) {
	l.Helper()
	done := strings.Count(l.nodes[h.name].output(), "configuration applied")
	l.write(h, announce)
	l.nodes[h.name].cmd.Process.Signal(unix.SIGHUP)
	l.says(h, "configuration applied", done+1)
}

// says waits until a node has logged something as often as times.
func (l *announceLab) says(h *peerHost, what string, times int) {
	l.Helper()
	p := l.nodes[h.name]
	eventually(l.T, h.name+": "+what, func() error {
		if err := p.running(); err != nil {
			l.Fatal(err, p.output())
		}
		if strings.Count(p.output(), what) < times {
			return errNotYet
		}
		return nil
	})
}

func (l *announceLab) end(h *peerHost, how unix.Signal) {
	l.Helper()
	l.nodes[h.name].cmd.Process.Signal(how)
	<-l.nodes[h.name].ended
}

// mac returns a host's MAC address on the network.
func (l *announceLab) mac(h *peerHost) (mac string) {
	l.Helper()
	err := h.do(func() error {
		link, err := net.InterfaceByName("lan")
		if err == nil {
			mac = link.HardwareAddr.String()
		}
		return err
	})
	need.NoError(l, err)
	return mac
}

// answerPatience is how long answers of hosts that should be silent are waited for: a kernel that
// answers for others does so at a random time within 0.8 s (proxy_delay).
const answerPatience = 1200 * time.Millisecond

// answers makes the outside host forget the address's neighbour entry and ask again. It returns the
// names of the hosts that answer, in order. However busy the machine is, it waits for those in
// want.
func (l *announceLab) answers(to netip.Addr, want []string) (names []string) {
	l.Helper()
	macs := map[string]string{l.mac(l.n1): "n1", l.mac(l.n2): "n2"}
	socket, err := l.listenPackets(l.out, "lan")
	need.NoError(l, err)
	defer unix.Close(socket)
	l.out.ip("neigh flush to " + to.String())
	err = l.out.do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("?"))
		return err
	})
	need.NoError(l, err)
	for asked := time.Now(); ; {
		patience := askPatience
		if !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(names, name) }) {
			patience = answerPatience
		}
		frame := nextFrame(socket, asked.Add(patience))
		if frame == nil {
			slices.Sort(names)
			return slices.Compact(names)
		}
		if mac, a, unasked := layer2Answer(frame); a == to && !unasked {
			names = append(names, macs[mac])
		}
	}
}

func (l *announceLab) listenPackets(h *peerHost, device string) (socket int, err error) {
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	return socket, h.do(func() error {
		link, err := net.InterfaceByName(device)
		if err == nil {
			socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		}
		if err == nil {
			err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
		}
		return err
	})
}

func nextFrame(socket int, deadline time.Time) []byte {
	for b := make([]byte, 2000); ; {
		n, err := unix.Read(socket, b)
		if err == nil {
			return b[:n]
		}
		left := time.Until(deadline)
		if !errors.Is(err, unix.EAGAIN) || left <= 0 {
			return nil
		}
		unix.Poll([]unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}, int(left/time.Millisecond)+1)
	}
}

// layer2Answer reads an ARP packet or neighbour advertisement that says where an address is.
// unasked: nobody had asked.
func layer2Answer(b []byte) (mac string, a netip.Addr, unasked bool) {
	if len(b) < 14 {
		return "", a, false
	}
	mac = net.HardwareAddr(b[6:12]).String()
	broadcast := b[0]&1 != 0
	switch kind, body := binary.BigEndian.Uint16(b[12:]), b[14:]; {
	case kind == unix.ETH_P_ARP && len(body) >= 28 && (body[7] == 2 || broadcast && bytes.Equal(body[14:18],
		body[24:28])):
		a, _ = netip.AddrFromSlice(body[14:18])
	case kind == unix.ETH_P_IPV6 && len(body) >= 64 && body[6] == unix.IPPROTO_ICMPV6 && body[40] == 136 &&
		body[7] == 255:
		a, _ = netip.AddrFromSlice(body[48:64])
	}
	return mac, a, broadcast
}

// require fails unless exactly these nodes answer for the address, over both families.
func (l *announceLab) require(when string, nodes ...string) {
	l.Helper()
	for _, a := range l.vip {
		if got := l.answers(a, nodes); !slices.Equal(got, nodes) {
			l.Errorf("%s: %v answer for %s, want %v", when, got, a, nodes)
		}
	}
}

// requireServed uses the address from outside. The source that the endpoint sees shows which node
// the request went through.
func (l *announceLab) requireServed(when string, from *peerHost, through string) {
	l.Helper()
	for family, a := range l.vip {
		who, sees, err := l.ask(from, "tcp", netip.AddrPortFrom(a, 80).String())
		if err != nil || who != "pb" || sees != serviceAddresses[through][family] {
			l.Errorf("%s: %s asks %s: %q answers and sees %q: %v", when, from.name, a, who, sees, err)
		}
	}
}

// requireKept makes the outside host ask the node that it knows whether it still has the address,
// as hosts do every half minute (RFC 4861, Section 7.3.3). Without an answer it would ask everybody
// again.
func (l *announceLab) requireKept(when string, by *peerHost) {
	l.Helper()
	for _, a := range l.vip {
		l.out.ip(fmt.Sprintf("neigh change %s lladdr %s dev lan nud probe", a, l.mac(by)))
		eventually(l.T, when+": the host outside knows who has "+a.String(), func() error {
			if state := l.out.run("ip", "neigh", "show", "to", a.String()); !strings.Contains(state, "REACHABLE") {
				return errors.New(state)
			}
			return nil
		})
	}
}

// requireNothingLeft fails if a node's kernel would answer for an address that is not its own.
func (l *announceLab) requireNothingLeft(when string, h *peerHost) {
	l.Helper()
	left := h.run("ip", "neigh", "show", "proxy") + h.run("ip", "-6", "neigh", "show", "proxy")
	for line := range strings.Lines(h.run("ip", "-6", "route", "show", "table", "local") + h.run("ip", "-6", "rule")) {
		if strings.Contains(line, l.vip[1].String()) {
			left += line
		}
	}
	if left != "" {
		l.Errorf("%s: %s keeps %s", when, h.name, left)
	}
}

const announceBoth = `announce: [172.18.0.77/32, "fd18::77/128"]`

// TestServicesAnnounce: only the node that announces a load balancer's address at layer 2 answers
// for it, over both families. It stops at SIGHUP, SIGTERM and SIGKILL, and leaves nothing behind.
// One node may open packet sockets, and notifies neighbours.
func TestServicesAnnounce(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newAnnounceLab(t)
		l.n1.refused = refuseNetfilter
		l.out.ip("route del default", "route del ::/0")
		l.run(l.n2, "")
		l.run(l.n1, "")
		l.require("nobody is to")

		l.reload(l.n1, announceBoth)
		l.require("the first is to", "n1")
		l.requireServed("the first is to", l.out, "n1")
		l.requireKept("the first is to", l.n1)
		l.requireServed("the first is to: short cut", l.b, "n2")
		l.requireServed("the first is to: short cut", l.n2, "n2")

		// The second takes over, and notifies the outside host, which does not ask.
		l.reload(l.n1, "")
		l.requireNothingLeft("after SIGHUP", l.n1)
		socket, err := l.listenPackets(l.out, "lan")
		need.NoError(t, err)
		defer unix.Close(socket)
		began := time.Now()
		l.reload(l.n2, announceBoth)
		l.requireServed("the second is to", l.out, "n2")
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the host outside needs %v to find the second node", took)
		}
		l.requireHeralded(socket)
		l.require("the second is to", "n2")
		l.requireServed("the second is to: short cut", l.c, "n1")

		l.end(l.n2, unix.SIGKILL)
		l.require("the second was killed")
		l.run(l.n2, "")
		l.requireNothingLeft("a run after SIGKILL", l.n2)
		l.end(l.n2, unix.SIGTERM)
		l.run(l.n2, announceBoth)
		l.require("the second is to again", "n2")
		l.end(l.n2, unix.SIGKILL)
		l.run(l.n2, announceBoth)
		l.require("a run after SIGKILL that is to", "n2")
		l.end(l.n2, unix.SIGTERM)
		l.requireNothingLeft("after SIGTERM", l.n2)

		// Proxy entries that somebody else has made stay.
		l.n1.ip("neigh add proxy 172.18.0.77 dev lan", "neigh add proxy 172.18.0.78 dev lan")
		l.reload(l.n1, announceBoth)
		l.require("the first is to, as somebody else has it", "n1")
		l.end(l.n1, unix.SIGTERM)
		if kept := l.n1.run("ip", "neigh", "show", "proxy"); strings.Count(kept, "proxy") != 2 {
			t.Errorf("of somebody else's two proxies these are left: %s", kept)
		}
	}, programs("ip", "ip"))
}

// requireNoneTaken: the first node routes no IPv4 packet of its own to the device that answers,
// whatever the protocol.
func (l *announceLab) requireNoneTaken() {
	l.Helper()
	const experimental = 253 // RFC 3692, Section 2.1
	watch, err := l.listenPackets(l.n1, "culvert-vip0")
	need.NoError(l, err)
	defer unix.Close(watch)
	for _, protocol := range []int{unix.IPPROTO_UDP, experimental} {
		err := l.n1.do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, make([]byte, 8), 0, &unix.SockaddrInet4{Addr: l.vip[0].As4()})
		})
		need.NoError(l, err)
		for b := make([]byte, 100); ; { // a packet is there as soon as the sending call returns
			if n, err := unix.Read(watch, b); err != nil || n == 0 {
				break
			}
			if b[0]>>4 == 4 {
				l.Errorf("a packet of protocol %d of the node itself goes to culvert-vip0", protocol)
			}
		}
	}
}

// TestServicesAnnounceKilled kills a node that keeps its device for the next run: from then on it
// answers for nothing. Hosts that ask again get no answer, and then that of the node that takes
// over. Hosts that know the dead node ask it in vain, and find the other one without a
// notification. Connections continue in the next run.
func TestServicesAnnounceKilled(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newAnnounceLab(t)
		l.n2.refused = refuseNetfilter // so that it notifies no neighbour over IPv4
		l.out.ip("route del default", "route del ::/0")
		state := "\n  state: " + t.TempDir()
		before := l.kernelState()
		l.run(l.n2, "")
		l.run(l.n1, announceBoth+state)
		l.require("the first is to", "n1")
		l.requireServed("the first is to", l.out, "n1")
		l.requireServed("the first is to: by its own kernel", l.n1, "n1")
		l.requireKept("the first is to", l.n1)
		l.requireNoneTaken()
		var streams []*serviceStream
		for _, a := range l.vip {
			streams = append(streams, l.stream(l.out, "tcp", netip.AddrPortFrom(a, 80).String()))
		}

		l.end(l.n1, unix.SIGKILL)
		l.require("the first was killed")
		l.run(l.n1, announceBoth+state)
		l.require("the first is back", "n1")
		for _, s := range streams {
			if err := s.echo(); err != nil {
				t.Errorf("a connection to %s after the kill: %v", s.to, err)
			}
		}
		l.reload(l.n1, state[3:])
		l.requireNothingLeft("after SIGHUP", l.n1)
		l.require("nobody is to")
		l.requireServed("nobody is to: by the first's own kernel", l.n1, "n1")
		l.reload(l.n1, announceBoth+state)
		l.require("the first is to again", "n1")
		l.n1.ip("link del culvert-vip0")
		eventually(t, "the first answers again, as somebody has removed its device", func() error {
			if got := l.answers(l.vip[0], []string{"n1"}); !slices.Equal(got, []string{"n1"}) {
				return fmt.Errorf("%v answer: %w", got, errNotYet)
			}
			return nil
		})

		l.end(l.n1, unix.SIGKILL)
		l.reload(l.n2, announceBoth)
		for _, a := range l.vip {
			l.out.ip(fmt.Sprintf("neigh replace %s lladdr %s dev lan nud probe", a, l.mac(l.n1)))
			eventually(t, "who knows the dead node finds the second", func() error {
				if who, _, err := l.ask(l.out, "tcp", netip.AddrPortFrom(a, 80).String()); err != nil || who != "pb" {
					return fmt.Errorf("%q answers: %w: %v", who, errNotYet, err)
				}
				return nil
			})
		}
		l.requireServed("the second has taken over", l.out, "n2")
		l.require("the second has taken over", "n2")
		l.run(l.n1, state[3:])
		l.requireNothingLeft("a run after the kill that is not to", l.n1)
		l.end(l.n1, unix.SIGTERM)
		l.run(l.n1, announceBoth)
		l.end(l.n1, unix.SIGTERM)
		l.end(l.n2, unix.SIGTERM)
		if after := l.kernelState(); after != before {
			t.Errorf("left behind:\n%s\nthere was:\n%s", after, before)
		}
	}, programs("ip", "ip"))
}

// requireHeralded checks the unasked notifications of the second node: as many as MetalLB sends,
// for IPv4 in both forms.
func (l *announceLab) requireHeralded(socket int) {
	l.Helper()
	const often, pause = 5, 2 * time.Second
	told := map[string]int{}
	for deadline := time.Now().Add(startTimeout); ; {
		frame := nextFrame(socket, deadline)
		if frame == nil {
			break
		}
		mac, a, unasked := layer2Answer(frame)
		if !unasked || !a.IsValid() {
			continue
		}
		if mac != l.mac(l.n2) || !slices.Contains(l.vip[:], a) {
			continue
		}
		kind := "advertisement"
		if a.Is4() {
			kind = fmt.Sprintf("ARP %d", frame[14+7])
		}
		told[kind]++
		if told["ARP 1"] == often && told["ARP 2"] == often && told["advertisement"] == often {
			deadline = time.Now().Add(pause) // enough for one too many
		}
	}
	for _, kind := range []string{"ARP 1", "ARP 2", "advertisement"} {
		if told[kind] != often {
			l.Errorf("%d times %s, want %d: %v", told[kind], kind, often, told)
		}
	}
}
