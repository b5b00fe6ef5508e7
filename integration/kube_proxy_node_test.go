package integration

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
	"culvert/nat/nattest"
)

// A proxyNode is a node with one link, a TUN device of the test: the test reads there what the node
// sends.
type proxyNode struct {
	*peerHost
	file int
	seen []byte // room for a packet
}

func newProxyNode(t *testing.T, name string, f *proxyFamily) *proxyNode {
	n := &proxyNode{peerHost: newServiceHost(t, name), seen: make([]byte, 1<<16)}
	bits := "/24"
	if strings.Contains(f.node, ":") {
		bits = "/64 nodad"
	}
	n.router()
	for name, value := range map[string]string{"ipv6/conf/all/forwarding": "1",
		"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0", "ipv4/icmp_msgs_per_sec": "1000000",
		"ipv4/icmp_msgs_burst": "1000000", "ipv4/conf/all/send_redirects": "0",
		"ipv4/conf/default/send_redirects": "0"} {
		n.sysctl("net/"+name, value)
	}
	err := n.do(func() (err error) {
		if n.file, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq("eth0")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(n.file, unix.TUNSETIFF, request)
	})
	need.NoError(t, err)
	t.Cleanup(func() { unix.Close(n.file) })
	n.ip("link set eth0 addrgenmode none up", "address add "+f.node+bits+" dev eth0")
	if strings.Contains(f.node, ":") {
		n.ip("route add ::/0 dev eth0")
	} else {
		n.ip("route add default dev eth0")
	}
	return n
}

// A proxyProbe is a request to a Service.
type proxyProbe struct {
	id       uint32
	from, to string
	port     uint16 // of to
	udp      bool
}

// source is the probe's source port, by which errors name it.
func (p *proxyProbe) source() uint16 { return uint16(1024 + p.id%60000) }

func (p *proxyProbe) bytes() []byte {
	ip := nattest.IP{Source: p.from, Destination: p.to, DF: true}
	if p.udp {
		ip.Body = nattest.UDP{SourcePort: p.source(), DestinationPort: p.port,
			Payload: binary.BigEndian.AppendUint32(nil, p.id)}
	} else {
		ip.Body = nattest.TCP{SourcePort: p.source(), DestinationPort: p.port, Seq: p.id, Flags: nattest.SYN,
			Window: 65535}
	}
	return ip.Bytes()
}

// A proxyFate is what happens to a probe: its new destination and source, fateRefused, or "" if it
// is dropped.
type proxyFate string

const fateRefused proxyFate = "refused"

// next returns the next packet that the node sends; nil if none comes before deadline.
func (n *proxyNode) next(deadline time.Time) (*nattest.View, error) {
	for {
		size, err := unix.Read(n.file, n.seen)
		if err == nil {
			v, err := nattest.Check(n.seen[:size])
			if err != nil {
				return nil, fmt.Errorf("%s sends a bad packet: %w: %x", n.name, err, n.seen[:size])
			}
			return &v, nil
		}
		left := time.Until(deadline)
		if err != unix.EAGAIN || left <= 0 {
			if err == unix.EAGAIN {
				err = nil
			}
			return nil, err
		}
		unix.Poll([]unix.PollFd{{Fd: int32(n.file), Events: unix.POLLIN}}, int(left/time.Millisecond)+1)
	}
}

// ask sends probes to the node, then marker, which the node is known to forward. As a node decides
// in order, the fates of all probes are known when the marker has passed. settled is false if the
// marker does not come.
func (n *proxyNode) ask(probes []*proxyProbe, marker *proxyProbe, patience time.Duration) (fates map[uint32]proxyFate,
	settled bool, err error) {
	by := map[uint16]*proxyProbe{marker.source(): marker}
	for _, p := range append(probes, marker) {
		by[p.source()] = p
		if _, err := unix.Write(n.file, p.bytes()); err != nil {
			return nil, false, err
		}
	}
	fates = map[uint32]proxyFate{}
	for deadline := time.Now().Add(patience); ; {
		v, err := n.next(deadline)
		if err != nil || v == nil {
			return fates, false, err
		}
		id, fate, ok := fateOf(v, by)
		if ok && id == marker.id {
			fates[id] = fate
			return fates, true, nil
		}
		if ok {
			fates[id] = fate
		}
	}
}

