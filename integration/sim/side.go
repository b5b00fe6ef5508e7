package sim

import (
	"fmt"
	"net/netip"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/geneve"
)

// side is one cluster: its nodes, and the pods of its gateway.
type side struct {
	*pod      // the first one
	w         *world
	index     int
	peer      *side
	nodes     []*node
	pods      []*pod
	*replicas // nil: there is one pod
}

const (
	maxConnections = 4096
	fewConnections = 256 // where floods make room scarce
	wanPort        = config.DefaultWireGuardPort
)

func newSide(w *world, index, most int) *side {
	s := &side{w: w, index: index}
	name := names[index]
	s.pod = &pod{side: s, w: w, name: name, ports: make(map[uint16]*port)}
	s.pods = []*pod{s.pod}
	s.config = &config.Config{
		Cluster: name, Peer: names[1-index], MTU: config.DefaultMTU,
		WireGuard: config.WireGuard{Role: config.Role(index), PrivateKey: wgkey.NewPrivate(),
			PresharedKey: wgkey.Key{1}, ListenPort: wanPort, Keepalive: 25 * time.Second},
		Geneve: config.Geneve{ListenPort: config.DefaultGenevePort, GatewayAddress: pair(func(p *plan) netip.Addr {
			return p.gateway
		})},

		UnknownSource: pair(func(p *plan) netip.Addr { return p.unknown }),
		Addresses: []config.AddressMapping{{External: pair(func(p *plan) netip.Addr { return p.mapping }),
			Internal: pair(func(p *plan) netip.Addr { return p.mappedHost }), Via: name + "-1"}},
		Services:        services(),
		MaxConnections:  most,
		ConnectionCheck: config.LiqoConnectionCheck,
		Log:             config.Log{Level: "info", Format: "text"},
	}
	for i := range 2 {
		s.config.Geneve.Nodes = append(s.config.Geneve.Nodes, config.Node{
			Name: fmt.Sprintf("%s-%d", name, i+1), VNI: geneve.VNI(11 + i), Address: pair(func(p *plan) netip.Addr {
				return p.nodes[i]
			}),
			Underlay: netip.AddrFrom4([4]byte{192, 168, byte(1 + index), byte(2 + i)}),
			Encap:    []geneve.Encap{geneve.Geneve, geneve.VXLAN}[i],
		})
	}
	for _, p := range plans {
		p.apply(index, s.config)
	}
	for i := range 2 {
		s.nodes = append(s.nodes, newNode(s, i))
	}
	s.moveTo(0)
	return s
}
