package control

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// Source is the gateway as seen by a Server. Several goroutines may call its methods.
type Source interface {
	rulesSource
	traceSource
	takeoverSource
	Status() Status
	// Doctor returns the conditions of the gateway's machine.
	Doctor() []Condition
	// Connections calls yield for each connection that f selects, until yield returns false.
	// yield's argument is valid until it returns.
	Connections(ctx context.Context, f *Filter, yield func(*Connection) bool) error
	// DeleteConnections ends the connections that f selects.
	DeleteConnections(ctx context.Context, f *Filter) (deleted int, err error)
	// Events calls yield for each start and end of a connection that f selects, and with nil when
	// it has to wait for more, until yield returns false or ctx is done.
	Events(ctx context.Context, f *Filter, yield func(*Event) bool) error
	// Reload reads and applies the configuration again or, in a dry run, returns what would change.
	Reload(ctx context.Context, dryRun bool) (*Reloaded, error)
	// Capture writes pcapng to w until ctx is done, and calls sent whenever w has all packets so
	// far. It returns how many packets it has written, and how many were lost.
	Capture(ctx context.Context, o *CaptureOptions, w io.Writer, sent func() error) (packets, lost uint64, err error)
}

// otherVersion is the likely cause of a request that the gateway does not know.
const otherVersion = "is the command of another version than the gateway?"

// Error is an answer whose status is not 200.
type Error struct {
	Message string `json:"error"`
}

const (
	requestTime = 2 * time.Second // to send a request's header
	// answerTime is how long a client may go without reading.
	answerTime = 10 * time.Second
	maxHeader  = 16 << 10
)

// A Server answers requests about a Source.
type Server struct {
	server *http.Server
	cancel context.CancelFunc
}

// NewServer returns a Server; it answers no requests before Serve.
func NewServer(s Source, errors *log.Logger) *Server {
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
	mux.HandleFunc("GET /debug/pprof/{name...}", serveProfile)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "no "+r.Method+" "+r.URL.Path+" here: "+otherVersion)
	})
	return newServer(mux, errors)
}

func newServer(handler http.Handler, errors *log.Logger) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	server := &Server{
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: requestTime,
			MaxHeaderBytes:    maxHeader,
			ErrorLog:          errors,
			BaseContext:       func(net.Listener) context.Context { return ctx },
		},
		cancel: cancel,
	}
	// One request per connection, so none is ever idle.
	server.server.SetKeepAlivesEnabled(false)
	return server
}

// Serve answers connections to l, until Close.
func (s *Server) Serve(l net.Listener) { s.server.Serve(l) }

// Close ends streams, waits a moment for answers in progress, and closes the listener.
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

// refuse sends err, which says what is wrong with the request.
func refuse(w http.ResponseWriter, err error) { fail(w, http.StatusBadRequest, err.Error()) }
