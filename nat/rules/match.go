package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"culvert/nat/packet"
)

const (
	noLink      Link = 0xfffe // the link is not known, or not yet
	unknownLink Link = 0xfffd // compiled from a device without a link; no view has it
)

// A view is what rules see of a packet at one stage.
type view struct {
	src, dst  netip.Addr // never IPv4 mapped into IPv6
	proto     uint8
	l4        [4]byte  // the first bytes of the transport header
	hasL4     bool     // false: the packet is shorter, and no comparison of ports holds
	in, out   Link     // noLink before routing
	untracked bool     // no connection belongs to the packet
	rules     *Ruleset // to ask whether a route leads back; nil if nothing asks
	trace     Tracer   // nil: not traced
}

// A field is what a comparison examines.
type field uint8

const (
	fieldProto field = iota
	fieldIn
	fieldOut
	fieldSource
	fieldDestination
	fieldSourcePort
	fieldDestinationPort
	fieldNoReturn
)

// A comparison is one compiled test of a rule.
type comparison struct {
	field  field
	negate bool
	// hostBits: the CIDR was written with host bits set. The packet's address is masked and
	// compared with the CIDR as written, so they are never equal.
	hostBits bool
	lo, hi   uint16 // ports from lo to hi; lo alone for protocols and devices
	prefix   netip.Prefix
	span     *[2]netip.Addr // a range of addresses, both ends included; prefix then covers it
}

// holds reports whether the comparison is true for v.
func (c *comparison) holds(v *view) bool {
	switch c.field {
	case fieldProto:
		return v.proto == uint8(c.lo)
	case fieldIn:
		return (v.in == Link(c.lo)) != c.negate
	case fieldOut:
		return (v.out == Link(c.lo)) != c.negate
	case fieldSource:
		return c.holdsAddress(v.src)
	case fieldDestination:
		return c.holdsAddress(v.dst)
	case fieldSourcePort:
		return v.hasL4 && c.holdsPort(binary.BigEndian.Uint16(v.l4[:2]))
	case fieldDestinationPort:
		return v.hasL4 && c.holdsPort(binary.BigEndian.Uint16(v.l4[2:]))
	case fieldNoReturn:
		if v.rules == nil {
			return false
		}
		_, back := v.rules.Route(v.out, 0, v.dst, v.src)
		return !back
	}
	return false
}

func (c *comparison) holdsPort(p uint16) bool {
	return (c.lo <= p && p <= c.hi) != c.negate
}

// holdsAddress compares an address. A comparison implies the family of its value, even if negated,
// as in nft.
func (c *comparison) holdsAddress(a netip.Addr) bool {
	if a.Is4() != c.prefix.Addr().Is4() {
		return false
	}
	var equal bool
	switch {
	case c.span != nil:
		equal = c.span[0].Compare(a) <= 0 && a.Compare(c.span[1]) <= 0
	case !c.hostBits:
		equal = c.prefix.Contains(a)
	}
	return equal != c.negate
}

// never reports whether the comparison is true for no packet.
func (c *comparison) never() bool {
	if c.negate {
		return false
	}
	switch c.field {
	case fieldIn, fieldOut:
		return Link(c.lo) == unknownLink
	case fieldSource, fieldDestination:
		return c.hostBits
	}
	return false
}

// comparisons returns how many comparisons matches have.
func comparisons(matches []Match) (n int) {
	for i := range matches {
		m := &matches[i]
		for _, there := range [...]bool{m.Proto != "", m.Dev != Operand{}, m.IP != Operand{}, m.Port != Operand{},
			m.NoReturn} {
			if there {
				n++
			}
		}
	}
	return n
}