// fateOf returns the probe that a packet belongs to, and the fate that it shows.
func fateOf(v *nattest.View, by map[uint16]*proxyProbe) (id uint32, fate proxyFate, ok bool) {
	var p *proxyProbe
	of := func(id uint32) bool {
		p = by[uint16(1024+id%60000)]
		return p != nil && p.id == id
	}
	switch {
	case v.Protocol == unix.IPPROTO_TCP && v.Flags&nattest.RST != 0 && of(v.Ack-1),
		isUnreachable(v) && of(quotedProbe(v, by)):
		return p.id, fateRefused, true
	case v.Protocol == unix.IPPROTO_TCP && v.Flags&nattest.SYN != 0 && of(v.Seq),
		v.Protocol == unix.IPPROTO_UDP && len(v.Payload) == 4 && of(binary.BigEndian.Uint32(v.Payload)):
		return p.id, p.went(v), true
	}
	return 0, "", false
}

// went returns the fate of a probe that the node has forwarded as v.
func (p *proxyProbe) went(v *nattest.View) proxyFate {
	seen := "the client"
	if v.Source.String() != p.from {
		seen = v.Source.String()
	}
	return proxyFate(fmt.Sprintf("to %s, which sees %s", netip.AddrPortFrom(v.Destination, v.DestinationPort), seen))
}

func isUnreachable(v *nattest.View) bool {
	if len(v.Body) == 0 {
		return false
	}
	return v.Protocol == unix.IPPROTO_ICMP && v.Body[0] == 3 || v.Protocol == unix.IPPROTO_ICMPV6 && v.Body[0] == 1
}

// quotedProbe returns the number of the probe that an ICMP error quotes.
func quotedProbe(v *nattest.View, by map[uint16]*proxyProbe) uint32 {
	header := 20
	if v.Protocol == unix.IPPROTO_ICMPV6 {
		header = 40
	}
	if len(v.Payload) < header+8 {
		return 0
	}
	if p := by[binary.BigEndian.Uint16(v.Payload[header:])]; p != nil {
		return p.id
	}
	return 0
}

// process sends a request from a process of the node, and returns its fate once the marker has
// passed.
func (n *proxyNode) process(p, marker *proxyProbe) (fate proxyFate, err error) {
	err = n.do(func() error {
		to := netip.MustParseAddr(p.to)
		family, kind := unix.AF_INET, unix.SOCK_STREAM
		var at unix.Sockaddr
		if to.Is4() {
			at = &unix.SockaddrInet4{Port: int(p.port), Addr: to.As4()}
		} else {
			family, at = unix.AF_INET6, &unix.SockaddrInet6{Port: int(p.port), Addr: to.As16()}
		}
		if p.udp {
			kind = unix.SOCK_DGRAM
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err = unix.Connect(fd, at); err == nil && p.udp {
			_, err = unix.Write(fd, binary.BigEndian.AppendUint32(nil, p.id))
		}
		switch err {
		case nil, unix.EINPROGRESS, unix.EPERM: // EPERM: a filter at output drops or refuses it
		case unix.ECONNREFUSED:
			fate = fateRefused
			return nil
		default:
			return err
		}
		if _, err := unix.Write(n.file, marker.bytes()); err != nil {
			return err
		}
		for deadline := time.Now().Add(proxyPatience); ; {
			v, err := n.next(deadline)
			if err != nil {
				return err
			}
			if v == nil {
				return fmt.Errorf("%s: the marker does not come back", n.name)
			}
			switch {
			case v.Protocol == unix.IPPROTO_TCP && v.Flags&nattest.SYN != 0 && v.Seq == marker.id:
				if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil ||
					code == int(unix.ECONNREFUSED) {
					fate = fateRefused
					return err
				}
				return nil
			case !p.udp && v.Protocol == unix.IPPROTO_TCP && v.Flags&(nattest.SYN|nattest.ACK) == nattest.SYN,
				p.udp && v.Protocol == unix.IPPROTO_UDP && len(v.Payload) == 4 &&
					binary.BigEndian.Uint32(v.Payload) == p.id:
				fate = p.went(v)
			}
		}
	})
	return fate, err
}

// proxyPatience limits how long a node may take to process a packet.
const proxyPatience = 5 * time.Second
