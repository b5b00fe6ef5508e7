package remote

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A batch is a transaction of nf_tables: all of it takes effect, or nothing.
type batch struct {
	family   byte // of tables
	bytes    []byte
	sequence uint32 // of the last message
	last     int    // its offset
}

func (b *batch) begin() { b.control(unix.NFNL_MSG_BATCH_BEGIN) }
func (b *batch) end()   { b.control(unix.NFNL_MSG_BATCH_END) }

// control begins or ends a batch. The message has the number of the subsystem in place of a
// resource's.
func (b *batch) control(kind uint16) {
	b.add(kind, 0, []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES})
}

func (b *batch) message(kind, flags uint16, parts ...[]byte) {
	b.add(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags,
		slices.Concat([]byte{b.family, unix.NFNETLINK_V0, 0, 0}, slices.Concat(parts...)))
}

// ask requests the acknowledgement of the last message. The kernel reports failures of the others
// unasked; the acknowledgements of all rules would not fit into the socket's receive buffer.
func (b *batch) ask() {
	flags := b.bytes[b.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
}

func (b *batch) add(kind, flags uint16, body []byte) {
	b.sequence++
	b.last = len(b.bytes)
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
	// NETLINK_NO_ENOBUFS: when every rule of a large table is refused, the first refusal says why,
	// not the lack of room for the others.
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})); err != nil {
		c.close()
		return nil, os.NewSyscallError("set up a socket of netfilter", err)
	}
	return c, nil
}

func (c *netfilterConn) close() { unix.Close(c.fd) }

func (c *netfilterConn) send(b []byte) error {
	return os.NewSyscallError("send to netfilter",
		unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
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
			h := unix.NlMsghdr{Len: binary.NativeEndian.Uint32(rest), Type: binary.NativeEndian.Uint16(rest[4:]),
				Seq: binary.NativeEndian.Uint32(rest[8:])}
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

// commit ends and sends a batch whose last message requests an acknowledgement, and waits for that
// acknowledgement or the first failure.
func (c *netfilterConn) commit(b *batch) error {
	// The kernel takes a transaction in one piece. If the buffer cannot grow, sending fails.
	if unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(b.bytes)) != nil {
		unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, len(b.bytes))
	}
	if err := c.send(b.bytes); err != nil {
		return err
	}
	asked := b.sequence - 1
	return c.answers(func(h *unix.NlMsghdr, body []byte) (bool, error) {
		if h.Type != unix.NLMSG_ERROR {
			return false, nil
		}
		err := refusal(body)
		return h.Seq == asked, err
	})
}

// rules returns the rules in a family's table, and whether the table exists.
func (c *netfilterConn) rules(f *family) (all []rule, there bool, err error) {
	_, err = c.dump(f, unix.NFT_MSG_GETTABLE, false, text(unix.NFTA_TABLE_NAME, Table))
	if errors.Is(err, unix.ENOENT) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	all, err = c.dump(f, unix.NFT_MSG_GETRULE, true, text(unix.NFTA_RULE_TABLE, Table))
	return all, true, err
}

// dump requests one object, or all. It returns rules.
func (c *netfilterConn) dump(f *family, kind uint16, all bool, parts ...[]byte) (rules []rule, err error) {
	b := batch{family: f.proto}
	flags := uint16(0)
	if all {
		flags = unix.NLM_F_DUMP
	}
	b.message(kind, flags, parts...)
	b.ask()
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
			const header = 4 // bytes of nfnetlink's header
			rules = append(rules, readRule(body[min(header, len(body)):]))
		}
		return false, nil
	})
	return rules, err
}

// readRule reads a rule's attributes.
func readRule(body []byte) (r rule) {
	eachAttribute(body, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_RULE_CHAIN:
			r.chain = strings.TrimRight(string(value), "\x00")
		case unix.NFTA_RULE_USERDATA:
			r.label = strings.TrimRight(string(value), "\x00")
		case unix.NFTA_RULE_EXPRESSIONS:
			eachAttribute(value, func(_ uint16, element []byte) {
				name, data := "", []byte(nil)
				eachAttribute(element, func(kind uint16, value []byte) {
					switch kind {
					case unix.NFTA_EXPR_NAME:
						name = strings.TrimRight(string(value), "\x00")
					case unix.NFTA_EXPR_DATA:
						data = value
					}
				})
				if name != "counter" {
					return
				}
				eachAttribute(data, func(kind uint16, value []byte) {
					if kind == counterNumber && len(value) == 8 {
						r.packets = binary.BigEndian.Uint64(value)
					}
				})
			})
		}
	})
	return r
}

// eachAttribute visits netlink attributes, up to the first that is cut short.
func eachAttribute(rest []byte, visit func(kind uint16, value []byte)) {
	for len(rest) >= unix.SizeofNlAttr {
		n, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if n < unix.SizeofNlAttr || n > len(rest) {
			return
		}
		visit(kind&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), rest[unix.SizeofNlAttr:n])
		rest = rest[min((n+3)&^3, len(rest)):]
	}
}
