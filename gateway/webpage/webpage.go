// Package webpage shows the status of gateways in a browser: the packet path with live rates, and
// problems with remedies. It is a read-only client of their control sockets.
//
// A Page answers only GET, under a random token. A user who may read the control sockets can open
// it in a browser; another user of the machine, who may connect to the same loopback address,
// cannot guess it. A request must have the loopback address as its host, so that no other site can
// make a browser read the page under a name that it has pointed here (DNS rebinding). The page is
// one file, whose policy allows only its own style, its own script and further requests to it.
package webpage

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"culvert/gateway/control"
)

//go:embed page.html
var text []byte

// policy allows the page its own style and script, and requests to its origin.
var policy = "default-src 'none'; style-src " + hash("style") + "; script-src " + hash("script") +
	"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// hash returns the source expression of the one element with a tag (CSP Level 3, Section 2.3.1).
func hash(tag string) string {
	_, rest, _ := bytes.Cut(text, []byte("<"+tag+">"))
	body, _, _ := bytes.Cut(rest, []byte("</"+tag+">"))
	sum := sha256.Sum256(body)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// A Page is an http.Handler.
type Page struct {
	token    string
	gateways []*gateway
}

// New returns a page about the gateways of clients.
func New(clients []*control.Client) *Page {
	p := &Page{token: rand.Text()}
	for _, c := range clients {
		p.gateways = append(p.gateways, &gateway{client: c})
	}
	return p
}

// Path is the path of the page.
func (p *Page) Path() string { return "/" + p.token + "/" }

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Cache-Control":                "no-store",
		"Content-Security-Policy":      policy,
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Referrer-Policy":              "no-referrer", // the token is in the address
		"X-Content-Type-Options":       "nosniff",
	} {
		w.Header().Set(name, value)
	}
	token, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case !isLoopback(r.Host):
		http.Error(w, "this page is read as 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
	case subtle.ConstantTimeCompare([]byte(token), []byte(p.token)) != 1:
		http.Error(w, "culvert page has printed another address", http.StatusNotFound)
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "this page is only read", http.StatusMethodNotAllowed)
	default:
		p.serve(w, r, rest)
	}
}

// isLoopback reports whether a request was meant for this machine. The port may be a tunnel's, such
// as one made by ssh -L.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

func (p *Page) serve(w http.ResponseWriter, r *http.Request, path string) {
	switch number, isStatus := strings.CutPrefix(path, "status/"); {
	case path == "":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Write(text)
	case path == "gateways":
		names := make([]string, len(p.gateways))
		for i, g := range p.gateways {
			names[i] = strings.TrimSuffix(filepath.Base(g.client.Path), ".sock")
		}
		answer(w, http.StatusOK, encode(names))
	case isStatus:
		i, err := strconv.Atoi(number)
		if err != nil || i < 0 || i >= len(p.gateways) {
			http.NotFound(w, r)
			return
		}
		code, body := p.gateways[i].status(time.Now())
		answer(w, code, body)
	default:
		http.NotFound(w, r)
	}
}

func answer(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	w.Write(body)
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types never fail
	}
	return b
}

const (
	// freshTime is how long a status is reused, so many windows cost a gateway no more than one.
	freshTime = 500 * time.Millisecond
	// askTime is how long a gateway may take to answer.
	askTime = 3 * time.Second
)

// A gateway gets one request at a time.
type gateway struct {
	client *control.Client

	mu   sync.Mutex
	at   time.Time // +checklocks:mu
	code int       // +checklocks:mu
	body []byte    // +checklocks:mu
}

// status returns the gateway's status, or why there is none.
func (g *gateway) status(now time.Time) (code int, body []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.at) < freshTime {
		return g.code, g.body
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	if s, err := g.client.Status(ctx); err != nil {
		g.code, g.body = http.StatusBadGateway, encode(control.Error{Message: err.Error()})
	} else {
		g.code, g.body = http.StatusOK, encode(s)
	}
	g.at = now
	return g.code, g.body
}
