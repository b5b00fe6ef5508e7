package objects

import (
	"fmt"
	"net/netip"

	netutils "k8s.io/utils/net"
)

// ParseAddr parses an address as kube-proxy does: numbers of IPv4 may have leading zeros, which API
// servers up to 1.35 keep. It returns an IPv4 address also for one that is mapped into IPv6.
func ParseAddr(s string) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%q is no IP address", s)
	}
	return a.Unmap(), nil
}

// ParsePrefix is ParseAddr for a CIDR. Bits behind its length stay.
func ParsePrefix(s string) (netip.Prefix, error) {
	ip, of, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no CIDR", s)
	}
	a, _ := netip.AddrFromSlice(ip)
	bits, _ := of.Mask.Size()
	p := netip.PrefixFrom(a.Unmap(), bits)
	if !p.IsValid() { // IPv4 addresses mapped into IPv6
		return p, fmt.Errorf("%q is no CIDR of IPv4 or IPv6", s)
	}
	return p, nil
}
