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

// A step is a packet of a flow and its time.
type step struct {
	at     time.Duration
	answer bool
}

// TestStanding: the standing of a flow after its packets.
func TestStanding(t *testing.T) {
	ask, answer := func(at time.Duration) step { return step{at, false} }, func(at time.Duration) step {
		return step{at, true}
	}
	for _, r := range []struct {
		name  string
		steps []step
		at    time.Duration
		want  flowState
		since time.Duration
	}{
		{"a request", nil, time.Second, waiting, 0},
		{"an exchange", []step{answer(time.Second)}, time.Minute, answered, time.Second},
		{"an answer that is late", []step{answer(streamAfter)}, streamAfter, answered, streamAfter},
		{"a second answer that is late", []step{answer(time.Second), answer(streamAfter)}, streamAfter, kept,
			streamAfter},
		{"two exchanges at once", []step{answer(1), ask(2), answer(3)}, time.Second, answered, 3},
		{"a second request", []step{answer(1), ask(time.Second), ask(streamAfter - 1)}, time.Minute, waiting,
			time.Second},
		{"many requests without an answer", []step{ask(time.Second), ask(time.Minute)}, time.Minute, waiting, 0},
		{"a stream", []step{answer(1), ask(streamAfter)}, streamAfter + streamSilence - 1, kept, streamAfter},
		{"a silent stream", []step{answer(1), ask(streamAfter)}, streamAfter + streamSilence, silent, streamAfter},
		{"one that goes on", []step{answer(1), ask(streamAfter), answer(time.Hour)}, time.Hour, kept, time.Hour},
	} {
		var p progress
		const began = 10 * time.Second
		p.start(began)
		for _, x := range r.steps {
			at, lasting := began+x.at, false
			if x.answer {
				lasting = p.reply(at)
			} else {
				p.ask(at)
				lasting = p.pass(at)
			}
			if lasting {
				p.stream.Store(true)
			}
		}
		if got, since := p.flowState(began + r.at); got != r.want || since != began+r.since {
			t.Errorf("%s: %d since %v, want %d since %v", r.name, got, since-began, r.want, r.since)
		}
	}
}

// TestYielding: which flow makes room for which in a full table.
func TestYielding(t *testing.T) {
	const now = time.Hour
	a := newFlows(64)
	names := map[string]*flow{}
	// add adds flows of a host, named after the host and their standing; the last one is the
	// oldest.
	add := func(host int, of flowState, n int, youngest time.Duration) {
		before := 0
		for name := range names {
			if strings.HasPrefix(name, fmt.Sprintf("h%d %d-", host, of)) {
				before++
			}
		}
		for i := range n {
			at := now - youngest - time.Duration(i)*time.Second
			f := &flow{client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(host)}),
				uint16(1000+len(names)))}
			f.start(at)
			if of == answered {
				f.asked.Store(0)
			}
			if !a.take(f) {
				t.Fatal("no place")
			}
			if of >= silent {
				a.makeStream(f)
			}
			names[fmt.Sprintf("h%d %d-%02d", host, of, before+i)] = f
		}
	}
	remove := func(which string) {
		for name, f := range names {
			if strings.Contains(name, which) {
				a.remove(f)
				delete(names, name)
			}
		}
	}
	check := func(when string, host int, at time.Duration, want string) {
		t.Helper()
		list, of, reason := a.yielding(netip.AddrFrom4([4]byte{198, 51, 100, byte(host)}), at)
		got := []string{}
		for name, f := range names {
			if slices.Contains(list, f) {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, fmt.Sprint(of, got, reason)); diff != "" {
			t.Errorf("%s, for h%d: %s", when, host, diff)
		}
	}
	none, full, share := nat.ReasonNone.String(), nat.ReasonTableFull.String(), nat.ReasonConnectionShare.String()

	add(1, kept, 3, time.Second)
	add(2, answered, 6, time.Second)
	add(3, answered, 5, time.Millisecond)
	add(4, waiting, 7, time.Millisecond)
	add(5, waiting, 3, 2*time.Millisecond)
	add(6, silent, 2, streamSilence)
	check("of more that are answered", 9, now, "0 [h2 0-05] "+none)
	check("of more that are answered", 1, now, "0 [h2 0-05] "+none)
	check("who has an equal part of these", 3, now, "0 [h3 0-04] "+none)
	check("who has none of these", 4, now, "0 [h2 0-05] "+none)
	remove("h3")
	check("of more that wait", 9, now, "1 [h4 1-06] "+none)
	check("who has less than an equal part of these", 6, now, "1 [h4 1-06] "+none)
	check("who has an equal part of these, and waits for long", 4, now, "1 [h4 1-06] "+none)
	check("who has an equal part of these, all new", 5, now, "3 [] "+share)
	check("soon after that", 5, now+yieldPause-1, "3 [] "+share)
	check("beside who has found none", 9, now+yieldPause-1, "1 [h4 1-06] "+none)
	add(5, answered, 1, 0)
	check("who has one that is answered", 5, now+yieldPause, "0 [h5 0-00] "+none)
	remove("h2")
	remove("h4")
	remove("h5")
	check("of streams", 9, now, "2 [h6 2-01] "+none)
	remove("h6")
	check("of streams that go on", 9, now, "3 [] "+full)
	add(4, answered, 1, 0)
	check("soon after that", 9, now+yieldPause-1, "3 [] "+full)
	check("after a pause", 9, now+yieldPause, "0 [h4 0-00] "+none)

	for host := 10; host < 2*yieldParts+10; host++ {
		add(host, waiting, 1, time.Duration(100-host)*time.Millisecond)
	}
	add(7, waiting, 2, 0)
	check("of many", 9, now+yieldPause, "1 [h10 1-00 h7 1-01] "+none)
	check("who has more than an equal part, and a small one", 7, now+yieldPause, "1 [h10 1-00 h7 1-01] "+none)
	add(7, waiting, 1, time.Millisecond)
	check("who has a large part", 7, now+yieldPause, "3 [] "+share)
	remove("")
	if len(a.sources) != 0 || a.count() != 0 || a.streams.count() != 0 {
		t.Errorf("%d sources, %d flows and %d streams are left", len(a.sources), a.count(), a.streams.count())
	}
}
