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

// Server serves /metrics, /healthz and /readyz. Its clients must not be able to delay packets:
// connections are few (package seats), each carries one request, and all that ask for the metrics
// at one time get the same page (printer).
type Server struct {
	Listener *seats.Listener // nil = off
	server   *http.Server
}

const (
	requestTime = 2 * time.Second  // to send a request
	answerTime  = 10 * time.Second // to wait for a page and read it; Prometheus waits no longer either
	maxHeader   = 4 << 10
	// socketBuffer limits the bytes that the kernel holds for a connection in each direction; it
	// accounts for twice as much.
	socketBuffer = 32 << 10
)

// NewServer opens the listener that a field of the configuration names; Serve starts answering.
// Only the listener of the field metrics serves /metrics.
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
			return nil, fmt.Errorf(
				"%s: %s is in use; stop what uses it, choose another address or turn %s off with \"\"", field,
				address, field)
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
	// One request per connection: further requests are not read, and no connection is ever idle.
	m.server.SetKeepAlivesEnabled(false)
	return m, nil
}

// okUnless answers ok, or 503 with the fault.
func okUnless(fault func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if text := fault(); text != "" {
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// limitSocket sets socket options that accepted connections inherit: how much the kernel holds for
// them, and for how long if a client does not read, also after Close.
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

// newErrorLog returns a logger for net/http that writes to ours, at most one line in ten seconds.
func newErrorLog(to *logrus.Entry, listener string) *log.Logger {
	return log.New(&errorLog{to: to.WithField("listener", listener), pace: rate.Sometimes{Interval: 10 * time.Second}},
		"", 0)
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

// A printer serves a page. It prints one copy at a time, for all clients that wait for it.
type printer struct {
	print   func(size int) []byte // size: of the last one
	turn    chan struct{}         // full while one prints
	sending atomic.Int64          // upper bound of the bytes that clients have not read yet

	// Only the goroutine that holds turn uses the rest.
	text  []byte
	began time.Time // of the print of text
	rest  time.Time // nobody prints before
}

const (
	// A printer rests after each print for printRest times as long as the print took, so it uses at
	// most a twentieth of a CPU. It never rests longer than maxRest.
	printRest = 19
	minRest   = 100 * time.Millisecond
	maxRest   = 2 * time.Second
	// maxSending is the number of bytes not yet read by clients at which a printer stops printing.
	maxSending = 16 << 20
)

func newPrinter(print func(int) []byte) *printer {
	return &printer{print: print, turn: make(chan struct{}, 1)}
}

// page returns a page whose print began after the call, so it is not older than the request. If
// slow clients hold too many pages, it returns the last one.
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

// ServeHTTP implements http.Handler. The page is not compressed, because that would cost more than
// printing it, for each client.
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
