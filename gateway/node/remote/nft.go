package remote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// Table is the name of the nftables tables of families ip and ip6.
const Table = "culvert"

const chainName = "exception"

// A pair is a direction in which packets keep their source.
type pair struct {
	from, to netip.Prefix
	udp      uint16 // destination port; 0: every packet
}

// label is the user data that identifies a rule.
func (p pair) label() string {
	if p.udp != 0 {
		return fmt.Sprintf("%s to %s UDP %d", p.from, p.to, p.udp)
	}
	return fmt.Sprintf("%s to %s", p.from, p.to)
}

// A rule is one rule of a table.
type rule struct {
	chain, label string
	expressions  []byte
	packets      uint64 // counted by the kernel
}

// A family is the table of a family of addresses.
type family struct {
	netlink      int
	proto        byte
	source, dest uint32 // offsets of addresses in the header
}

var families = [...]family{
	{unix.AF_INET, unix.NFPROTO_IPV4, 12, 16}, // RFC 791, Section 3.1
	{unix.AF_INET6, unix.NFPROTO_IPV6, 8, 24}, // RFC 8200, Section 3
}

func (f *family) bits() int {
	if f.netlink == unix.AF_INET {
		return 32
	}
	return 128
}

// name is the table's, as nft takes it.
func (f *family) name() string {
	if f.netlink == unix.AF_INET {
		return "ip " + Table
	}
	return "ip6 " + Table
}

// load loads an address of the header into the register.
func (f *family) load(offset uint32) []byte {
	return load(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(f.bits()/8))
}

// chains are the hooks, priorities and types of chains. The first has a place before source NAT of
// others, which is at 100, and the second after it.
var chains = map[string]struct {
	hook     uint32
	priority int32
	kind     string
}{
	chainName:       {unix.NF_INET_POST_ROUTING, 99, "nat"},
	dropMasqueraded: {unix.NF_INET_POST_ROUTING, 101, "filter"},
	dropForged:      {unix.NF_INET_PRE_ROUTING, -150, "filter"},
}

// keepTables makes the tables match, each in one transaction, unless they do already. It returns
// the packets that rules had counted which it replaced.
func keepTables(pairs []pair, tunnels []Tunnel) (counted map[string]uint64, err error) {
	counted = map[string]uint64{}
	for i := range families {
		f := &families[i]
		var want []rule
		for _, p := range pairs {
			if p.from.Addr().BitLen() == f.bits() {
				want = append(want, rule{chain: chainName, label: p.label(), expressions: p.expressions(f)})
			}
		}
		if len(want) > 0 {
			want = append(f.proxied(), want...)
		}
		want = append(want, guards(tunnels, f)...)
		changed, err := f.keep(want, counted)
		if err != nil && (f.netlink == unix.AF_INET || len(want) > 0) {
			return counted, err
		}
		for _, p := range pairs {
			if changed && p.from.Addr().BitLen() == f.bits() && p.udp != 0 {
				f.forget(p)
			}
		}
	}
	return counted, nil
}

// read returns the rules in the table, and whether it exists.
func (f *family) read() (have []rule, there bool, err error) {
	conn, err := dialNetfilter()
	if err != nil {
		return nil, false, err
	}
	defer conn.close()
	return conn.rules(f)
}

// keep makes the table match, in one transaction, unless it does already.
func (f *family) keep(want []rule, counted map[string]uint64) (changed bool, err error) {
	conn, err := dialNetfilter()
	if err != nil {
		return false, err
	}
	defer conn.close()
	have, there, err := conn.rules(f)
	if err != nil {
		return false, err
	}
	same := func(a, b rule) bool { return a.chain == b.chain && a.label == b.label }
	if slices.EqualFunc(have, want, same) && there == (len(want) > 0) {
		return false, nil
	}
	b := batch{family: f.proto}
	b.begin()
	// Adding an existing table is no error, so that the table can be deleted in any case.
	b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, text(unix.NFTA_TABLE_NAME, Table))
	b.message(unix.NFT_MSG_DELTABLE, 0, text(unix.NFTA_TABLE_NAME, Table))
	if len(want) > 0 {
		b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, text(unix.NFTA_TABLE_NAME, Table))
	}
	last := ""
	for _, r := range want {
		if r.chain != last {
			c := chains[r.chain]
			hook := slices.Concat(number(unix.NFTA_HOOK_HOOKNUM, c.hook), number(unix.NFTA_HOOK_PRIORITY,
				uint32(c.priority)))
			b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, text(unix.NFTA_CHAIN_TABLE, Table),
				text(unix.NFTA_CHAIN_NAME, r.chain),
				nested(unix.NFTA_CHAIN_HOOK, hook), number(unix.NFTA_CHAIN_POLICY, accept),
				text(unix.NFTA_CHAIN_TYPE, c.kind))
			last = r.chain
		}
		b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, text(unix.NFTA_RULE_TABLE, Table),
			text(unix.NFTA_RULE_CHAIN, r.chain),
			nested(unix.NFTA_RULE_EXPRESSIONS, r.expressions), attribute(unix.NFTA_RULE_USERDATA, []byte(r.label)))
	}
	b.ask()
	b.end()
	if err := conn.commit(&b); err != nil {
		return false, err
	}
	for _, r := range have {
		counted[r.chain] += r.packets
	}
	return true, nil
}

