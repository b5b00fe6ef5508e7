package monitor

import "culvert/gateway/health"

// A Reach says where a Monitor may send packets of its own: probes, pings and knocks.
type Reach int32

// Reaches.
const (
	Everybody Reach = iota
	NodesOnly       // not to the peer
	Nobody          // and it judges nothing, because nothing arrives either
)

// SetReach sets where the Monitor may send from now on. After Nobody it starts afresh. Package
// gateway calls it when the gateway's role in an election changes, from any goroutine.
func (m *Monitor) SetReach(r Reach) {
	m.reach.Store(int32(r))
	m.check.hold(r != Everybody)
	if r == Nobody {
		m.mu.Lock()
		m.judge = health.NewJudge()
		m.mu.Unlock()
	}
}

// reaches reports whether the Monitor may send to nodes, and to the peer.
func (m *Monitor) reaches() (nodes, peer bool) {
	r := Reach(m.reach.Load())
	return r != Nobody, r == Everybody
}
