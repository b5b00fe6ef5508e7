package webpage

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/integration/need"
)

// A fake is a gateway that only knows its cluster's name. It implements only methods that read; a
// call of any other panics.
type fake struct {
	control.Source
	cluster string
	asked   atomic.Int32
}

func (f *fake) Status() control.Status {
	f.asked.Add(1)
	return control.Status{Cluster: f.cluster}
}

// newFake runs a control server for f and returns its client.
func newFake(t *testing.T, f *fake) (*control.Client, *control.Server) {
	t.Helper()
	path := filepath.Join(t.TempDir(), f.cluster+".sock")
	l, err := net.Listen("unix", path)
	need.NoError(t, err)
	s := control.NewServer(f, log.New(io.Discard, "", 0))
	go s.Serve(l)
	t.Cleanup(s.Close)
	return control.NewClient(path), s
}

func get(p *Page, method, host, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://"+host+path, nil)
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// TestWhoMayRead: only GET requests with the token, to this machine's own name, are served; any
// other learns nothing.
func TestWhoMayRead(t *testing.T) {
	client, _ := newFake(t, &fake{cluster: "rome-milan"})
	p := New([]*control.Client{client})
	for _, tt := range []struct {
		method, host, path string
		want               int
	}{
		{"GET", "127.0.0.1:4711", p.Path(), 200},
		{"GET", "localhost:8090", p.Path(), 200}, // through ssh -L
		{"GET", "[::1]:8090", p.Path() + "gateways", 200},
		{"GET", "127.0.0.1", p.Path() + "status/0", 200},
		{"GET", "127.0.0.1", p.Path() + "status/1", 404},
		{"GET", "127.0.0.1", p.Path() + "status/-1", 404},
		{"GET", "127.0.0.1", p.Path() + "status/x", 404},
		{"GET", "127.0.0.1", p.Path() + "v1/status", 404},
		{"GET", "127.0.0.1", "/", 404},
		{"GET", "127.0.0.1", "/status/0", 404},
		{"GET", "127.0.0.1", p.Path()[:len(p.Path())-2] + "/", 404},
		{"GET", "127.0.0.1", "/" + strings.Repeat("A", 26) + "/status/0", 404},
		{"POST", "127.0.0.1", p.Path(), 405},
		{"DELETE", "127.0.0.1", p.Path() + "status/0", 405},
		{"OPTIONS", "127.0.0.1", p.Path(), 405},
		{"DELETE", "127.0.0.1", "/", 404},
		{"GET", "evil.example:4711", p.Path(), 421},
		{"GET", "localhost.evil.example", p.Path(), 421},
		{"GET", "127.0.0.1.evil.example", p.Path(), 421},
		{"GET", "192.0.2.1", p.Path(), 421},
		{"GET", "0.0.0.0:4711", p.Path(), 421},
	} {
		w := get(p, tt.method, tt.host, tt.path)
		if w.Code != tt.want {
			t.Errorf("%s %s%s: %d, want %d", tt.method, tt.host, tt.path, w.Code, tt.want)
		}
		if w.Code != 200 && strings.Contains(w.Body.String(), strings.Trim(p.Path(), "/")) {
			t.Errorf("%s %s%s tells the token", tt.method, tt.host, tt.path)
		}
		if h := w.Header(); h.Get("Referrer-Policy") != "no-referrer" || h.Get("Cache-Control") != "no-store" ||
			h.Get("X-Content-Type-Options") != "nosniff" ||
			!strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") ||
			h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s%s: %v", tt.method, tt.host, tt.path, h)
		}
	}
	if other := New(nil); other.Path() == p.Path() || len(p.Path()) < 26 {
		t.Errorf("tokens %s and %s", p.Path(), other.Path())
	}
}

// TestOneFile: the page loads nothing from other servers, and its policy allows its script and
// style.
func TestOneFile(t *testing.T) {
	for _, bad := range []string{`(?i)\b(src|href)\s*=\s*["']?(https?:)?//`, `@import`, `\burl\(`,
		`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(`, `(?i)\son\w+\s*=\s*"`, ` style="`} {
		if found := regexp.MustCompile(bad).Find(text); found != nil {
			t.Errorf("the page has %s", found)
		}
	}
	for _, tag := range []string{"<style", "</style", "<script", "</script"} {
		if n := bytes.Count(text, []byte(tag)); n != 1 {
			t.Errorf("%d of %s", n, tag)
		}
	}
	// of nothing
	if strings.Contains(policy, "unsafe") || strings.Count(policy, "'sha256-") != 2 ||
		strings.Contains(policy, "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=") {
		t.Error(policy)
	}
}

// TestStatusIsShared: however many windows ask, the gateway is asked twice a second. A gateway that
// disappears, or comes back, is shown as such.
func TestStatusIsShared(t *testing.T) {
	f := &fake{cluster: "rome-milan"}
	client, server := newFake(t, f)
	g, now := New([]*control.Client{client}).gateways[0], time.Now()
	expect := func(asked int32, code int, text string) {
		t.Helper()
		got, body := g.status(now)
		if n := f.asked.Load(); got != code || !strings.Contains(string(body), text) || n != asked {
			t.Errorf("%d %s, asked %d times; want %d %s, %d times", got, body, n, code, text, asked)
		}
	}
	for range 100 {
		expect(1, http.StatusOK, `"cluster":"rome-milan"`)
	}
	now = now.Add(freshTime)
	expect(2, http.StatusOK, `"cluster":"rome-milan"`)

	server.Close()
	now = now.Add(freshTime)
	expect(2, http.StatusBadGateway, control.ErrNoGateway.Error())
	l, err := net.Listen("unix", client.Path)
	need.NoError(t, err)
	again := control.NewServer(f, log.New(io.Discard, "", 0))
	defer again.Close()
	go again.Serve(l)
	now = now.Add(freshTime)
	expect(3, http.StatusOK, `"cluster":"rome-milan"`)
}
