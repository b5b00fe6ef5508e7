package election

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"culvert/gateway/role"
	"culvert/integration/need"
)

// A diary records what two gateways do, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// noted is a gateway that writes a diary. Its table is connected to another Elector.
type noted struct {
	*diary
	name  string
	other *Elector
	deaf  bool // its notices get lost
}

func (n *noted) Become(r role.Role)          { n.write(n.name + " is " + r.String()) }
func (n *noted) Signs() role.Signs           { return role.Signs{Stream: true} }
func (n *noted) Call()                       {}
func (n *noted) Flush(context.Context) error { n.write(n.name + " flushes"); return nil }

func (n *noted) Tell(message []byte) int {
	n.write(n.name + " says " + string(message))
	if !n.deaf {
		n.other.Heard(message)
	}
	return 1
}

// newTalking starts two gateways in a bubble, which exchange notices. a is active.
func newTalking(t *testing.T) (a, b *Elector, tables [2]*noted) {
	t.Helper()
	api := newAPI()
	a, _ = newElector(api, "a")
	b, _ = newElector(api, "b")
	d := &diary{}
	tables = [2]*noted{{diary: d, name: "a", other: b}, {diary: d, name: "b", other: a}}
	a.attempt(t.Context())
	for i, e := range []*Elector{a, b} {
		e.Retry = time.Minute // only what is said makes them attempt
		e.Drive(tables[i], tables[i])
	}
	ctx, stop := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	t.Cleanup(func() { stop(); tasks.Wait() })
	for _, e := range []*Elector{a, b} {
		tasks.Go(func() { e.Run(ctx) })
	}
	return a, b, tables
}

// await waits until a gateway has a role, and until nothing more happens.
func await(t *testing.T, e *Elector, r role.Role) {
	t.Helper()
	need.Eventually(t, 30*time.Second, e.Pod+" is "+r.String(), func() error {
		if is := e.Role(); is != r {
			return fmt.Errorf("it is %v", is)
		}
		return nil
	})
	synctest.Wait()
}

// TestHandingOn: a gateway that leaves hands over its Lease and its table in this order.
func TestHandingOn(t *testing.T) { need.Bubble(t, handOn) }

func handOn(t *testing.T) {
	a, b, tables := newTalking(t)
	began := time.Now()
	a.Leave(t.Context())
	await(t, b, role.Active)
	if took := time.Since(began); took >= yieldTime {
		t.Errorf("the handover takes %v, want less than %v, because each gateway hears the other", took, yieldTime)
	}
	want := []string{"a is active", "b is standby", "a is static", "a flushes",
		`a says {"says":"free","pod":"a","term":0}`,
		"a is standby", "a flushes", `a says {"says":"yours","pod":"a","term":1}`, "b is active"}
	mine := `b says {"says":"mine","pod":"b","term":1}`
	got := tables[0].lines
	if i := slices.Index(got, mine); i < 5 || i == len(got)-1 { // a may have read the Lease before
		t.Errorf("b says that it has the Lease in line %d of %q, want it after the first four and before the last", i,
			got)
	}
	if got = slices.DeleteFunc(got, func(line string) bool { return line == mine }); !slices.Equal(got, want) {
		t.Errorf("got:\n%q\nwant:\n%q", got, want)
	}
}

// TestCutOff: a gateway whose Lease has expired stops when it hears that another one has a new
// Lease, which then forwards.
func TestCutOff(t *testing.T) { need.Bubble(t, cutOff) }

func cutOff(t *testing.T) {
	a, b, tables := newTalking(t)
	await(t, a, role.Static)
	need.Eventually(t, 10*time.Second, "b is active", func() error { // it respects the Lease until that has expired
		if signal(b.poke); b.Role() != role.Active {
			return fmt.Errorf("it is %v", b.Role())
		}
		return nil
	})
	synctest.Wait()
	got := tables[0].lines
	want := []string{`b says {"says":"mine","pod":"b","term":1}`, "a is standby", "a flushes",
		`a says {"says":"yours","pod":"a","term":1}`, "b is active"}
	if len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) {
		t.Errorf("got:\n%q\nwant at the end:\n%q", got, want)
	}
	if s := a.State(); s.Holder != "b" || s.Term != 1 || s.Role != role.Standby {
		t.Errorf("a's state is %+v, want a standby that knows b's Lease with term 1", s)
	}
	b.Heard([]byte(`{"says":"mine","pod":"a","term":1}`)) // an old notice about a term that b has
	b.Heard([]byte(`[`))
	b.Heard([]byte(`{"says":"of a newer version"}`))
	synctest.Wait()
	if b.Role() != role.Active {
		t.Errorf("after an old notice b is %v, want active", b.Role())
	}
}

