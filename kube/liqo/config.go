package liqo

import (
	"net/netip"

	"culvert/gateway/config"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/rules"
)

// Config returns base with the content of the resources. The Site checks the sources of packets,
// and rules come from resources.
func (s *Site) Config(base *config.Config) *config.Config {
	c := *base
	c.WireGuard.PeerPublicKey = s.PeerPublicKey
	c.Geneve.GatewayAddress = rules.PairOf(s.GatewayAddress)
	c.Geneve.SourceCheck = nat.SourceCheckCluster // a pod's packets may come through another node than its own
	c.Geneve.Nodes = make([]config.Node, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		c.Geneve.Nodes = append(c.Geneve.Nodes, config.Node{
			Name: n.Name, Device: n.Device, VNI: geneve.VNI(n.VNI), Underlay: n.Underlay,
			Address: rules.PairOf(n.Address),
		})
	}
	c.Local = config.LocalNetwork{}
	c.UnknownSource = rules.PairOf(s.UnknownSource)
	if u := s.UnknownSource; u.IsValid() {
		c.Local.ExternalCIDRs = []netip.Prefix{netip.PrefixFrom(u, u.BitLen())}
	}
	c.Remote = s.Remote
	c.Given = config.Given{Rules: true, FromTunnel: s.FromTunnel, NotFromNodes: s.NotFromNodes}
	return &c
}
