package sim

import (
	"slices"
	"time"
)

// allFaults are those of schedules in which a gateway has two pods.
var allFaults = slices.Concat(faults, []fault{
	{"kill of a pod", func(w *world, how byte) func() {
		p := w.electing(how).pick(how)
		p.kill(how&4 != 0)
		return p.resume
	}},
	{"kill of who forwards", func(w *world, how byte) func() {
		for _, p := range w.electing(how).pods {
			if p.forwards() {
				p.kill(how&4 != 0)
				return p.resume
			}
		}
		return nil
	}},
	{"rolling update", func(w *world, how byte) func() {
		s := w.electing(how)
		s.pick(how).quit()
		return func() {
			s.pick(how).resume()
			s.pick(how + 2).quit()
			s.pick(how + 2).resume()
		}
	}},
	{"death at a step", func(w *world, how byte) func() {
		p := w.electing(how).pick(how)
		p.diesAfter(1 + int(how/4))
		return func() {
			p.diesAfter(0)
			p.resume()
		}
	}},
	{"death at a step of who begins", func(w *world, how byte) func() {
		p := w.electing(how).pick(how)
		p.kill(false)
		p.resume()
		p.diesAfter(1 + int(how/4))
		return func() {
			p.diesAfter(0)
			p.resume()
		}
	}},
	{"API server away", func(w *world, how byte) func() {
		a := w.electing(how).api
		a.refuse(true)
		return func() { a.refuse(false) }
	}},
	{"cut off from the API server", func(w *world, how byte) func() {
		s := w.electing(how)
		p := s.pick(how)
		s.api.set(p.name, func(w *apiWay) { w.lost, w.unanswered = how&4 == 0, how&4 != 0 })
		return func() { s.api.set(p.name, func(w *apiWay) { w.lost, w.unanswered = false, false }) }
	}},
	{"slow API server", func(w *world, how byte) func() {
		s := w.electing(how)
		p := s.pick(how)
		s.api.set(p.name, func(w *apiWay) { w.delay = time.Duration(how) * time.Millisecond })
		return func() { s.api.set(p.name, func(w *apiWay) { w.delay = 0 }) }
	}},
	{"cut off from the peer", func(w *world, how byte) func() {
		p := w.electing(how).pick(how)
		p.deaf.Store(how&12 != 0)
		p.toPeer.set(func(l *leg) { l.down = how&12 != 4 })
		return func() {
			p.deaf.Store(false)
			p.toPeer.set(func(l *leg) { l.down = false })
		}
	}},
	{"no copies", func(w *world, how byte) func() {
		l := w.electing(how).lines
		l.set(func(l *lines) { l.cut = [2]bool{how&12 != 0, how&12 != 4} })
		return func() { l.set(func(l *lines) { l.cut = [2]bool{} }) }
	}},
	{"slow copies", func(w *world, how byte) func() {
		l := w.electing(how).lines
		l.set(func(l *lines) { l.delay = time.Duration(how) * 4 * time.Millisecond })
		return func() { l.set(func(l *lines) { l.delay = 0 }) }
	}},
	{"Lease deleted", func(w *world, how byte) func() {
		s := w.electing(how)
		s.deleted = w.now()
		s.api.forget()
		return nil
	}},
})

// longFaults last longer than others: an election takes its time.
var longFaults = []string{"API server away", "cut off from the API server", "cut off from the peer", "no copies"}

// electing returns a side whose gateway has two pods.
func (w *world) electing(how byte) *side {
	if s := w.sides[how%2]; s.elects() {
		return s
	}
	return w.sides[1-how%2]
}

// quit ends the gateway as SIGTERM does: one that has another pod beside it leaves.
func (p *pod) quit() {
	if p.vote == nil || p.stop == nil {
		p.halt()
		return
	}
	p.vote.leave()
}

// diesAfter has the pod be killed after some steps that others can see; 0: it is not.
func (p *pod) diesAfter(steps int) {
	if v := p.vote; v != nil && p.stop != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.steps = steps
	}
}
