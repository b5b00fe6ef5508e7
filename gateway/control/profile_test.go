package control

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestProfiles: go tool pprof and go tool trace get the same as from net/http/pprof.
func TestProfiles(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/{name...}", serveProfile)
	ask := func(r *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	const gzip = "\x1f\x8b" // RFC 1952, Section 2.3.1
	for _, c := range []struct {
		path, begins string
		status       int
	}{
		{"", "cmdline\n", http.StatusOK},
		{"goroutine?debug=2", "goroutine ", http.StatusOK},
		{"goroutine", gzip, http.StatusOK},
		{"heap?gc=1", gzip, http.StatusOK},
		{"heap?debug=1", "heap profile: ", http.StatusOK},
		{"profile?seconds=0.01", gzip, http.StatusOK},
		{"trace?seconds=0.01", "go 1.", http.StatusOK},
		{"profile?seconds=x", `{"error":"seconds: \"x\" is no number`, http.StatusBadRequest},
		{"trace?seconds=1e9", `{"error":"seconds: `, http.StatusBadRequest},
		{"profile?seconds=NaN", `{"error":"seconds: `, http.StatusBadRequest},
		{"nothing", `{"error":"no profile nothing"}`, http.StatusNotFound},
	} {
		w := ask(httptest.NewRequest(http.MethodGet, "/debug/pprof/"+c.path, nil))
		if text := w.Body.String(); w.Code != c.status || !strings.HasPrefix(text, c.begins) {
			t.Errorf("%s: %d %.80q, want %d %q", c.path, w.Code, text, c.status, c.begins)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel() // a client that asked for half a minute has left
	if w := ask(httptest.NewRequest(http.MethodGet, "/debug/pprof/profile", nil).WithContext(gone)); w.Code !=
		http.StatusOK {
		t.Errorf("%d", w.Code)
	}
}
