package remote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Table is the name of the nftables table of family ip.
const Table = "culvert"

const (
	chainName     = "exception"
	chainPriority = 99 // source NAT of others is at 100
)

// A pair is a direction in which packets keep their source.
type pair struct {
	from, to netip.Prefix
	udp      uint16 // destination port; 0: every packet
}

// label is the user data of a rule, by which it is recognised.
func (p pair) label() string {
	if p.udp != 0 {
		return fmt.Sprintf("%s to %s UDP %d", p.from, p.to, p.udp)
	}
	return fmt.Sprintf("%s to %s", p.from, p.to)
}

// keepTable makes the table match pairs, in one transaction, unless it does already.
func keepTable(pairs []pair) error {
	conn, err := dialNetfilter()
	if err != nil {
		return err
	}
	defer conn.close()
	var want []string
	for _, p := range pairs {
		want = append(want, p.label())
	}
	have, there, err := conn.rules()
	if err != nil {
		return err
	}
	if slices.Equal(have, want) && there == (len(want) > 0) {
		return nil
	}
	var b batch
	b.begin()
	// Adding an existing table is no error, so that the table can be deleted in any case.
	b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, text(unix.NFTA_TABLE_NAME, Table))
	b.message(unix.NFT_MSG_DELTABLE, 0, text(unix.NFTA_TABLE_NAME, Table))
	if len(pairs) > 0 {
		b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, text(unix.NFTA_TABLE_NAME, Table))
		hook := slices.Concat(number(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_POST_ROUTING), number(unix.NFTA_HOOK_PRIORITY, chainPriority))
		b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, text(unix.NFTA_CHAIN_TABLE, Table), text(unix.NFTA_CHAIN_NAME, chainName),
			nested(unix.NFTA_CHAIN_HOOK, hook), number(unix.NFTA_CHAIN_POLICY, accept), text(unix.NFTA_CHAIN_TYPE, "nat"))
	}
	for _, p := range pairs {
		b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, text(unix.NFTA_RULE_TABLE, Table), text(unix.NFTA_RULE_CHAIN, chainName),
			nested(unix.NFTA_RULE_EXPRESSIONS, p.expressions()), attribute(unix.NFTA_RULE_USERDATA, []byte(p.label())))
	}
	b.end()
	if err := conn.commit(b.bytes); err != nil {
		return err
	}
	for _, p := range pairs {
		if p.udp != 0 {
			forget(p)
		}
	}
	return nil
}

// forget makes the kernel forget translations that are older than the rule: a UDP connection in use
// never ends by itself. If the kernel refuses, connections in use keep their translation.
func forget(p pair) {
	f := &netlink.ConntrackFilter{}
	if errors.Join(f.AddIPNet(netlink.ConntrackOrigSrcIP, ipNet(p.from)), f.AddProtocol(unix.IPPROTO_UDP), f.AddPort(netlink.ConntrackOrigDstPort, p.udp)) == nil {
		netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f)
	}
}

// removeTable deletes the table, and reports whether it existed.
func removeTable() (there bool, err error) {
	conn, err := dialNetfilter()
	if err != nil {
		return false, err
	}
	defer conn.close()
	if _, there, err = conn.rules(); err != nil || !there {
		return false, err
	}
	return true, keepTable(nil)
}

// From linux/netfilter and linux/netfilter/nf_tables.h.
const (
	accept        = 1 // NF_ACCEPT
	register      = unix.NFT_REG_1
	offsetSource  = 12 // in an IPv4 header (RFC 791, Section 3.1)
	offsetDest    = 16
	addressLength = 4

	offsetProtocol = 9
	offsetPort     = 2 // of the destination, in a UDP header (RFC 768)
)

