package sim

import (
	"testing"
	"time"
)

// TestSwitches: each way in which the pod that forwards becomes another one, or does not, with connections of all kinds on both sides. With -replicas it
// has also one that fails at times (doc.go).
func TestSwitches(t *testing.T) {
	const at, long = 8 * time.Second, 22 * time.Second
	type test struct {
		name     string
		switches int // that begin beside the first one of each side
		do       func(w *world, p *pod)
	}
	tests := []test{
		{"nothing happens", 0, func(*world, *pod) {}},
		{"SIGTERM", 1, func(_ *world, p *pod) { p.quit() }},
		{"SIGKILL", 1, func(_ *world, p *pod) { p.kill(false) }},
		{"SIGKILL of a container that starts again", 1, func(_ *world, p *pod) { p.kill(false); p.resume() }},
		{"its machine vanishes", 1, func(_ *world, p *pod) { p.kill(true) }},
		{"the API server is away", 0, func(w *world, p *pod) {
			p.side.api.refuse(true)
			w.after(long, func() { p.side.api.refuse(false) })
		}},
		{"cut off from the API server, the peer and the standby", 1, func(w *world, p *pod) {
			p.side.api.set(p.name, func(w *apiWay) { w.lost = true })
			p.deaf.Store(true)
			p.toPeer.set(func(l *leg) { l.down = true })
			p.side.lines.set(func(l *lines) { l.cut = [2]bool{true, true} })
		}},
		{"no copies", 0, func(w *world, p *pod) { p.side.lines.set(func(l *lines) { l.cut = [2]bool{true, true} }) }},
	}
	if *replicasFlag != "none" {
		tests = append(tests, []test{
			{"cut off from the API server", 1, func(w *world, p *pod) {
				p.side.api.set(p.name, func(w *apiWay) { w.lost = true })
				w.after(long, func() { p.side.api.set(p.name, func(w *apiWay) { w.lost = false }) })
			}},
		}...)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := play(t, schedule{14, 1, 3}, func(w *world) {
				for i := range w.sides {
					w.after(at+time.Duration(i)*time.Second, func() {
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
				t.Errorf("%q after %d packets and %d switches, want %d\n%s", r.failure, r.packets, r.switches, want, r.world.happened())
			}
		})
	}
}
