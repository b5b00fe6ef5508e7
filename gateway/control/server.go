package control

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// Source is the gateway, as far as a Server has to know it. Its methods may be called from
// several goroutines.
type Source interface {
	Status() Status
}

// Error is an answer whose status is not 200.
type Error struct {
	Message string `json:"error"`
}

// errBadRequest marks an error that is the client's.
type errBadRequest struct{ error }

const (
	requestTime = 2 * time.Second // to send the head of a request
	// answerTime is how long a client may take nothing of what it is sent.
	answerTime = 10 * time.Second
	maxHeader  = 16 << 10
)

// A Server answers requests about a Source.
type Server struct {
	server *http.Server
	cancel context.CancelFunc
}

// NewServer returns a Server that answers nobody before Serve.
func NewServer(s Source, errors *log.Logger) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Status()) })
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Status().Version) })
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "no "+r.Method+" "+r.URL.Path+" here: is the command of another version than the gateway?")
	})
	server := &Server{
		server: &http.Server{
			Handler:           mux,
			ReadHeaderTimeout: requestTime,
			MaxHeaderBytes:    maxHeader,
			ErrorLog:          errors,
			BaseContext:       func(net.Listener) context.Context { return ctx },
		},
		cancel: cancel,
	}
	// One request per connection, so that none is ever idle.
	server.server.SetKeepAlivesEnabled(false)
	return server
}

// Serve answers who connects to l, until Close.
func (s *Server) Serve(l net.Listener) { s.server.Serve(l) }

// Close ends streams, waits a moment for answers under way, and closes the listener.
func (s *Server) Close() {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.server.Shutdown(ctx)
	s.server.Close()
}

// answer sends v.
func answer(w http.ResponseWriter, v any) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// fail sends an Error.
func fail(w http.ResponseWriter, status int, message string) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(Error{message})
}

// refuse sends err: the client's with status 400, others with 409, for the state of the
// gateway is against it.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusConflict
	if errors.As(err, new(errBadRequest)) {
		status = http.StatusBadRequest
	}
	fail(w, status, err.Error())
}
