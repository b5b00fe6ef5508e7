package monitor

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"culvert/geneve/udp"
)

// progress checks whether the packet path takes what arrives at its sockets. A gateway without
// packets is healthy, and so is one that drops them all. A gateway that leaves datagrams waiting
// must be restarted.
type progress struct {
	mu sync.Mutex
	// time of the last look
	looked time.Duration      // +checklocks:mu
	stuck  map[string]*intake // +checklocks:mu
}

// An intake is a socket with waiting datagrams.
type intake struct {
	received uint64        // messages received before they began to wait
	since    time.Duration // when they began to wait
}

// stuckTime limits how long datagrams may wait untaken, and how long look may not be called. It is
// long for one P, and less than the 30 s after which Kubernetes restarts the pod.
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

// fault names what has stopped; "" if nothing has.
func (p *progress) fault(now time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if idle := now - p.looked; idle >= stuckTime {
		return fmt.Sprintf("nobody has looked after the packet path for %.0f s; restart this gateway", idle.Seconds())
	}
	for _, name := range slices.Sorted(maps.Keys(p.stuck)) {
		if waited := now - p.stuck[name].since; waited >= stuckTime {
			return fmt.Sprintf(
				"the packet path has taken nothing for %.0f s of what waits at its socket %s; restart this gateway",
				waited.Seconds(), name)
		}
	}
	return ""
}
