package gateway

import (
	"culvert/gateway/config"
	"culvert/gateway/monitor"
	"culvert/gateway/role"
	"culvert/gateway/wg"
)

// What a gateway may send in each role: to its peer, and as probes. Other roles send everything.
var (
	voices  = map[role.Role]wg.Voice{role.Static: wg.Answering, role.Silent: wg.Calling}
	reaches = map[role.Role]monitor.Reach{role.Static: monitor.NodesOnly, role.Standby: monitor.Nobody,
		role.Silent: monitor.Nobody}
)

// Role returns what the gateway does.
func (g *Gateway) Role() role.Role { return role.Role(g.role.Load()) }

// Become gives another role to a gateway whose configuration is Elected. When it returns, a gateway
// that does not forward has sent its last packet, and one that forwards has its sockets open and
// has started a handshake.
func (g *Gateway) Become(to role.Role) {
	g.applying.Lock()
	defer g.applying.Unlock()
	from := g.Role()
	if from == to {
		return
	}
	c, _ := g.current.Get()
	if from == role.Standby {
		g.adopt()
	}
	g.role.Store(int32(to))
	g.wg.SetVoice(voices[to])
	g.life.Mute("geneve", !to.Forwards())
	if to == role.Standby {
		g.life.Mute("wireguard", true)
		if at := g.wg.Endpoint(); at.IsValid() {
			g.life.Found(&c.WireGuard, at)
		}
	}
	if from == role.Standby {
		g.life.Mute("wireguard", false)
		g.endpoint.Greet()
	}
	g.monitor.SetReach(reaches[to])
	if to == role.Standby || from == role.Standby {
		// A device without a peer starts nothing and keeps no session, so no earlier attempt delays
		// the first handshake with the next peer.
		if err := g.wg.SetPeer(g.peer(c)); err != nil {
			g.log.WithError(err).Warn("the WireGuard device is closed")
		}
	}
	if to == role.Standby {
		g.rested()
	}
}

// peer is the peer of c, or none while another gateway talks to it.
func (g *Gateway) peer(c *config.Config) wg.Peer {
	if g.Role() == role.Standby {
		return wg.Peer{}
	}
	return g.life.Peer(&c.WireGuard)
}

// Call makes a Silent gateway try one handshake.
func (g *Gateway) Call() { g.wg.Call() }

// Signs returns what the gateway has received from its peer, and whether another replica copies its
// table.
func (g *Gateway) Signs() role.Signs {
	s, _ := g.wg.PeerStats()
	return role.Signs{Heard: s.Received, Data: g.wg.Carried(), Stream: g.replicating != nil && g.replicating.Followed()}
}