// match appends the comparisons of m to all, or says what is wrong with m.
func (b *builder) match(all []comparison, m *Match, family Family) ([]comparison, error) {
	var negate bool
	switch m.Op {
	case OpEqual, "":
	case OpNotEqual:
		negate = true
	default:
		return all, fmt.Errorf("op %q is neither eq nor neq", m.Op)
	}
	if m.Proto != "" {
		n, ok := protocolNumber(m.Proto)
		if !ok {
			return all, fmt.Errorf("proto %q is no protocol", m.Proto)
		}
		all = append(all, comparison{field: fieldProto, lo: uint16(n)})
	}
	if m.Dev != (Operand{}) {
		c := comparison{field: fieldIn, negate: negate}
		switch m.Dev.Position {
		case PositionIn:
		case PositionOut:
			c.field = fieldOut
		default:
			return all, fmt.Errorf("dev position %q is neither in nor out", m.Dev.Position)
		}
		c.lo = uint16(b.device(m.Dev.Value))
		all = append(all, c)
	}
	if m.IP != (Operand{}) {
		c, err := compileAddress(m.IP, negate, family)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	if m.Port != (Operand{}) {
		c, err := compilePort(m.Port, negate)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	if m.NoReturn {
		if negate {
			return all, errors.New("op neq does not go with NoReturn")
		}
		all = append(all, comparison{field: fieldNoReturn})
	}
	return all, nil
}

func compileAddress(o Operand, negate bool, family Family) (comparison, error) {
	c := comparison{field: fieldSource, negate: negate}
	switch o.Position {
	case PositionSource:
	case PositionDestination:
		c.field = fieldDestination
	default:
		return c, fmt.Errorf("ip position %q is neither src nor dst", o.Position)
	}
	if strings.Contains(o.Value, "-") {
		a, b, err := parseRange(o.Value)
		if err != nil {
			return c, fmt.Errorf("ip %w", err)
		}
		c.span = &[2]netip.Addr{a, b}
		c.prefix = covering(a, b)
	} else if p, err := parsePrefix(o.Value); err == nil {
		c.hostBits = p != p.Masked()
		c.prefix = p
	} else {
		return c, fmt.Errorf("ip %q is no address, CIDR or range", o.Value)
	}
	if a := c.prefix.Addr(); a.Is4In6() || a.Zone() != "" || !family.sees(a) {
		return c, fmt.Errorf("ip %q is no address of family %s", o.Value, family)
	}
	return c, nil
}

func compilePort(o Operand, negate bool) (comparison, error) {
	c := comparison{field: fieldSourcePort, negate: negate}
	switch o.Position {
	case PositionSource:
	case PositionDestination:
		c.field = fieldDestinationPort
	default:
		return c, fmt.Errorf("port position %q is neither src nor dst", o.Position)
	}
	first, last, isRange := strings.Cut(o.Value, "-")
	if isRange {
		c.negate = false
	} else {
		last = first
	}
	lo, errLo := strconv.ParseUint(first, 10, 16)
	hi, errHi := strconv.ParseUint(last, 10, 16)
	if errLo != nil || errHi != nil || lo > hi {
		return c, fmt.Errorf("port %q is no port or range of ports in ascending order", o.Value)
	}
	c.lo, c.hi = uint16(lo), uint16(hi)
	return c, nil
}

// sees reports whether packets of a's family traverse a table of family f.
func (f Family) sees(a netip.Addr) bool {
	return f == FamilyINET || a.Is4() == (f == FamilyIPv4)
}

// families is a Family as bits.
type families uint8

const (
	families4 families = 1 << iota
	families6
)

func familiesOf(a netip.Addr) families {
	if a.Is4() {
		return families4
	}
	return families6
}

func (f Family) bits() families {
	switch f {
	case FamilyIPv4:
		return families4
	case FamilyIPv6:
		return families6
	}
	return families4 | families6
}

// parsePrefix parses a CIDR, or an address as a prefix of full length.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// parseRange parses "first-last". It rejects zones and IPv4-mapped IPv6 addresses: no packet has
// them, and no prefix covers them together with addresses that packets have.
func parseRange(s string) (first, last netip.Addr, err error) {
	from, to, _ := strings.Cut(s, "-")
	first, errFirst := netip.ParseAddr(from)
	last, errLast := netip.ParseAddr(to)
	plain := func(a netip.Addr) bool { return a.Zone() == "" && !a.Is4In6() }
	if errFirst != nil || errLast != nil || first.Is4() != last.Is4() || !plain(first) || !plain(last) ||
		last.Less(first) {
		return first, last, fmt.Errorf("%q is no range of addresses in ascending order", s)
	}
	return first, last, nil
}

// covering returns the longest prefix that holds both a and b. Preconditions: they are of
// parseRange.
func covering(a, b netip.Addr) netip.Prefix {
	for bits := a.BitLen(); ; bits-- {
		if p, _ := a.Prefix(bits); p.Contains(b) {
			return p
		}
	}
}

// protocolNumber returns the IANA number of a protocol given by name or number.
func protocolNumber(s string) (uint8, bool) {
	switch s {
	case "tcp":
		return packet.TCP, true
	case "udp":
		return packet.UDP, true
	case "sctp":
		return packet.SCTP, true
	case "icmp":
		return packet.ICMP, true
	case "icmpv6":
		return packet.ICMPv6, true
	}
	n, err := strconv.ParseUint(s, 10, 8)
	return uint8(n), err == nil
}
