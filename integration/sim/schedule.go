package sim

import (
	"fmt"
	"slices"
	"time"
)

// A schedule is a string of bytes. The first two say how much traffic there is and from what chance
// begins; each three after that are a fault: which, where or how much, and when. One or two bytes
// that are left over say of which sides the gateway has two pods.
type schedule []byte

const (
	scheduleHead = 2
	faultBytes   = 3
	maxFaults    = 64
)

// A fault is something that may happen. begin returns what ends it, after a while, or nil if it is
// over at once; what is restarted is away for a while, too.
type fault struct {
	name  string
	begin func(w *world, how byte) (end func())
}

// faults are all of them, by the first byte; allFaults are those where there are two pods.
var faults = []fault{
	{"delay", func(w *world, how byte) func() {
		return w.spoil(how, func(l *leg, on bool) { l.delay = when(on, time.Duration(how)*2*time.Millisecond) })
	}},
	{"loss", func(w *world, how byte) func() {
		return w.spoil(how, func(l *leg, on bool) { l.loss = when(on, 8+int(how)/2) })
	}},
	{"duplicates", func(w *world, how byte) func() {
		return w.spoil(how, func(l *leg, on bool) { l.twice = when(on, 16+int(how)/2) })
	}},
	{"disorder", func(w *world, how byte) func() {
		return w.spoil(how, func(l *leg, on bool) { l.jitter = when(on, time.Duration(1+how)*time.Millisecond) })
	}},
	{"corruption", func(w *world, how byte) func() {
		w.traffic.garbled = true
		return w.spoil(how, func(l *leg, on bool) { l.garbled = when(on, 8+int(how)/4) })
	}},
	{"one way", func(w *world, how byte) func() {
		return w.spoil(how, func(l *leg, on bool) { l.down = on })
	}},
	{"partition", func(w *world, how byte) func() {
		var all []*leg
		for _, s := range w.sides {
			for _, p := range s.pods {
				all = append(all, p.toPeer)
			}
		}
		if how%2 == 1 {
			n := w.sides[how/2%2].nodes[how/4%2]
			all = []*leg{n.up, n.down}
		}
		return spoilAll(all, func(l *leg, on bool) { l.down = on })
	}},
	{"small mtu", func(w *world, how byte) func() {
		return w.spoil(how, func(l *leg, on bool) { l.mtu = when(on, 1500-int(how)) })
	}},
	{"restart", func(w *world, how byte) func() {
		p := w.sides[how%2].pick(how)
		p.quit()
		p.resume()
		return nil
	}},
	{"stop and start", func(w *world, how byte) func() {
		p := w.sides[how%2].pick(how)
		p.quit()
		return p.resume
	}},
	{"kill and start", func(w *world, how byte) func() {
		p := w.sides[how%2].pick(how)
		p.kill(false)
		return p.resume
	}},
	{"upgrade", func(w *world, how byte) func() {
		if s := w.sides[how%2]; !s.elects() {
			return s.upgrade(how)
		}
		return nil
	}},
	{"reload", func(w *world, how byte) func() {
		for i, p := range w.sides[how%2].pods {
			w.after(time.Duration(i)*time.Duration(how)*time.Millisecond, func() {
				if p.stop != nil {
					p.reload(how)
				}
			})
		}
		return nil
	}},
	{"roam", func(w *world, how byte) func() {
		w.sides[0].pick(how >> 2).moveTo(how % 8)
		return nil
	}},
	{"crowd", func(w *world, how byte) func() {
		for range how%8 + 1 {
			w.traffic.beginAny()
		}
		return nil
	}},
	{"flood", func(w *world, how byte) func() {
		// One side's alone: what unanswered ones of two links hold, an address of the link with
		// more may ask for in vain for long.
		if s := w.sides[w.seed[0]%2]; s.config.MaxConnections == fewConnections {
			w.traffic.flood(s, 60+int(how)/2)
		}
		return nil
	}},
}

// when returns x if on, else nothing.
func when[T any](on bool, x T) T {
	if !on {
		var none T
		return none
	}
	return x
}

// spoil changes a leg, and changes it back at its end.
func (w *world) spoil(how byte, change func(l *leg, on bool)) (end func()) {
	// Half of it happens between the gateways.
	l := w.legs[int(how/2)%len(w.legs)]
	if how%2 == 0 {
		l = w.sides[how/2%2].pick(how >> 1).toPeer
	}
	return spoilAll([]*leg{l}, change)
}

func spoilAll(all []*leg, change func(l *leg, on bool)) (end func()) {
	for _, l := range all {
		l.set(func(l *leg) { change(l, true) })
	}
	return func() {
		for _, l := range all {
			l.set(func(l *leg) { change(l, false) })
		}
	}
}

// times returns for how long a fault lasts, and when the next one begins after it has.
func times(b byte) (lasts, next time.Duration) {
	lasts = time.Duration(1+b%16) * 150 * time.Millisecond
	if b%16 > 12 {
		lasts *= 7 // to 16.8 s
	}
	return lasts, time.Duration(b/16) * 100 * time.Millisecond
}

// replicas says of which sides the gateway has two pods, by bits.
func (s schedule) replicas() byte {
	if n := len(s) - scheduleHead; n > 0 && n%faultBytes > 0 {
		return s[len(s)-1] & 3
	}
	return 0
}

// fault is the fault that a byte stands for, and how long it lasts with another byte.
func (s schedule) fault(which, when byte) (f *fault, lasts, next time.Duration) {
	lasts, next = times(when)
	of := faults
	if s.replicas() != 0 {
		of = allFaults
	}
	if f = &of[int(which)%len(of)]; slices.Contains(longFaults, f.name) {
		lasts = min(4*lasts, 20*time.Second)
	}
	return f, lasts, next
}

// play lets the faults of s happen, and returns when the last one is over.
func (s schedule) play(w *world) (calm time.Duration) {
	if len(s) < scheduleHead {
		return w.now()
	}
	at := time.Second
	for rest := s[scheduleHead:]; len(rest) >= faultBytes && w.faults < maxFaults; rest = rest[faultBytes:] {
		how := rest[1]
		f, lasts, next := s.fault(rest[0], rest[2])
		w.faults++
		w.after(at, func() {
			w.logEvent("%s (%d) begins", f.name, how)
			if end := f.begin(w, how); end != nil {
				w.after(lasts, func() {
					end()
					w.logEvent("%s (%d) is over", f.name, how)
				})
			}
		})
		calm = max(calm, at+lasts)
		at += next
	}
	return w.now() + calm
}

// String lists the faults.
func (s schedule) String() string {
	text := fmt.Sprintf("%x:", []byte(s))
	at := time.Second
	for rest := s[min(len(s), scheduleHead):]; len(rest) >= faultBytes; rest = rest[faultBytes:] {
		f, lasts, next := s.fault(rest[0], rest[2])
		text += fmt.Sprintf(" %s(%d)@%v+%v", f.name, rest[1], at, lasts)
		at += next
	}
	return text
}
