// Package page serves a node's /metrics and /healthz.
package page

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/prometheus"
	"culvert/gateway/seats"
)

// Also returns metrics of the whole process in Prometheus' text format. Every page includes them.
// It is set before the first New; nil means none.
var Also func() string

const (
	requestTime = 5 * time.Second
	answerTime  = 10 * time.Second
	maxHeader   = 8 << 10 // bytes
)

// A Page serves /metrics and /healthz, to a limited number of clients (package seats). Its zero
// value serves nothing.
type Page struct {
	socket   net.Listener // of listener
	address  string
	listener *seats.Listener
	server   *http.Server
}

// New opens a listener at address, which the setting called field gives. metrics returns the page
// in Prometheus' text format. fault returns why the node does not do what it should, or "". Without
// an address nothing is served. If l, the listener of another process, is not nil, New uses it.
// Preconditions: several goroutines may call both functions.
func New(field, address string, l net.Listener, metrics, fault func() string) (*Page, error) {
	if address == "" {
		return &Page{}, nil
	}
	var err error
	if l == nil {
		l, err = net.Listen("tcp", address)
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is in use; stop what uses it, or choose another address", field, address)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	p := &Page{socket: l, address: address, listener: seats.New(l)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", prometheus.ContentType)
		var own prometheus.Page
		own.One(prometheus.Gauge, "listener_connections", "Connections to this listener.", float64(p.listener.InUse()))
		own.One(prometheus.Counter, "listener_refused_connections_total",
			"Connections closed because there were too many, or too many of their source.",
			float64(p.listener.Refused()))
		fmt.Fprint(w, metrics(), own.Text.String())
		if Also != nil {
			fmt.Fprint(w, Also())
		}
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

// Socket returns the listener, for another process, and its address as given; nil if nothing is
// served.
func (p *Page) Socket() (net.Listener, string) { return p.socket, p.address }

// Serve answers until Close.
func (p *Page) Serve() {
	if p.server != nil {
		p.server.Serve(p.listener)
	}
}

// Close may be called again, and on a nil Page.
func (p *Page) Close() {
	if p != nil && p.server != nil {
		p.server.Close()
		p.listener.Close()
	}
}
