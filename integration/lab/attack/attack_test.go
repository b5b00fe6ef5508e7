package attack

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// TestTallies: a request lost is a failure, and so is one repeated that the kernel has not
// lost.
func TestTallies(t *testing.T) {
	innocents := []*innocent{{what: "pings"}, {what: "scrapes"}}
	for _, test := range []struct {
		name    string
		tallies []tally
		kernel  int
		want    string // figure
		err     string
	}{
		{"all answered", []tally{{asked: 10}, {asked: 5}}, 0, "9 at 1 k/s; 10 pings; 5 scrapes", ""},
		{"the kernel lost some", []tally{{asked: 10, again: 2}, {asked: 5}}, 2,
			"9 at 1 k/s; 10 pings; 5 scrapes; 2 lost by the kernel", ""},
		{"somebody else did", []tally{{asked: 10, again: 3}, {asked: 5}}, 2, "",
			"3 of 10 pings lost, of which the kernel lost no more than 2"},
		{"the kernel lost some, and some were late", []tally{{asked: 10, again: 3, late: 1}, {asked: 5}}, 2,
			"9 at 1 k/s; 10 pings; 5 scrapes; 2 lost by the kernel", ""},
		{"never answered", []tally{{asked: 10}, {asked: 5, again: 2, lost: 1}}, 100, "",
			"1 of 5 scrapes lost, 3 attempts each"},
	} {
		figure, err := judgeTallies([]string{"9 at 1 k/s"}, innocents, test.tallies, test.kernel)
		if test.err == "" && (err != nil || figure != test.want) {
			t.Errorf("%s: %q, %v; want %q", test.name, figure, err, test.want)
		}
		if test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.err)
		}
	}
}

// TestInnocentGivesUp: one that is answered at the second attempt counts once, one that
// never is counts as lost.
func TestInnocentGivesUp(t *testing.T) {
	failure := errors.New("no answer")
	answers := []error{failure, nil, nil, failure, failure, failure}
	in := &innocent{ask: func(context.Context) (err error) {
		err, answers = answers[0], answers[1:]
		return err
	}}
	var got tally
	for range 3 {
		in.once(t.Context(), &got)
	}
	if want := (tally{asked: 3, again: 3, lost: 1, err: failure}); got != want || len(answers) != 0 {
		t.Errorf("%+v, want %+v; %d answers left", got, want, len(answers))
	}
}

// TestLateAnswers: an answer that comes after its time is late, and one that never comes or is
// another one is not.
func TestLateAnswers(t *testing.T) {
	q := &questioner{timeout: time.Millisecond}
	var answer []func()
	for _, tt := range []struct{ now, later string }{{"question from pipe", ""}, {"", "question from pipe"}, {"", ""},
		{"", "another"}} {
		near, far := net.Pipe()
		if answered := make(chan error); tt.now != "" {
			q.timeout = time.Minute
			go func() { answered <- q.ask(near) }()
			io.ReadFull(far, make([]byte, len(tt.now)))
			far.Write([]byte(tt.now))
			if err := <-answered; err != nil {
				t.Error(err)
			}
			q.timeout = time.Millisecond
			continue
		}
		go io.ReadFull(far, make([]byte, len("question from pipe")))
		if err := q.ask(near); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("no answer: %v", err)
		}
		answer = append(answer, func() { far.Write([]byte(tt.later)) })
	}
	q.timeout = time.Minute
	for _, write := range answer {
		go write()
	}
	if n := q.late(); n != 1 || len(q.unanswered) > 0 {
		t.Errorf("%d late, want 1; %d are kept", n, len(q.unanswered))
	}
}
