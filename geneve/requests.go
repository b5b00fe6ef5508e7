package geneve

import (
	"time"

	"culvert/geneve/udp"
)

// requests are those by ARP or neighbour discovery to one neighbour, and what its answers tell of the way there and back.
type requests struct {
	at      time.Duration // the last one
	waiting bool          // it has had no answer
	rtt     time.Duration // of the last one that was answered
	recent  udp.Recent
}

// ask notes a request.
func (r *requests) ask(now time.Duration) {
	r.at, r.waiting = now, true
	r.recent.Request()
}

// answer notes the answer to the last request. A neighbour that was away has lost nothing meanwhile.
func (r *requests) answer(now time.Duration, away bool) {
	if !r.waiting {
		return
	}
	if away {
		r.recent.Forget(1)
	}
	r.waiting, r.rtt = false, now-r.at
	r.recent.Answer(0)
}

// maxAsked is how many neighbours AskAll asks at once.
const maxAsked = 64

// AskAll asks neighbours whether they are there, at most maxAsked and all in turn. Whoever is there answers, so that silence means
// something; the answers tell how far it is and what is lost on the way.
// It is called once a second. Who does not answer is asked each second at first, then each silentInterval.
//
// pace is called between two requests. It lets some time go by: what is received together has one time, so that answers to requests that were
// sent together would all seem as late as the last of them.
func (e *Endpoint) AskAll(pace func()) {
	for asked, left := 0, len(e.table.Load().ids); left > 0 && asked < maxAsked; left-- {
		if !e.neighbours.askNext() {
			continue
		}
		asked++
		pace()
	}
}

// askNext asks the neighbour whose turn it is, and reports whether that was due.
func (n *neighbours) askNext() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	ids, now := n.e.table.Load().ids, n.e.now()
	if len(ids) == 0 { // all have left since AskAll began
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
