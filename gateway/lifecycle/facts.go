package lifecycle

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"culvert/gateway/handover"
	"culvert/gateway/pathmtu"
	"culvert/gateway/state"
	"culvert/geneve"
	"culvert/nat"
)

// Facts are what a gateway that replaces another must know besides connections. They travel in the
// stream of package replica, from the gateway that forwards to its standby.
type Facts struct {
	Identity []byte             `json:"identity"` // see package state
	Nodes    []handover.Station `json:"nodes"`
	Paths    []handover.Path    `json:"paths"` // whose MTU is below the configured one
}

// Facts returns what a successor of this gateway must know.
func (life *Life) Facts() []byte {
	c, _ := life.Current.Get()
	identity := life.keeper.known()
	if at := life.path.WG.Endpoint(); at.IsValid() {
		w := &c.WireGuard
		identity.Peer = state.Peer{PublicKey: w.PeerPublicKey.Base64(), Configured: w.Endpoint, Endpoint: at}
	}
	nodes := life.stations()
	for i := range nodes {
		nodes[i].Local = netip.Addr{} // an address of this pod, which the successor lacks
	}
	b, err := json.Marshal(Facts{identity.Encode(), nodes, life.narrowPaths()})
	if err != nil {
		panic(err) // unreachable: strings, numbers and addresses
	}
	return b
}

// Adopt uses the Facts of the gateway that this one may replace. No packets may pass meanwhile.
func (life *Life) Adopt(facts []byte) error {
	var f Facts
	if err := json.Unmarshal(facts, &f); err != nil {
		return fmt.Errorf("facts of the active gateway: %w", err)
	}
	identity, err := state.DecodeIdentity(f.Identity)
	if err != nil {
		return fmt.Errorf("facts of the active gateway: its identity is %w", err)
	}
	life.keeper.adopt(identity)
	life.path.Engine.SetKey(identity.PortKey)
	life.meet(f.Nodes)
	life.expect(f.Paths)
	return nil
}

// adopt uses another gateway's port-selection key and the peer's address.
func (k *keeper) adopt(other state.Identity) {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	k.identity.PortKey = other.PortKey
	if other.Peer.Endpoint.IsValid() {
		k.identity.Peer = other.Peer
	}
}

// stations returns what this gateway knows about nodes.
func (life *Life) stations() (all []handover.Station) {
	for _, s := range life.path.Endpoint.Stations() {
		all = append(all, handover.Station{Node: life.Current.NodeName(nat.Link(s.ID)), MAC: s.MAC.String(),
			VXLAN: s.Encap == geneve.VXLAN, Local: s.Local})
	}
	return all
}

// meet uses what another gateway knows about nodes.
func (life *Life) meet(nodes []handover.Station) {
	_, links := life.Current.Get()
	for _, s := range nodes {
		link, ok := links.ByName[s.Node]
		mac, err := net.ParseMAC(s.MAC)
		if !ok || err != nil {
			continue
		}
		encap := geneve.Geneve
		if s.VXLAN {
			encap = geneve.VXLAN
		}
		life.path.Endpoint.Meet(geneve.Station{ID: uint16(link), MAC: mac, Encap: encap, Local: s.Local})
	}
}

// narrowPaths returns the paths whose MTU is below the configured one.
func (life *Life) narrowPaths() (all []handover.Path) {
	for link, r := range life.monitor.NarrowPaths() {
		p := handover.Path{Size: r.Size, Way: uint8(r.Way), OneWay: r.OneWay}
		if link != nat.Tunnel {
			if p.Node = life.Current.NodeName(link); p.Node == "" {
				continue // the node has been removed, and "" would be the tunnel
			}
		}
		all = append(all, p)
	}
	return all
}

// expect uses the path MTUs that another gateway has found.
func (life *Life) expect(paths []handover.Path) {
	_, links := life.Current.Get()
	for _, p := range paths {
		link, ok := links.ByName[p.Node]
		if ok || p.Node == "" { // the zero link is the tunnel to the peer
			life.monitor.ExpectPath(link, pathmtu.Result{Size: p.Size, Known: true, Way: pathmtu.Way(p.Way),
				OneWay: p.OneWay})
		}
	}
}
