package nat

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

func addr(s string) netip.Addr  { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// milan has nodes 4 and 9, overlapping CIDRs, mappings and a service.
func milan() *Config {
	return &Config{MTU: 1340, Config: rules.Config{
		Nodes: []rules.Node{
			{Link: 4, Name: "milan-1", Address: rules.PairOf(addr("10.80.0.2"))},
			{Link: 9, Name: "milan-2", Address: rules.PairOf(addr("10.80.0.3")), Device: "liqo.milan2"},
		},
		LocalPodCIDRs:      []netip.Prefix{pfx("10.200.0.0/16"), pfx("10.64.32.0/19"), pfx("fd00:200::/50")},
		LocalExternalCIDRs: []netip.Prefix{pfx("10.70.0.0/16"), pfx("fd00:70::/64")},
		Remote: []rules.RemoteCIDR{
			{Real: pfx("10.200.0.0/16"), Remapped: pfx("10.71.0.0/16")},
			{Real: pfx("10.99.64.0/18")},
			{Real: pfx("10.70.0.0/16"), Remapped: pfx("10.74.0.0/16"), External: true},
			{Real: pfx("fd00:200::/50"), Remapped: pfx("fd00:71:0:4000::/50")},
		},
		GatewayAddress: rules.PairOf(addr("10.80.0.4")), TunnelAddress: rules.PairOf(addr("169.254.18.1")),
		PeerTunnelAddress: rules.PairOf(addr("169.254.18.2")),
		UnknownSource:     rules.PairOf(addr("10.70.0.0")),
		Routes: []rules.Route{
			{Prefix: pfx("10.200.0.0/20"), Link: 4}, {Prefix: pfx("10.200.1.0/24"), Link: 9},
			{Prefix: pfx("10.200.1.77/32"), Link: 4},
			{Prefix: pfx("10.64.32.0/20"), Link: 9}, {Prefix: pfx("10.80.0.2/32"), Link: 4},
			{Prefix: pfx("10.80.0.3/32"), Link: 9},
			{Prefix: pfx("fd00:200:0:1::/64"), Link: 4},
		},
		Addresses: []rules.AddressMapping{
			{External: addr("10.70.0.9"), Internal: addr("192.0.2.10")},
			{External: addr("10.70.0.10"), Internal: addr("192.0.2.11"), Via: 9},
			{External: addr("10.70.0.11"), Internal: addr("10.200.1.3")}, // a pod
		},
		Services: []rules.Service{{
			Name: "web", Address: addr("10.70.0.20"), Port: 80, Protocol: packet.TCP,
			Backends: []rules.Backend{{Address: addr("10.200.1.5"), Port: 8080}, {Address: addr("198.51.100.7"),
				Port: 81, Via: 9}},
		}},
	}}
}

// sized returns a configuration with n mapped addresses, n pod routes and n/10 nodes, at most
// 5,000.
func sized(n int) *Config {
	c := milan()
	c.Nodes, c.Routes, c.Addresses, c.Services = nil, nil, nil, nil
	c.LocalPodCIDRs, c.LocalExternalCIDRs = []netip.Prefix{pfx("10.0.0.0/12")}, []netip.Prefix{pfx("10.64.0.0/14")}
	c.UnknownSource = rules.PairOf(addr("10.64.0.0"))
	c.Remote = []rules.RemoteCIDR{{Real: pfx("10.0.0.0/12"), Remapped: pfx("10.128.0.0/12")},
		{Real: pfx("10.64.0.0/14"), Remapped: pfx("10.68.0.0/14"), External: true}}
	nodes := max(2, min(n/10, 5000))
	for i := range nodes {
		c.Nodes = append(c.Nodes, rules.Node{Link: Link(i + 1), Name: fmt.Sprint("node-", i+1),
			Address: rules.PairOf(netip.AddrFrom4([4]byte{10, 80, byte(i >> 8), byte(i)}))})
	}
	c.GatewayAddress = rules.PairOf(addr("10.81.0.1"))
	for i := range n {
		c.Routes = append(c.Routes, rules.Route{Prefix: netip.PrefixFrom(pod(i), 32), Link: Link(i%nodes + 1)})
		c.Addresses = append(c.Addresses, rules.AddressMapping{External: mapped(i),
			Internal: netip.AddrFrom4([4]byte{192, 1 + byte(i>>16), byte(i >> 8), byte(i)})})
	}
	return c
}

func pod(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 1 + byte(i>>16), byte(i >> 8), byte(i)})
}
func mapped(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 65 + byte(i>>16), byte(i >> 8), byte(i)})
}

// CULVERT_LONG makes tests try as many packets as `make long` says.
const longEnv = "CULVERT_LONG"

var seedFlag = flag.Uint64("nat.seed", 0, "seed of random traffic and changes; 0: from the clock")

func randomSeed(tb testing.TB) uint64 {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	tb.Logf("replay with -nat.seed=%d", seed)
	return seed
}

// one returns one of several.
func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func ip(value string, at rules.Position) rules.Match {
	return rules.Match{IP: rules.Operand{Value: value, Position: at}}
}

func device(n *rules.Node) string { return cmp.Or(n.Device, n.Name) }