// TestNoAnswer: when a gateway that hangs does not answer, the one with the Lease forwards
// nevertheless.
func TestNoAnswer(t *testing.T) { need.Bubble(t, noAnswer) }

func noAnswer(t *testing.T) {
	a, b, tables := newTalking(t)
	tables[0].deaf, tables[1].deaf = true, true
	a.mu.Lock()
	a.ending = true // it hangs
	a.mu.Unlock()
	if _, err := a.release(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	signal(b.poke)
	await(t, b, role.Active)
	if took := time.Since(began).Round(100 * time.Millisecond); took != yieldTime {
		t.Errorf("b forwards after %v, want %v", took, yieldTime)
	}
}

// TestLeavesWhileTaking: a gateway that is told to end just after it got the Lease gives it back,
// although it does not forward yet: the one that had the Lease has stopped, and gets it again at
// once.
func TestLeavesWhileTaking(t *testing.T) { need.Bubble(t, leavesWhileTaking) }

func leavesWhileTaking(t *testing.T) {
	a, b, tables := newTalking(t)
	tables[0].deaf = true // b does not hear that a yields
	synctest.Wait()
	if _, err := a.release(t.Context()); err != nil {
		t.Fatal(err)
	}
	signal(b.poke)
	await(t, a, role.Standby)
	if l, err := a.release(t.Context()); err != nil || l == nil || l.Holder != "b" || b.Role() != role.Standby {
		t.Fatalf("%+v, %v, b is %v; want b to have the Lease and to wait", l, err, b.Role())
	}
	b.Leave(t.Context())
	await(t, a, role.Active)
	if l, err := b.release(t.Context()); err != nil || l == nil || l.Holder != "a" {
		t.Errorf("%+v, %v, want a to have the Lease", l, err)
	}
}

// TestDiesAtStart: a gateway that starts does not renew the Lease of the former process in its pod.
// As soon as it can forward, it takes over that Lease.
func TestDiesAtStart(t *testing.T) {
	api := newAPI()
	a, _ := newElector(api, "a")
	a.attempt(t.Context())
	before := storedLease(t, api).Renewed
	again, gateway := newElector(api, "a")
	again.gateway = nil
	again.attempt(t.Context())
	if l := storedLease(t, api); l.Renewed != before || again.Role() != role.Standby {
		t.Fatalf("the Lease is %+v and the gateway %v, want a Lease that is not renewed and a standby", l, again.Role())
	}
	again.Drive(gateway, nil)
	again.attempt(t.Context())
	if l := storedLease(t, api); l.Renewed == before || l.Holder != "a" || gateway.is() != role.Active {
		t.Errorf("the Lease is %+v and the gateway %v, want a renewed Lease of a, which is active", l, gateway.is())
	}
}

// TestNewPod: a gateway that cannot forward yet takes neither a free Lease nor one that does not
// exist.
func TestNewPod(t *testing.T) {
	api := newAPI()
	fresh, gateway := newElector(api, "fresh")
	fresh.gateway = nil
	if fresh.attempt(t.Context()); len(api.Actions()) != 1 {
		t.Fatalf("without a Lease, its requests are %v, want one that reads", api.Actions())
	}
	a, _ := newElector(api, "a")
	a.attempt(t.Context())
	if _, err := a.release(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh.attempt(t.Context())
	if l := storedLease(t, api); l.Holder != "" {
		t.Fatalf("%s has the Lease, want nobody", l.Holder)
	}
	fresh.Drive(gateway, nil)
	fresh.attempt(t.Context())
	if l := storedLease(t, api); l.Holder != "fresh" || gateway.is() != role.Active {
		t.Errorf("%q has the Lease and the gateway is %v, want fresh and active", l.Holder, gateway.is())
	}
}
