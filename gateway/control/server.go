package control

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// Source is the gateway, as far as a Server has to know it. Its methods may be called from
// several goroutines.
type Source interface {
	rulesSource
	traceSource
	flightSource
	takeoverSource
	Status() Status
	// Doctor says what the gateway's machine gives it.
	Doctor() []Condition
	// Connections calls yield for each connection that f selects, until yield returns false. What yield was given is its own until it returns.
	Connections(ctx context.Context, f *Filter, yield func(*Connection) bool) error
	// DeleteConnections ends those that f selects.
	DeleteConnections(ctx context.Context, f *Filter) (deleted int, err error)
	// Events calls yield for each begin and end of a connection that f selects, and with nil
	// when there is no more for now, until yield returns false or ctx is done.
	Events(ctx context.Context, f *Filter, yield func(*Event) bool) error
	// Reload reads the configuration again and applies it or, for a dry run, says what that
	// would change.
	Reload(ctx context.Context, dryRun bool) (*Reloaded, error)
	// Capture writes pcapng to w until ctx is done, and calls sent when w has what there is.
	// It returns how many packets it has written, and how many were lost.
	Capture(ctx context.Context, o *CaptureOptions, w io.Writer, sent func() error) (packets, lost uint64, err error)
}

// Error is an answer whose status is not 200.
type Error struct {
	Message string `json:"error"`
}

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
	mux.HandleFunc("GET /v1/doctor", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Doctor()) })
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Status().Version) })
	mux.HandleFunc("GET /v1/connections", serveConnections(s))
	mux.HandleFunc("GET /v1/connections/events", serveEvents(s))
	mux.HandleFunc("DELETE /v1/connections", serveDelete(s))
	mux.HandleFunc("GET /v1/rules", serveRules(s))
	mux.HandleFunc("GET /v1/routes", serveRoutes(s))
	mux.HandleFunc("POST /v1/reload", serveReload(s))
	mux.HandleFunc("POST /v1/takeover", serveTakeover(s))
	mux.HandleFunc("POST /v1/capture", serveCapture(s))
	mux.HandleFunc("GET /v1/trace", serveTrace(s))
	mux.HandleFunc("GET /debug/flight", serveFlight(s))
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

// refuse sends err, which says what is wrong with what was asked.
func refuse(w http.ResponseWriter, err error) { fail(w, http.StatusBadRequest, err.Error()) }
