package sockets

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"culvert/nat"
)

// A step is what passes of a flow, and when.
type step struct {
	at     time.Duration
	answer bool
}

// TestStanding: what a flow is after its packets.
func TestStanding(t *testing.T) {
	ask, answer := func(at time.Duration) step { return step{at, false} }, func(at time.Duration) step { return step{at, true} }
	for _, r := range []struct {
		name  string
		steps []step
		at    time.Duration
		want  standing
	}{
		{"a request", nil, waitTime - 1, kept},
		{"one that nobody answers", nil, waitTime, waiting},
		{"an exchange", []step{answer(time.Second)}, time.Second, answered},
		{"an answer that is late", []step{answer(streamAfter)}, streamAfter, answered},
		{"a second answer that is late", []step{answer(time.Second), answer(streamAfter)}, streamAfter, kept},
		{"two exchanges at once", []step{answer(time.Millisecond), ask(2 * time.Millisecond), answer(3 * time.Millisecond)}, time.Second, answered},
		{"a second request", []step{answer(time.Millisecond), ask(time.Second)}, time.Second, kept},
		{"many requests without an answer", []step{ask(time.Second), ask(time.Minute)}, time.Minute + waitTime, waiting},
		{"a stream", []step{answer(time.Millisecond), ask(streamAfter)}, streamAfter + streamSilence - 1, kept},
		{"a silent stream", []step{answer(time.Millisecond), ask(streamAfter)}, streamAfter + streamSilence, silent},
		{"one that goes on", []step{answer(time.Millisecond), ask(streamAfter), answer(time.Hour)}, time.Hour, kept},
	} {
		var p progress
		const began = 10 * time.Second
		p.start(began)
		p.ask()
		for _, x := range r.steps {
			if x.answer {
				p.reply(began + x.at)
			} else {
				p.ask()
				p.pass(began + x.at)
			}
		}
		if got := p.standing(began + r.at); got != r.want {
			t.Errorf("%s: %d, want %d", r.name, got, r.want)
		}
	}
}

// TestYielding: who makes room for whom.
func TestYielding(t *testing.T) {
	const now = time.Hour
	a := flows{sources: map[netip.Prefix]*family{}}
	names, all := map[*flow]string{}, map[string]*flow{}
	add := func(name string, of standing, ago time.Duration) {
		host := "198.51.100." + name[1:strings.IndexByte(name, '-')]
		f := &flow{client: netip.AddrPortFrom(netip.MustParseAddr(host), uint16(1000+len(names)))}
		f.began = now - ago
		f.passed.Store(int64(now - ago))
		f.waits.Store(of == waiting)
		f.stream.Store(of >= silent)
		a.add(f)
		names[f], all[name] = name, f
	}
	yield := func(source string, reason nat.Reason, at time.Duration) string {
		list, of := a.yielding(netip.MustParseAddr(source), reason, at)
		var told []string
		for _, f := range list {
			told = append(told, names[f])
		}
		return fmt.Sprint(of, told)
	}
	remove := func(list ...string) {
		for _, name := range list {
			a.remove(all[name])
		}
	}
	add("h1-answered-long-ago", answered, time.Minute)
	add("h1-waiting", waiting, 2*time.Minute)
	add("h1-stream", kept, time.Second)
	add("h2-answered-longer-ago", answered, 90*time.Second)
	add("h2-silent", silent, streamSilence)
	add("h3-answered", answered, time.Second)
	type row struct {
		source string
		reason nat.Reason
		want   string
	}
	check := func(when string, rows ...row) {
		t.Helper()
		for _, r := range rows {
			if diff := cmp.Diff(r.want, yield(r.source, r.reason, now)); diff != "" {
				t.Errorf("%s, for %s, %v: %s", when, r.source, r.reason, diff)
			}
		}
	}
	check("at first",
		row{"198.51.100.3", nat.ReasonTableFull, "0 [h2-answered-longer-ago]"},
		row{"198.51.100.9", nat.ReasonTableFull, "0 [h2-answered-longer-ago]"},
		row{"198.51.100.1", nat.ReasonTableFull, "0 [h1-answered-long-ago]"}, // who has three of six, among three
		row{"198.51.100.1", nat.ReasonConnectionShare, "0 [h1-answered-long-ago]"},
		row{"198.51.100.3", nat.ReasonConnectionShare, "0 [h3-answered]"})
	remove("h1-answered-long-ago", "h2-answered-longer-ago", "h3-answered")
	check("without answered ones",
		row{"198.51.100.9", nat.ReasonTableFull, "1 [h1-waiting]"},
		row{"198.51.100.2", nat.ReasonConnectionShare, "2 [h2-silent]"},
		row{"198.51.100.9", nat.ReasonConnectionShare, "3 []"}) // its own have ended meanwhile
	remove("h1-waiting", "h2-silent")
	check("with a stream alone", row{"198.51.100.9", nat.ReasonTableFull, "3 []"})
	add("h4-answered", answered, time.Second)
	check("soon after that", row{"198.51.100.9", nat.ReasonTableFull, "3 []"}, row{"198.51.100.4", nat.ReasonConnectionShare, "0 [h4-answered]"})
	if got := yield("198.51.100.9", nat.ReasonTableFull, now+yieldPause); got != "0 [h4-answered]" {
		t.Errorf("after a pause %s", got)
	}
	for i := range 2 * yieldParts {
		add(fmt.Sprintf("h5-%02d", i), answered, time.Duration(i+2)*time.Second)
	}
	want := "0 [h5-31 h5-30]"
	if got := yield("198.51.100.5", nat.ReasonConnectionShare, now); got != want {
		t.Errorf("of many %s, want %s", got, want)
	}
	for name := range all {
		if slices.Contains([]string{"h1-stream", "h4-answered"}, name) || strings.HasPrefix(name, "h5-") {
			remove(name)
		}
	}
	if len(a.sources) != 0 || a.total != 0 {
		t.Errorf("%d sources and %d flows are left", len(a.sources), a.total)
	}
}
