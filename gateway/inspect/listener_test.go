package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/lifecycle"
	"culvert/gateway/seats"
	"culvert/integration/need"
)

// TestOKUnless: a fault is a status of 503 and its text; none is ok.
func TestOKUnless(t *testing.T) {
	for fault, want := range map[string]int{"": http.StatusOK,
		"the packet path has taken nothing": http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		okUnless(func() string { return fault })(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if text := cmp.Or(fault, "ok") + "\n"; w.Code != want || w.Body.String() != text {
			t.Errorf("%d %q, want %d %q", w.Code, w.Body, want, text)
		}
	}
}

// TestPrinter: of simultaneous requests one prints the page, nobody gets a page that is older than
// the request, and prints keep their distance.
func TestPrinter(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		const took = 20 * time.Millisecond
		prints := 0
		p := newPrinter(func(int) []byte {
			prints++
			text := []byte(fmt.Sprint(prints))
			time.Sleep(took)
			return text
		})
		ask := func(n int, want string) {
			t.Helper()
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					if text, err := p.page(t.Context()); string(text) != want || err != nil {
						t.Errorf("page %q, %v, want %s", text, err, want)
					}
				})
			}
			all.Wait()
		}
		at := func(want time.Duration, since time.Time) {
			t.Helper()
			if took := time.Since(since); took != want {
				t.Errorf("took %v, want %v", took, want)
			}
		}

		began := time.Now()
		ask(1, "1")
		at(took, began)
		time.Sleep(time.Nanosecond)

		// Many requests come while the printer rests.
		began = time.Now()
		ask(1000, "2")
		at(printRest*took-time.Nanosecond+took, began)
		time.Sleep(time.Hour)

		// Some come while it prints for others: too late for that page.
		began = time.Now()
		var early sync.WaitGroup
		early.Go(func() { ask(10, "3") })
		time.Sleep(took / 2)
		ask(10, "4")
		early.Wait()
		at(took+printRest*took+took, began)

		// A client that leaves while it waits delays nobody.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := p.page(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("page for who has left: %v", err)
		}
		ask(1, "5")
	})
}

// TestPrinterDistance: the pause after a print follows from its duration, within limits.
func TestPrinterDistance(t *testing.T) {
	for took, rest := range map[time.Duration]time.Duration{
		0: minRest, time.Millisecond: minRest, 50 * time.Millisecond: 950 * time.Millisecond, time.Second: maxRest,
	} {
		need.Bubble(t, func(t *testing.T) {
			p := newPrinter(func(int) []byte {
				time.Sleep(took)
				return nil
			})
			p.page(t.Context())
			end := time.Now()
			time.Sleep(time.Nanosecond)
			p.page(t.Context())
			if got := time.Since(end) - took; got != rest {
				t.Errorf("a print of %v: the next after %v, want %v", took, got, rest)
			}
		})
	}
}

// reader is a client that takes the page when told to.
type reader struct {
	http.ResponseWriter
	begun, take chan struct{}
}

func (r *reader) Header() http.Header { return http.Header{} }
func (r *reader) Write(b []byte) (int, error) {
	r.begun <- struct{}{}
	<-r.take
	return len(b), nil
}

// TestPrinterSlowClients: slow clients neither wait for others nor delay them. When they hold too
// many bytes, others get the last page.
func TestPrinterSlowClients(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		prints := 0
		p := newPrinter(func(int) []byte {
			prints++
			return make([]byte, maxSending/4)
		})
		request, _ := http.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
		begun, take := make(chan struct{}), make(chan struct{})
		var clients sync.WaitGroup
		for range 20 {
			clients.Go(func() { p.ServeHTTP(&reader{nil, begun, take}, request) })
			<-begun
			time.Sleep(time.Nanosecond)
		}
		if prints != 5 {
			t.Errorf("%d pages for slow clients, want 5", prints)
		}
		close(take)
		clients.Wait()
		if p.page(t.Context()); prints != 6 {
			t.Errorf("%d pages after they have gone, want 6", prints)
		}
	})
}

// exhausted is a listener in a process without free descriptors.
type exhausted struct {
	net.Listener
	calls atomic.Int64
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.calls.Add(1) > 40 {
		return nil, net.ErrClosed
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
}

func (e *exhausted) Close() error { return nil }

// TestListenerErrors: errors of net/http are logged in our format, and rarely.
func TestListenerErrors(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		var text bytes.Buffer
		l := logrus.New()
		l.SetOutput(&text)
		l.SetFormatter(&logrus.JSONFormatter{DisableTimestamp: true})
		m, err := NewServer("metrics", "127.0.0.1:0",
			New(Options{Log: logrus.NewEntry(l), Life: lifecycle.New(lifecycle.Options{}, nil)}))
		need.NoError(t, err)
		m.Listener.Listener.Close()
		began := time.Now()
		outside := &exhausted{}
		m.server.Serve(seats.New(outside))
		const line = `{"level":"warning","listener":"metrics","msg":"http: Accept error: accept tcp: accept4: too many open files; retrying in 5ms"}` + "\n"
		lines := strings.SplitAfter(text.String(), "\n")
		if lines[0] != line {
			t.Errorf("log %q, want %q", lines[0], line)
		}
		// After a while net/http tries again once a second.
		if n, want := len(lines)-1, 1+int(time.Since(began)/(10*time.Second)); outside.calls.Load() != 41 ||
			n > want || n < 2 {
			t.Errorf("%d lines in %v, want %d at most", n, time.Since(began), want)
		}
	})
}
