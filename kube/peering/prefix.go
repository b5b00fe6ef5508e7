package peering

import (
	"fmt"
	"net/netip"

	"culvert/nat/packet"
)

// nat64 are the prefixes whose addresses stand for those of IPv4 (RFC 6052, RFC 8215).
var nat64 = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48")}

// minBits returns the minimum prefix length of a CIDR: a shorter one covers so much of the Internet
// that it must be a mistake.
func minBits(a netip.Addr) int {
	if a.Is4() {
		return 8
	}
	return 16
}

// CheckCIDR returns why a Peering cannot have a CIDR; "" = it can.
func CheckCIDR(c netip.Prefix) (fault string) {
	switch {
	case !c.IsValid() || c.Addr().Is4In6():
		return fmt.Sprintf("%q is no CIDR such as 10.61.0.0/16 or fd61::/48", c)
	case c != c.Masked():
		return fmt.Sprintf("%s has bits to the right of its length; want %s", c, c.Masked())
	case c.Bits() < minBits(c.Addr()):
		return fmt.Sprintf("%s is shorter than /%d", c, minBits(c.Addr()))
	case !packet.Forwardable(c.Addr()) || !packet.Forwardable(last(c)):
		return fmt.Sprintf("%s has addresses that routers do not forward to", c)
	}
	for _, p := range nat64 {
		if p.Overlaps(c) {
			return fmt.Sprintf("%s overlaps %s, whose addresses stand for those of IPv4 (NAT64); choose another CIDR",
				c, p)
		}
	}
	return ""
}

// familyOf returns the name of a prefix's family.
func familyOf(c netip.Prefix) string {
	if c.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// last returns the last address of a prefix.
func last(c netip.Prefix) netip.Addr {
	a := c.Addr().AsSlice()
	for i := c.Bits(); i < 8*len(a); i++ {
		a[i/8] |= 0x80 >> (i % 8)
	}
	return addressOf(a)
}

// nth returns the n-th address from the beginning of a prefix on.
func nth(p netip.Prefix, n uint32) netip.Addr {
	a := p.Addr().AsSlice()
	for i, carry := len(a)-1, uint64(n); i >= 0; i-- {
		carry += uint64(a[i])
		a[i] = byte(carry)
		carry >>= 8
	}
	return addressOf(a)
}

// offset returns the number of an address of a prefix; false if the address is outside, or further
// from the beginning than a number says.
func offset(p netip.Prefix, a netip.Addr) (n uint32, ok bool) {
	if !p.Contains(a) {
		return 0, false
	}
	first := p.Addr().AsSlice()
	for i, b := range a.AsSlice() {
		n = n<<8 | uint32(b^first[i])
	}
	return n, nth(p, n) == a
}

// Remapped returns the address of one prefix that has the place in it that another address has in
// another prefix of the same length.
func Remapped(a netip.Addr, from, to netip.Prefix) netip.Addr {
	x, y := a.AsSlice(), to.Addr().AsSlice()
	for i := from.Bits(); i < 8*len(y); i++ {
		y[i/8] |= x[i/8] & (0x80 >> (i % 8))
	}
	return addressOf(y)
}

func addressOf(bytes []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(bytes)
	return a
}