// expressions match the packets of a pair and keep their source.
func (p pair) expressions() []byte {
	var only []byte
	if p.udp != 0 {
		only = slices.Concat(load(unix.NFT_PAYLOAD_NETWORK_HEADER, offsetProtocol, 1), equals([]byte{unix.IPPROTO_UDP}),
			load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offsetPort, 2), equals(binary.BigEndian.AppendUint16(nil, p.udp)))
	}
	return slices.Concat(
		only, loadAddress(offsetSource), within(p.from), loadAddress(offsetDest), within(p.to), loadAddress(offsetSource),
		expression("nat", number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT), number(unix.NFTA_NAT_FAMILY, unix.NFPROTO_IPV4),
			number(unix.NFTA_NAT_REG_ADDR_MIN, register)))
}

// loadAddress loads an address of the IPv4 header into the register.
func loadAddress(offset uint32) []byte {
	return load(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, addressLength)
}

// load loads bytes of a header into the register.
func load(header, offset, length uint32) []byte {
	return expression("payload", number(unix.NFTA_PAYLOAD_DREG, register), number(unix.NFTA_PAYLOAD_BASE, header),
		number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, length))
}

// equals continues the rule if the register has a value.
func equals(value []byte) []byte {
	return expression("cmp", number(unix.NFTA_CMP_SREG, register), number(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ),
		nested(unix.NFTA_CMP_DATA, attribute(unix.NFTA_DATA_VALUE, value)))
}

// within continues the rule if the address in the register lies in a prefix.
func within(p netip.Prefix) []byte {
	mask := make([]byte, addressLength)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-p.Bits()))
	return slices.Concat(
		expression("bitwise",
			number(unix.NFTA_BITWISE_SREG, register), number(unix.NFTA_BITWISE_DREG, register), number(unix.NFTA_BITWISE_LEN, addressLength),
			nested(unix.NFTA_BITWISE_MASK, attribute(unix.NFTA_DATA_VALUE, mask)),
			nested(unix.NFTA_BITWISE_XOR, attribute(unix.NFTA_DATA_VALUE, make([]byte, addressLength)))),
		equals(p.Masked().Addr().AsSlice()))
}

func expression(name string, parts ...[]byte) []byte {
	return nested(unix.NFTA_LIST_ELEM, slices.Concat(text(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, slices.Concat(parts...))))
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

// A batch is a transaction of nf_tables: all of it takes effect, or nothing.
type batch struct {
	bytes    []byte
	sequence uint32
}

func (b *batch) begin() { b.control(unix.NFNL_MSG_BATCH_BEGIN) }
func (b *batch) end()   { b.control(unix.NFNL_MSG_BATCH_END) }

// control begins or ends a batch. The message has the number of the subsystem in place of a
// resource's.
func (b *batch) control(kind uint16) {
	b.add(kind, 0, []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES})
}

func (b *batch) message(kind, flags uint16, parts ...[]byte) {
	b.add(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_ACK|flags,
		slices.Concat([]byte{unix.NFPROTO_IPV4, unix.NFNETLINK_V0, 0, 0}, slices.Concat(parts...)))
}

func (b *batch) add(kind, flags uint16, body []byte) {
	b.sequence++
	h := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	h = binary.NativeEndian.AppendUint16(h, kind)
	h = binary.NativeEndian.AppendUint16(h, unix.NLM_F_REQUEST|flags)
	h = binary.NativeEndian.AppendUint32(h, b.sequence)
	h = binary.NativeEndian.AppendUint32(h, 0)
	b.bytes = append(append(b.bytes, h...), body...) // bodies are padded, because all their attributes are
}

// A netfilterConn is a netlink socket for netfilter.
type netfilterConn struct{ fd int }

// answerTime is how long the kernel may take to answer, in seconds.
const answerTime = 5

func dialNetfilter() (*netfilterConn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket of netfilter", err)
	}
	c := &netfilterConn{fd}
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime}),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})); err != nil {
		c.close()
		return nil, os.NewSyscallError("bind a socket of netfilter", err)
	}
	return c, nil
}

func (c *netfilterConn) close() { unix.Close(c.fd) }

