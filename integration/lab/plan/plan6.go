package plan

import (
	"encoding/json"
	"net/netip"
)

// The prefixes of all addresses.
var (
	Everywhere  = netip.MustParsePrefix("0.0.0.0/0")
	Everywhere6 = netip.MustParsePrefix("::/0")
)

// Suffix ends the names of the services of c.
func (c *Cluster) Suffix() string {
	if c.Internal.Is6() {
		return "6"
	}
	return ""
}

// V6 is V4 over IPv6, as AsIPv6 translates it: pods with equal addresses in both clusters, from
// unique local ones (RFC 4193).
var V6 = func() (p Plan) {
	text, err := json.Marshal(V4)
	if err == nil {
		err = json.Unmarshal([]byte(AsIPv6(string(text), true, true)), &p)
	}
	if err != nil {
		panic(err) // of constants: every test would see it
	}
	// The attack on affinity has more clients than a translated /17 has networks of a /64.
	second := &p[1].Nodes[1]
	second.PodCIDR, second.Pod = netip.MustParsePrefix("fd00:10:0:8000::1/49"), netip.MustParseAddr("fd00:10:0:8002::7")
	return p
}()

// Is6 reports whether p is of IPv6.
func (p *Plan) Is6() bool { return p[0].Internal.Is6() }

// Forwarding is the kernel's switch for forwarding p's family.
func (p *Plan) Forwarding() string {
	if p.Is6() {
		return "ipv6/conf/all/forwarding"
	}
	return "ipv4/ip_forward"
}

// Anywhere is the default route of p's family.
func (c *Cluster) Anywhere() netip.Prefix {
	if c.Internal.Is6() {
		return Everywhere6
	}
	return Everywhere
}