// forget makes the kernel forget translations that are older than the rule: a UDP connection in use
// never ends by itself. If the kernel refuses, connections in use keep their translation.
func (f *family) forget(p pair) {
	filter := &netlink.ConntrackFilter{}
	if errors.Join(filter.AddIPNet(netlink.ConntrackOrigSrcIP, rtnl.IPNet(p.from)),
		filter.AddProtocol(unix.IPPROTO_UDP), filter.AddPort(netlink.ConntrackOrigDstPort, p.udp)) == nil {
		netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(f.netlink), filter)
	}
}

// remove deletes the table, and reports whether it existed.
func (f *family) remove() (there bool, err error) {
	if _, there, err = f.read(); err == nil && there {
		_, err = f.keep(nil, map[string]uint64{})
	}
	return there, err
}

// From linux/netfilter and linux/netfilter/nf_tables.h.
const (
	accept     = 1 // NF_ACCEPT
	register   = unix.NFT_REG_1
	offsetPort = 2 // of the destination, in a UDP header (RFC 768)
)

// expressions match the packets of a pair and keep their source.
func (p pair) expressions(f *family) []byte {
	var only []byte
	if p.udp != 0 {
		only = udpTo(p.udp)
	}
	return slices.Concat(
		only, f.load(f.source), within(p.from), f.load(f.dest), within(p.to), f.load(f.source),
		expression("nat", number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT),
			number(unix.NFTA_NAT_FAMILY, uint32(f.proto)), number(unix.NFTA_NAT_REG_ADDR_MIN, register)))
}

// proxied returns rules that leave alone what came in by an uplink and got its destination here, as
// by a NodePort: its source may be a pod of another node, which must not get the answers directly.
func (f *family) proxied() (all []rule) {
	uplinks, err := f.uplinks()
	if err != nil {
		return nil
	}
	for _, index := range uplinks {
		all = append(all, rule{chain: chainName, label: fmt.Sprintf("proxied from device %d", index),
			expressions: slices.Concat(meta(unix.NFT_META_IIF), equals(native32(uint32(index))),
				ctStatus(ipsDestNAT), verdict(accept))})
	}
	return all
}

// load loads bytes of a header into the register.
func load(header, offset, length uint32) []byte {
	return expression("payload", number(unix.NFTA_PAYLOAD_DREG, register), number(unix.NFTA_PAYLOAD_BASE, header),
		number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, length))
}

// equals continues the rule if the register has a value.
func equals(value []byte) []byte { return compare(unix.NFT_CMP_EQ, value) }

// differs continues the rule if the register has another value.
func differs(value []byte) []byte { return compare(unix.NFT_CMP_NEQ, value) }

func compare(how uint32, value []byte) []byte {
	return expression("cmp", number(unix.NFTA_CMP_SREG, register), number(unix.NFTA_CMP_OP, how),
		nested(unix.NFTA_CMP_DATA, attribute(unix.NFTA_DATA_VALUE, value)))
}

// masked keeps the bits of a mask in the register.
func masked(mask []byte) []byte {
	return expression("bitwise",
		number(unix.NFTA_BITWISE_SREG, register), number(unix.NFTA_BITWISE_DREG, register),
		number(unix.NFTA_BITWISE_LEN, uint32(len(mask))),
		nested(unix.NFTA_BITWISE_MASK, attribute(unix.NFTA_DATA_VALUE, mask)),
		nested(unix.NFTA_BITWISE_XOR, attribute(unix.NFTA_DATA_VALUE, make([]byte, len(mask)))))
}

// within continues the rule if the address in the register lies in a prefix.
func within(p netip.Prefix) []byte {
	return slices.Concat(masked(rtnl.IPNet(p).Mask), equals(p.Masked().Addr().AsSlice()))
}

func expression(name string, parts ...[]byte) []byte {
	return nested(unix.NFTA_LIST_ELEM, slices.Concat(text(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA,
		slices.Concat(parts...))))
}

// attribute is a netlink attribute, padded to 4 bytes.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func nested(kind uint16, value []byte) []byte { return attribute(kind|unix.NLA_F_NESTED, value) }

func text(kind uint16, value string) []byte { return attribute(kind, append([]byte(value), 0)) }

// number encodes 32 bits, in network byte order as nf_tables has them.
func number(kind uint16, value uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, value))
}
