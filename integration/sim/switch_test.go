package sim

import (
	"testing"
	"time"
)

// TestSwitches: each way in which the pod that forwards becomes another one, or does not, with
// connections of all kinds on both sides, whose pods change at once or one after the other.
func TestSwitches(t *testing.T) {
	const at, long = 8 * time.Second, 22 * time.Second
	for _, test := range []struct {
		name     string
		switches int // that begin beside the first one of each side
		do       func(w *world, p *pod)
	}{
		{"nothing happens", 0, func(*world, *pod) {}},
		{"SIGTERM", 1, func(_ *world, p *pod) { p.quit() }},
		{"SIGKILL", 1, func(_ *world, p *pod) { p.kill(false) }},
		{"SIGKILL of a container that starts again", 1, func(_ *world, p *pod) { p.kill(false); p.resume() }},
		{"SIGKILL of a container whenever it has started", 1, func(w *world, p *pod) {
			// before it has a copy
			for after := time.Duration(0); after < 8*time.Second; after += 40 * time.Millisecond {
				w.after(after, func() { p.kill(false); p.resume() })
			}
		}},
		{"its machine vanishes", 1, func(_ *world, p *pod) { p.kill(true) }},
		{"the API server is away", 0, func(w *world, p *pod) {
			p.side.api.refuse(true)
			w.after(long, func() { p.side.api.refuse(false) })
		}},
		{"cut off from the API server", 1, func(w *world, p *pod) {
			p.side.api.set(p.name, func(w *apiWay) { w.lost = true })
			w.after(long, func() { p.side.api.set(p.name, func(w *apiWay) { w.lost = false }) })
		}},
		{"cut off from the API server, the peer and the standby", 1, func(w *world, p *pod) {
			p.side.api.set(p.name, func(w *apiWay) { w.lost = true })
			p.deaf.Store(true)
			p.toPeer.set(func(l *leg) { l.down = true })
			p.side.lines.set(func(l *lines) { l.cut = [2]bool{true, true} })
		}},
		{"no copies", 0, func(w *world, p *pod) { p.side.lines.set(func(l *lines) { l.cut = [2]bool{true, true} }) }},
	} {
		for _, apart := range []time.Duration{0, 100 * time.Millisecond, time.Second} {
			t.Run(test.name+"/"+apart.String(), func(t *testing.T) {
				r := play(t, schedule{14, 1, 3}, func(w *world) {
					for i := range w.sides {
						w.after(at+time.Duration(i)*apart, func() {
							p := w.sides[i].leader()
							if p == nil {
								w.fail("nobody has the label after %v", at)
								return
							}
							test.do(w, p)
						})
					}
				})
				if want := 2 + 2*test.switches; r.failure != "" || r.switches != want || r.packets < 200 {
					t.Errorf("%q after %d packets and %d switches, want %d\n%s", r.failure, r.packets, r.switches, want,
						r.world.happened())
				}
			})
		}
	}
}
