package monitor

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"culvert/geneve/udp"
)

// progress finds out whether the packet path takes what comes to its sockets. A gateway
// without packets is well, and one that drops them all is, too; one in which datagrams
// wait and nobody fetches them is to be started anew.
type progress struct {
	mu sync.Mutex
	// when somebody looked last
	looked time.Duration      // +checklocks:mu
	stuck  map[string]*intake // +checklocks:mu
}

// intake is one socket at which something waits.
type intake struct {
	received uint64        // messages, when it began to wait
	since    time.Duration // when that was
}

// stuckTime is for how long nothing may be taken of what waits, and for how long nobody may
// look: a long while for one P, and less than the 30 s in which Kubernetes restarts.
const stuckTime = 10 * time.Second

// look is called once a second with all sockets by name.
func (p *progress) look(now time.Duration, sockets map[string]udp.Stats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looked = now
	for name, s := range sockets {
		i := p.stuck[name]
		switch {
		case !s.Waits:
			delete(p.stuck, name)
		case i == nil || i.received != s.ReceivedMessages:
			if p.stuck == nil {
				p.stuck = make(map[string]*intake)
			}
			p.stuck[name] = &intake{s.ReceivedMessages, now}
		}
	}
}

// fault says what does not go on, "" if all does.
func (p *progress) fault(now time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if idle := now - p.looked; idle >= stuckTime {
		return fmt.Sprintf("nobody has looked after the packet path for %.0f s; restart this gateway", idle.Seconds())
	}
	for _, name := range slices.Sorted(maps.Keys(p.stuck)) {
		if waited := now - p.stuck[name].since; waited >= stuckTime {
			return fmt.Sprintf("the packet path has taken nothing for %.0f s of what waits at its socket %s; restart this gateway", waited.Seconds(), name)
		}
	}
	return ""
}
