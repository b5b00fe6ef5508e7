package monitor

import "culvert/gateway/health"

// Reach says whom a Monitor may send something on its own account: probes, pings, and knocks.
type Reach int32

// Reaches.
const (
	Everybody Reach = iota
	NodesOnly       // not the peer
	Nobody          // and it judges nothing: nothing comes either
)

// SetReach says whom the Monitor may send something from now on. From Nobody on, it begins anew.
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