func (c *netfilterConn) send(b []byte) error {
	return os.NewSyscallError("send to netfilter", unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// answers calls with for each message of the kernel until with returns true.
func (c *netfilterConn) answers(with func(h *unix.NlMsghdr, body []byte) (done bool, err error)) error {
	b := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(c.fd, b, 0)
		if err != nil {
			return os.NewSyscallError("receive from netfilter", err)
		}
		for rest := b[:n]; len(rest) >= unix.SizeofNlMsghdr; {
			h := unix.NlMsghdr{Len: binary.NativeEndian.Uint32(rest), Type: binary.NativeEndian.Uint16(rest[4:]), Seq: binary.NativeEndian.Uint32(rest[8:])}
			if h.Len < unix.SizeofNlMsghdr || int(h.Len) > len(rest) {
				return errors.New("netfilter: a message of the kernel is cut short")
			}
			done, err := with(&h, rest[unix.SizeofNlMsghdr:h.Len])
			if done || err != nil {
				return err
			}
			rest = rest[min(int(h.Len+3)&^3, len(rest)):]
		}
	}
}

// refusal returns the error in the body of an NLMSG_ERROR; nil for an acknowledgement.
func refusal(body []byte) error {
	if len(body) < 4 {
		return errors.New("netfilter: an answer of the kernel is cut short")
	}
	if errno := -int32(binary.NativeEndian.Uint32(body)); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// commit sends a batch and waits until the kernel has answered each of its messages.
func (c *netfilterConn) commit(b []byte) error {
	if err := c.send(b); err != nil {
		return err
	}
	last := uint32(0) // the last message that asks for an answer
	for rest := b; len(rest) > 0; rest = rest[binary.NativeEndian.Uint32(rest):] {
		if binary.NativeEndian.Uint16(rest[6:])&unix.NLM_F_ACK != 0 {
			last = binary.NativeEndian.Uint32(rest[8:])
		}
	}
	return c.answers(func(h *unix.NlMsghdr, body []byte) (bool, error) {
		if h.Type != unix.NLMSG_ERROR {
			return false, nil
		}
		err := refusal(body)
		return h.Seq == last, err
	})
}

// rules returns the labels of the rules in the table, and whether the table exists.
func (c *netfilterConn) rules() (labels []string, there bool, err error) {
	_, err = c.dump(unix.NFT_MSG_GETTABLE, false, text(unix.NFTA_TABLE_NAME, Table))
	if errors.Is(err, unix.ENOENT) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	labels, err = c.dump(unix.NFT_MSG_GETRULE, true, text(unix.NFTA_RULE_TABLE, Table))
	return labels, true, err
}

// dump requests one object, or all. It returns the user data of rules.
func (c *netfilterConn) dump(kind uint16, all bool, parts ...[]byte) (labels []string, err error) {
	var b batch
	flags := uint16(0)
	if all {
		flags = unix.NLM_F_DUMP
	}
	b.message(kind, flags, parts...)
	if err := c.send(b.bytes); err != nil {
		return nil, err
	}
	err = c.answers(func(h *unix.NlMsghdr, body []byte) (bool, error) {
		switch h.Type {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			return true, refusal(body)
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE:
			labels = append(labels, userData(body))
		}
		return false, nil
	})
	return labels, err
}

// userData returns the user data among a rule's attributes; "" if there is none.
func userData(body []byte) string {
	const header = 4 // bytes of nfnetlink's header
	for rest := body[min(header, len(body)):]; len(rest) >= unix.SizeofNlAttr; {
		n, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if n < unix.SizeofNlAttr || n > len(rest) {
			return ""
		}
		if kind&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == unix.NFTA_RULE_USERDATA {
			return strings.TrimRight(string(rest[unix.SizeofNlAttr:n]), "\x00")
		}
		rest = rest[min((n+3)&^3, len(rest)):]
	}
	return ""
}
