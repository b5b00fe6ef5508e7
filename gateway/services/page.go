package services

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/seats"
)

const (
	requestTime = 5 * time.Second
	answerTime  = 10 * time.Second
	maxHeader   = 8 << 10 // bytes
)

// A Metrics is a text in Prometheus' format.
type Metrics struct{ strings.Builder }

// Family begins a family of metrics, whose name culvert_ goes before.
func (m *Metrics) Family(kind, name, help string) {
	fmt.Fprintf(m, "# HELP culvert_%s %s\n# TYPE culvert_%[1]s %[3]s\n", name, help, kind)
}

// One adds a family of one metric without labels.
func (m *Metrics) One(kind, name, help string, value uint64) {
	m.Family(kind, name, help)
	fmt.Fprintf(m, "culvert_%s %d\n", name, value)
}

// A Page serves /metrics and /healthz, to a few at a time (package seats). Its zero value serves nothing.
type Page struct {
	listener *seats.Listener
	server   *http.Server
}

// NewPage opens the listener of services.metrics, for what metrics returns, in Prometheus' text format, and fault: why services are not served
// as they should be, or "". Without an address nothing is served. Preconditions: both functions may be called by several goroutines.
func NewPage(address string, metrics, fault func() string) (*Page, error) {
	if address == "" {
		return &Page{}, nil
	}
	l, err := net.Listen("tcp", address)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("services.metrics: %s is in use; stop what uses it, or choose another address", address)
	}
	if err != nil {
		return nil, fmt.Errorf("services.metrics: %w", err)
	}
	p := &Page{listener: seats.New(l)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		var own Metrics
		own.One("gauge", "listener_connections", "Connections to this listener.", uint64(p.listener.InUse()))
		own.One("counter", "listener_refused_connections_total", "Connections closed at once because there were too many, or too many of their address.", p.listener.Refused())
		fmt.Fprint(w, metrics(), own.String())
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if f := fault(); f != "" {
			http.Error(w, f, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	p.server = &http.Server{Handler: mux, ReadTimeout: requestTime, WriteTimeout: answerTime, MaxHeaderBytes: maxHeader}
	p.server.SetKeepAlivesEnabled(false)
	return p, nil
}

// Serve answers until Close.
func (p *Page) Serve() {
	if p.server != nil {
		p.server.Serve(p.listener)
	}
}

// Close may be called again, and of a nil Page.
func (p *Page) Close() {
	if p != nil && p.server != nil {
		p.server.Close()
		p.listener.Close()
	}
}
