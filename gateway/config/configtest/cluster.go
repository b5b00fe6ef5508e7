// Package configtest has configurations for tests.
package configtest

import (
	"net/netip"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/nat/rules"
)

// preshared is the pre-shared key of all clusters.
var preshared = wgkey.Key([]byte("the pre-shared key of all tests."))

// Cluster returns a cluster with two nodes and the local pod CIDR 10.0.0.0/16.
// Its node addresses and underlay addresses end in 2 and 3; remap is how it sees the
// other cluster's pods, 10.0.0.0/16 too, and external CIDR.
func Cluster(name, peer string, role config.Role, podRemap, externalRemap string) *config.Config {
	prefix := netip.MustParsePrefix
	return &config.Config{
		Cluster: name, Peer: peer, MTU: config.DefaultMTU,
		WireGuard: config.WireGuard{Role: role, PrivateKey: wgkey.NewPrivate(), PresharedKey: preshared,
			Keepalive: 25 * time.Second},
		Geneve: config.Geneve{
			ListenPort:     config.DefaultGenevePort,
			GatewayAddress: rules.PairOf(netip.MustParseAddr("10.80.0.4")),
			Nodes: []config.Node{
				{Name: name + "-1", VNI: 11, Address: rules.PairOf(netip.MustParseAddr("10.80.0.2")),
					PodCIDRs: []netip.Prefix{prefix("10.0.1.0/24")}},
				{Name: name + "-2", VNI: 7, Address: rules.PairOf(netip.MustParseAddr("10.80.0.3")),
					PodCIDRs: []netip.Prefix{prefix("10.0.2.0/23")}, Encap: geneve.VXLAN},
			},
		},
		Local: config.LocalNetwork{PodCIDRs: []netip.Prefix{prefix("10.0.0.0/16")},
			ExternalCIDRs: []netip.Prefix{prefix("10.70.0.0/16")}},
		Remote: []rules.RemoteCIDR{
			{Real: prefix("10.0.0.0/16"), Remapped: prefix(podRemap)},
			{Real: prefix("10.70.0.0/16"), Remapped: prefix(externalRemap), External: true},
		},
		UnknownSource: rules.PairOf(netip.MustParseAddr("10.70.0.0")),
		Log:           config.Log{Level: "info", Format: "text"},
	}
}
