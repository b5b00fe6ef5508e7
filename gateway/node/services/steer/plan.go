package steer

import (
	"net/netip"

	"culvert/nat/rules"
)

// A Plan says which packets lead to the device.
type Plan struct {
	Routes []netip.Prefix // to the device
	// Answered lead to the device too, by protocol, because the kernel answers ARP for them while
	// this process lives.
	Answered []netip.Prefix
	Answers  bool                  // there may be such addresses
	Front    []Match               // before the local table
	Behind   []Match               // after it
	Spare    map[netip.Prefix]bool // those of Routes that have no Service: another route there is no error
	Probed   bool                  // the kernel answers neighbours over IPv6 for addresses that lead to the device
}

// A Match is the packets of a protocol (or all protocols) to a port range, by their source,
// destination and source port.
type Match struct {
	From, To netip.Prefix // the zero Prefix: any
	Protocol uint8        // 0: all
	Ports    rules.PortRange
	Ends     rules.PortRange // source ports; First is 0: any
}

// family returns the family of the packets.
func (m *Match) family() int {
	if m.To.IsValid() {
		return familyOf(m.To)
	}
	return familyOf(m.From)
}

// Host returns the prefix of one address.
func Host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
