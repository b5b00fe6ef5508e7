package geneve

import (
	"time"

	"culvert/geneve/udp"
)

// requests are the ARP or neighbour discovery requests to one neighbour, and the path quality
// measured by its answers.
type requests struct {
	at      time.Duration // of the last one that counts
	sent    time.Duration // of the last one or its last repetition
	waiting bool          // the last one has no answer yet
	rtt     time.Duration // of the last one with an answer
	recent  udp.Recent
}

// ask records a request.
func (r *requests) ask(now time.Duration) {
	r.at, r.sent, r.waiting = now, now, true
	r.recent.Request()
}

// answer records the answer to the last request. Requests to a neighbour that was away do not count
// as lost.
func (r *requests) answer(now time.Duration, away bool) {
	if !r.waiting {
		return
	}
	if away {
		r.recent.Forget(1)
	}
	r.waiting, r.rtt = false, now-r.sent
	r.recent.Answer(0)
}

// maxAsked is how many neighbours one AskAll asks.
const maxAsked = 64

// AskAll asks neighbours whether they are there, at most maxAsked per call, all of them in turn. A
// live neighbour answers, so silence is meaningful; the answers measure round trip time and loss.
// It is called once a second. A neighbour that does not answer is asked each second at first, then
// each silentInterval.
//
// pace is called between two requests and waits a little: datagrams received together get the same
// time, so the answers to requests sent together would all seem as late as the last one.
func (e *Endpoint) AskAll(pace func()) {
	for asked, left := 0, len(e.table.Load().ids); left > 0 && asked < maxAsked; left-- {
		if !e.neighbours.askNext() {
			continue
		}
		asked++
		pace()
	}
}

// AskNew asks neighbours that were never asked, at most maxAsked: those of tunnels that are new or
// changed. So a gateway and a node that have just learned of each other need not wait for the next
// call of AskAll.
func (e *Endpoint) AskNew() {
	n := &e.neighbours
	n.mu.Lock()
	defer n.mu.Unlock()
	asked, now := 0, e.now()
	for _, t := range e.table.Load().ids {
		if t != nil && t.Inner == Ethernet && t.neighbour.requests.at == never && asked < maxAsked {
			n.ask(t, now)
			asked++
		}
	}
}

// Greet forgets who the other ends are, if requests come from other ports, and asks them. A gateway
// that takes another one's place knows them from that one, but whatever it sends before it has
// heard them could be masqueraded from then on.
func (e *Endpoint) Greet() {
	n := &e.neighbours
	if n.open == nil {
		return
	}
	n.mu.Lock()
	for _, t := range e.table.Load().ids {
		if t == nil || t.Inner != Ethernet {
			continue
		}
		nb := &t.neighbour
		nb.lastHeard.Store(int64(never))
		nb.store(newSpeaker(nb.load().encap(), 0))
		nb.confirmed, nb.unanswered, nb.requests.at, nb.requests.sent = false, 0, never, never
	}
	n.mu.Unlock()
	e.AskNew()
}

// askNext asks the next neighbour in turn, and reports whether that was due.
func (n *neighbours) askNext() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	ids, now := n.e.table.Load().ids, n.e.now()
	if len(ids) == 0 { // all were removed since AskAll began
		return false
	}
	n.nextAsked = (n.nextAsked + 1) % len(ids)
	t := ids[n.nextAsked]
	if t == nil || t.Inner != Ethernet {
		return false
	}
	pause := askInterval
	if t.neighbour.unanswered > maxUnanswered {
		pause = silentInterval
	}
	if now-t.neighbour.requests.at < pause {
		return false
	}
	n.ask(t, now)
	return true
}
