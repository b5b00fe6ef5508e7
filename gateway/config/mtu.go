package config

// TunnelMTU is the largest inner packet of a tunnel, in bytes. Both tunnels of a gateway have the
// same; they are side by side, not nested.
type TunnelMTU int

// WireMTU is the largest IP packet that the underlay carries, in bytes.
type WireMTU int

const (
	minMTU TunnelMTU = 576  // every IPv4 host accepts this much (RFC 791, Section 3.1)
	maxMTU TunnelMTU = 9000 // jumbo frames; no underlay here carries more
	minMSS           = 216  // smaller ones only serve to exhaust a sender (CVE-2019-11479)
)

// Overhead of an encapsulation, in bytes.
const (
	ipv4Header     = 20
	ipv6Header     = 40
	udpHeader      = 8
	tunnelHeader   = 8  // Geneve without options, and VXLAN
	ethernetHeader = 14 // of the inner frame
	transportData  = 16 // WireGuard type, receiver index and counter
	authTag        = 16 // ChaCha20-Poly1305
)

// GeneveWireMTU is the MTU that the underlay to the nodes needs for full inner packets.
func (m TunnelMTU) GeneveWireMTU(ipv6 bool) WireMTU {
	return WireMTU(m) + outerIP(ipv6) + udpHeader + tunnelHeader + ethernetHeader
}

// WireGuardWireMTU is the MTU that the path to the peer needs for full inner packets.
func (m TunnelMTU) WireGuardWireMTU(ipv6 bool) WireMTU {
	return WireMTU(m) + outerIP(ipv6) + udpHeader + transportData + authTag
}

func outerIP(ipv6 bool) WireMTU {
	if ipv6 {
		return ipv6Header
	}
	return ipv4Header
}
