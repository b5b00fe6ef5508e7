package sim

import (
	"encoding/binary"
	"net/netip"

	"culvert/gateway/config"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A plan is the addresses of one family. Those of both clusters are the same, and each sees the
// other's by remaps.
type plan struct {
	pods       [2][2]netip.Addr // by node
	guests     [2]netip.Addr    // what no CIDR knows, such as a node's own address; by node
	flooder    netip.Addr       // another guest of the first node
	mappedHost netip.Addr       // behind the first node
	mapping    netip.Addr
	service    netip.AddrPort
	unknown    netip.Addr
	backends   []netip.AddrPort

	local, external netip.Prefix
	cidrs           [2]netip.Prefix // by node
	nodes           [2]netip.Addr
	gateway         netip.Addr
	remotePods      [2]netip.Prefix // of the other side, by which side sees them
	remoteExternal  [2]netip.Prefix
}

var (
	prefix   = netip.MustParsePrefix
	addr     = netip.MustParseAddr
	addrPort = netip.MustParseAddrPort
	names    = []string{"rome", "milan"}
	plans    = [2]*plan{{
		pods:   [2][2]netip.Addr{{addr("10.0.1.5"), addr("10.0.1.6")}, {addr("10.0.2.5"), addr("10.0.3.9")}},
		guests: [2]netip.Addr{addr("172.18.0.10"), addr("172.18.0.11")}, flooder: addr("172.18.0.66"),
		mappedHost: addr("10.111.0.9"), mapping: addr("10.70.0.5"), service: addrPort("10.70.0.20:80"),
		unknown:  addr("10.70.0.0"),
		backends: []netip.AddrPort{addrPort("10.0.1.6:8080"), addrPort("10.0.3.9:8080")},
		local:    prefix("10.0.0.0/16"), external: prefix("10.70.0.0/16"),
		cidrs: [2]netip.Prefix{prefix("10.0.1.0/24"), prefix("10.0.2.0/23")}, nodes: [2]netip.Addr{addr("10.80.0.2"),
			addr("10.80.0.3")}, gateway: addr("10.80.0.4"),
		remotePods:     [2]netip.Prefix{prefix("10.61.0.0/16"), prefix("10.62.0.0/16")},
		remoteExternal: [2]netip.Prefix{prefix("10.71.0.0/16"), prefix("10.72.0.0/16")},
	}, {
		pods: [2][2]netip.Addr{{addr("fd00:10:0:1::5"), addr("fd00:10:0:1::6")},
			{addr("fd00:10:0:2::5"), addr("fd00:10:0:3::9")}},
		guests: [2]netip.Addr{addr("2001:db8::10"), addr("2001:db8:0:1::11")}, flooder: addr("2001:db8:0:2::66"),
		mappedHost: addr("fd00:111::9"), mapping: addr("fd00:70::5"), service: addrPort("[fd00:70::20]:80"),
		unknown:  addr("fd00:70::"),
		backends: []netip.AddrPort{addrPort("[fd00:10:0:1::6]:8080"), addrPort("[fd00:10:0:3::9]:8080")},
		local:    prefix("fd00:10::/48"), external: prefix("fd00:70::/48"),
		cidrs: [2]netip.Prefix{prefix("fd00:10:0:1::/64"), prefix("fd00:10:0:2::/63")},
		nodes: [2]netip.Addr{addr("fd80::2"), addr("fd80::3")}, gateway: addr("fd80::4"),
		remotePods:     [2]netip.Prefix{prefix("fd00:61::/48"), prefix("fd00:62::/48")},
		remoteExternal: [2]netip.Prefix{prefix("fd00:71::/48"), prefix("fd00:72::/48")},
	}}
)

// pair returns one address of each family.
func pair(of func(p *plan) netip.Addr) rules.Pair {
	return rules.Pair{V4: of(plans[0]), V6: of(plans[1])}
}

// remap returns a as the side with an index sees it if it is the other side's.
func (p *plan) remap(index int, a netip.Addr) netip.Addr {
	from, to := p.local, p.remotePods[index]
	if p.external.Contains(a) {
		from, to = p.external, p.remoteExternal[index]
	}
	b, as := a.AsSlice(), to.Addr().AsSlice()
	copy(b, as[:from.Bits()/8])
	is, _ := netip.AddrFromSlice(b)
	return is
}

// apply gives a configuration what the plan says.
func (p *plan) apply(index int, c *config.Config) {
	c.Local.PodCIDRs = append(c.Local.PodCIDRs, p.local)
	c.Local.ExternalCIDRs = append(c.Local.ExternalCIDRs, p.external)
	c.Remote = append(c.Remote,
		rules.RemoteCIDR{Real: p.local, Remapped: p.remotePods[index]},
		rules.RemoteCIDR{Real: p.external, Remapped: p.remoteExternal[index], External: true})
	for i := range c.Geneve.Nodes {
		c.Geneve.Nodes[i].PodCIDRs = append(c.Geneve.Nodes[i].PodCIDRs, p.cidrs[i])
	}
}

// services are those of both families.
func services() (all []config.Service) {
	for _, protocol := range []uint8{packet.TCP, packet.UDP, packet.SCTP} {
		s := config.Service{
			Name: "web-" + string('a'+rune(protocol%26)), Address: pair(func(p *plan) netip.Addr {
				return p.service.Addr()
			}),
			Port: plans[0].service.Port(), Protocol: protocol,
		}
		for _, p := range plans {
			for _, b := range p.backends {
				s.Backends = append(s.Backends, config.Backend{Address: b.Addr(), Port: b.Port(), Weight: 1})
			}
		}
		all = append(all, s)
	}
	return all
}

// The packets of a family as bytes.

const (
	fragmentHeader = 44 // next header (RFC 8200, Section 4.5)
	icmp, icmp6    = 1, 58
)

// cut cuts a packet into fragments of at most so many bytes (RFC 791, Section 2.3; RFC 8200,
// Section 4.5).
func cut(b []byte, most int, id uint32) (all [][]byte) {
	header := 20
	if b[0]>>4 == 6 {
		header = 40
	}
	room := (most - header - 8) &^ 7
	for at, body := 0, b[header:]; at < len(body); at += room {
		end := min(at+room, len(body))
		more := uint16(0)
		if end < len(body) {
			more = 1
		}
		var f []byte
		if header == 20 {
			f = append(append(f, b[:20]...), body[at:end]...)
			binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
			binary.BigEndian.PutUint16(f[4:], uint16(id))
			binary.BigEndian.PutUint16(f[6:], more<<13|uint16(at/8))
			sumHeader(f)
		} else {
			f = append(append(f, b[:40]...), b[6], 0, 0, 0, 0, 0, 0, 0)
			binary.BigEndian.PutUint16(f[42:], uint16(at)|more)
			binary.BigEndian.PutUint32(f[44:], id)
			f[6] = fragmentHeader
			f = append(f, body[at:end]...)
			binary.BigEndian.PutUint16(f[4:], uint16(len(f)-40))
		}
		all = append(all, f)
	}
	return all
}

// sumHeader fills in the checksum of an IPv4 header without options.
func sumHeader(b []byte) {
	b[10], b[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
}
