package inspect

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"culvert/gateway/path"
	"culvert/gateway/prometheus"
	"culvert/gateway/seats"
)

// Server serves /metrics, /healthz and /readyz. Whoever reaches it must not be
// able to keep packets waiting: connections are few (package seats), each asks one thing, and
// all who want the metrics at one time get the same page (printer).
type Server struct {
	Listener *seats.Listener // nil = off
	server   *http.Server
}

const (
	requestTime = 2 * time.Second  // to send a request
	answerTime  = 10 * time.Second // to wait for a page and take it; Prometheus waits no longer either
	maxHeader   = 4 << 10
	// socketBuffer is what the kernel may hold of a connection each way; it books twice as much.
	socketBuffer = 32 << 10
)

// NewServer opens the listener of a field of the configuration; Serve starts
// answering. Only that of metrics has any.
func NewServer(field, address string, src *Source) (*Server, error) {
	if address == "" {
		return &Server{}, nil
	}
	l, err := src.Life.Listener(field, address)
	if l == nil && err == nil {
		lc := net.ListenConfig{KeepAlive: -1, Control: limitSocket}
		l, err = lc.Listen(context.Background(), "tcp", address)
	}
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("%s: %s is in use; stop what uses it, choose another address or turn %s off with \"\"", field, address, field)
		}
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	m := &Server{Listener: seats.New(l)}
	mux := http.NewServeMux()
	if field == "metrics" {
		mux.Handle("GET /metrics", newPrinter(func(size int) []byte { return src.Metrics(m.Listener, size) }))
	}
	mux.HandleFunc("GET /healthz", okUnless(func() string { return src.Monitor.Fault(path.Uptime()) }))
	mux.HandleFunc("GET /readyz", okUnless(func() string {
		if !src.Ready() || src.Teacher != nil && !src.Teacher.Ready() {
			return "starting or stopping"
		}
		return ""
	}))
	m.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: requestTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      answerTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          newErrorLog(src.Log, "metrics"),
	}
	// One request per connection: what is sent beyond it waits in vain, and no connection is ever idle.
	m.server.SetKeepAlivesEnabled(false)
	return m, nil
}

// okUnless answers ok, or 503 with a fault.
func okUnless(fault func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if text := fault(); text != "" {
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// limitSocket sets what accepted connections inherit: how much the kernel holds for
// them, and for how long it does so for a client that takes nothing, also after Close.
func limitSocket(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
		unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_USER_TIMEOUT, int(answerTime.Milliseconds()))
	})
}

// Serve answers until Close.
func (m *Server) Serve() {
	if m.Listener != nil {
		go m.server.Serve(m.Listener)
	}
}

// Close ends all connections, after a second at most.
func (m *Server) Close() {
	if m.Listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	m.server.Shutdown(ctx)
	m.server.Close()
	m.Listener.Close()
}

// newErrorLog returns a log for the net/http of a listener, whose lines go to ours: one each
// ten seconds.
func newErrorLog(to *logrus.Entry, listener string) *log.Logger {
	return log.New(&errorLog{to: to.WithField("listener", listener), pace: rate.Sometimes{Interval: 10 * time.Second}}, "", 0)
}

type errorLog struct {
	to   *logrus.Entry
	pace rate.Sometimes
}

// Write implements io.Writer.
func (l *errorLog) Write(line []byte) (int, error) {
	l.pace.Do(func() { l.to.Warn(strings.TrimSpace(string(line))) })
	return len(line), nil
}

// A printer serves a page that it prints one at a time, for all who wait for it.
type printer struct {
	print   func(size int) []byte // size: of the last one
	turn    chan struct{}         // full while one prints
	sending atomic.Int64          // bytes of pages that clients have not taken yet, at most

	// The rest belongs to whose turn it is.
	text  []byte
	began time.Time // of the print of text
	rest  time.Time // nobody prints before
}

const (
	// A printer rests after each print, printRest times as long as that took: it keeps a
	// twentieth of a CPU from the packets. Nobody waits for longer than maxRest.
	printRest = 19
	minRest   = 100 * time.Millisecond
	maxRest   = 2 * time.Second
	// maxSending is when a printer stops printing pages for clients that do not take them.
	maxSending = 16 << 20
)

func newPrinter(print func(int) []byte) *printer {
	return &printer{print: print, turn: make(chan struct{}, 1)}
}

// page returns a page whose print began after the call: nobody reads what was true
// before the question, unless slow clients hold too many pages already.
func (p *printer) page(ctx context.Context) ([]byte, error) {
	asked := time.Now()
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !p.began.Before(asked) || p.sending.Load() > maxSending {
		return p.text, nil
	}
	select {
	case <-time.After(time.Until(p.rest)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.began = time.Now()
	p.text = p.print(len(p.text))
	end := time.Now()
	p.rest = end.Add(min(max(printRest*end.Sub(p.began), minRest), maxRest))
	return p.text, nil
}

// ServeHTTP implements http.Handler. The page is not compressed: that would cost more
// than printing it, for each client again.
func (p *printer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := p.page(r.Context())
	if err != nil {
		return // the client is gone
	}
	p.sending.Add(int64(len(text)))
	defer p.sending.Add(-int64(len(text)))
	w.Header().Set("Content-Type", prometheus.ContentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.Write(text)
}
