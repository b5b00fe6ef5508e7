package kube

import (
	"net/netip"
	"strings"
)

// ParseAddr parses an address as kube-proxy does (k8s.io/utils/net, ParseIPSloppy): numbers of IPv4 may have leading zeros, which API servers up to
// 1.35 keep.
func ParseAddr(s string) (netip.Addr, error) { return netip.ParseAddr(withoutZeros(s)) }

// ParsePrefix is ParseAddr for a CIDR.
func ParsePrefix(s string) (netip.Prefix, error) {
	address, bits, ok := strings.Cut(s, "/")
	if !ok {
		return netip.ParsePrefix(s)
	}
	return netip.ParsePrefix(withoutZeros(address) + "/" + trimZeros(bits))
}

// withoutZeros removes the leading zeros of decimal numbers, also behind a prefix of IPv6.
func withoutZeros(s string) string {
	at := strings.LastIndexByte(s, ':') + 1
	numbers := strings.Split(s[at:], ".")
	if len(numbers) != 4 {
		return s
	}
	for i := range numbers {
		numbers[i] = trimZeros(numbers[i])
	}
	return s[:at] + strings.Join(numbers, ".")
}

func trimZeros(number string) string {
	for len(number) > 1 && number[0] == '0' {
		number = number[1:]
	}
	return number
}
