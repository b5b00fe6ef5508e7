package config

// TunnelMTU is the largest inner packet of a tunnel, in bytes. Both tunnels of a
// gateway have the same one; they lie side by side, not inside each other.
type TunnelMTU int

// WireMTU is the largest IP packet that the underlay carries, in bytes.
type WireMTU int

const (
	minMTU TunnelMTU = 576  // every IPv4 host takes this much (RFC 791, Section 3.1)
	maxMTU TunnelMTU = 9000 // jumbo frames; no underlay here carries more
	minMSS           = 216  // smaller ones serve only to exhaust a sender (CVE-2019-11479)
)

// What an encapsulation puts around an inner packet, in bytes.
const (
	ipv4Header     = 20
	ipv6Header     = 40
	udpHeader      = 8
	tunnelHeader   = 8  // Geneve without options, and VXLAN
	ethernetHeader = 14 // of the inner frame
	transportData  = 16 // WireGuard type, receiver index and counter
	authTag        = 16 // ChaCha20-Poly1305
)

// GeneveWireMTU is what the underlay to the nodes must carry for full inner
// packets.
func (m TunnelMTU) GeneveWireMTU(ipv6 bool) WireMTU {
	return WireMTU(m) + outerIP(ipv6) + udpHeader + tunnelHeader + ethernetHeader
}

// WireGuardWireMTU is what the path to the peer must carry for full inner
// packets.
func (m TunnelMTU) WireGuardWireMTU(ipv6 bool) WireMTU {
	return WireMTU(m) + outerIP(ipv6) + udpHeader + transportData + authTag
}

func outerIP(ipv6 bool) WireMTU {
	if ipv6 {
		return ipv6Header
	}
	return ipv4Header
}
