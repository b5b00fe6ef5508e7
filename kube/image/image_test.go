package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"culvert/integration/need"
)

var (
	amd64 = &Binary{Name: "a", Arch: "amd64", Version: "v0.1.0", Revision: "1234", Created: time.Unix(1e9, 0),
		bytes: []byte("first")}
	arm64 = &Binary{Name: "b", Arch: "arm64", Version: "v0.1.0", Revision: "1234", Created: time.Unix(1e9, 0),
		bytes: []byte("second")}
)

func newImage(t *testing.T) *Image {
	t.Helper()
	im, err := New(amd64, arm64)
	need.NoError(t, err)
	return im
}

// serve starts a registry on loopback and returns HOST:PORT.
func serve(t *testing.T, h http.Handler) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func silent() http.Handler {
	return registry.New(registry.Logger(log.New(io.Discard, "", 0)))
}

// TestPush: what a registry then has starts the binary of each architecture as the Dockerfile's
// image does.
func TestPush(t *testing.T) {
	im := newImage(t)
	host := serve(t, silent())
	sent := int64(0)
	ref, err := im.Push(t.Context(), host+"/net/culvert", amd64.Tag(), PushOptions{Progress: func(done, _ int64) {
		sent = done
	}})
	need.NoError(t, err)
	digest, err := im.Digest()
	need.NoError(t, err)
	if want := host + "/net/culvert:v0.1.0@" + digest; ref != want || sent == 0 {
		t.Errorf("%s after %d bytes, want %s", ref, sent, want)
	}
	for _, b := range []*Binary{amd64, arm64} {
		r, err := name.ParseReference(ref)
		need.NoError(t, err)
		one, err := remote.Image(r, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: b.Arch}))
		need.NoError(t, err)
		f, err := one.ConfigFile()
		need.NoError(t, err)
		c := f.Config
		if f.Architecture != b.Arch || c.User != "65532:65532" || !slices.Equal(c.Entrypoint,
			[]string{"/usr/bin/culvert"}) ||
			!slices.Equal(
				c.Env,
				[]string{"PATH=/usr/bin"},
			) || c.Labels["org.opencontainers.image.revision"] != "1234" {
			t.Errorf("%s: %s %+v", b.Arch, f.Architecture, c)
		}
		layers, err := one.Layers()
		need.NoError(t, err)
		if len(layers) != 1 {
			t.Fatalf("%d layers", len(layers))
		}
		r2, err := layers[0].Uncompressed()
		need.NoError(t, err)
		text, err := io.ReadAll(r2)
		need.NoError(t, err)
		if !bytes.HasSuffix(text, make([]byte, 1024)) {
			t.Errorf("%s: the layer has no end", b.Arch)
		}
		if got := entries(t, text)["usr/bin/culvert"]; got != string(b.bytes) {
			t.Errorf("%s: the file has %q, want %q", b.Arch, got, b.bytes)
		}
	}
	if named, err := im.Name(host+"/net/culvert", amd64.Tag()); err != nil || named != ref {
		t.Errorf("the name is %s (%v) before a push, and %s after it", named, err, ref)
	}
	again, err := im.Push(t.Context(), host+"/net/culvert:other", "", PushOptions{})
	if want := host + "/net/culvert:other@" + digest; err != nil || again != want {
		t.Errorf("%s, %v, want %s", again, err, want)
	}
}

// entries returns the files of a tar file, and "folder" for each folder.
func entries(t *testing.T, text []byte) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		need.NoError(t, err)
		content, err := io.ReadAll(r)
		need.NoError(t, err)
		if all[h.Name] = string(content); h.Typeflag == tar.TypeDir {
			all[h.Name] = "folder"
		}
		if want := fs(h.Name); h.Mode != want || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s: mode %o of %d:%d, want %o of root", h.Name, h.Mode, h.Uid, h.Gid, want)
		}
	}
}

func fs(name string) int64 {
	if strings.HasPrefix(name, "usr/") {
		return 0o755
	}
	return 0o644
}

// TestReproducible: the digest follows from the binary alone.
func TestReproducible(t *testing.T) {
	digests := make(map[string]bool)
	for range 2 {
		d, err := newImage(t).Digest()
		need.NoError(t, err)
		digests[d] = true
	}
	if len(digests) != 1 {
		t.Errorf("digests %v", digests)
	}
}

// TestPushRefused: each cause has its sentence, and no tag is left behind.
func TestPushRefused(t *testing.T) {
	html := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<html>\n<body>"+strings.Repeat("welcome ", 1000)+"</body></html>")
	})
	cut := silent()
	for _, tt := range []struct {
		name     string
		registry http.Handler
		ref      string // %s is the registry
		want     string
	}{
		{"no credentials", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}), "%s/a:b", "log in with docker login "},
		{"no rights", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				w.WriteHeader(http.StatusForbidden)
			}
		}), "%s/a:b", "check that you may push to it"},
		{"a page", html, "%s/a:b", "is a registry"},
		{"to elsewhere without TLS", http.RedirectHandler("http://192.0.2.1/", http.StatusTemporaryRedirect), "%s/a:b",
			"--plain-http allows it"},
		{"to elsewhere", http.RedirectHandler("http://192.0.2.1/", http.StatusTemporaryRedirect), "%s/a",
			"refusing http://192.0.2.1"},
		{"in the middle", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPatch || r.Method == http.MethodPut {
				panic(http.ErrAbortHandler)
			}
			cut.ServeHTTP(w, r)
		}), "%s/a:b", "EOF"},
		{"in circles", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}), "%s/a:b", "stopped after 10 redirects; check that"},
		{"no room", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				w.WriteHeader(http.StatusInsufficientStorage)
				io.WriteString(w, `{"errors": [{"code": "UNKNOWN", "message": "no space left on device"}]}`)
				return
			}
			cut.ServeHTTP(w, r)
		}), "%s/a:b", "no space left on device; the fault is in the registry: its log says more"},
		{"a token from elsewhere", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://192.0.2.1/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}), "%s/a:b", "refusing http://192.0.2.1"},
		{"a page for a token", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				html(w, r)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}), "%s/a:b", "invalid character '<'"},
		{"no registry", nil, "culvert:1", `"culvert:1" names no registry; want HOST`},
		{"none there", nil, "docker/culvert:1", `"docker/culvert:1" names no registry; want HOST`},
		{"a URL", nil, "https://x.example/a", "is a URL"},
		{"a digest", nil, "x.example/a@sha256:" + strings.Repeat("0", 64), "has a digest"},
		{"capitals", nil, "x.example/Culvert", "want HOST"},
		{"nothing listens", nil, "127.0.0.1:1/a", "check the name of the registry, and the way to it"},
		{"unencrypted", nil, "192.0.2.1:0/a", "192.0.2.1:0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ref := tt.ref
			if tt.registry != nil {
				ref = fmt.Sprintf(tt.ref, serve(t, tt.registry))
			}
			_, err := newImage(t).Push(t.Context(), ref, "v1", PushOptions{})
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 500 {
				t.Errorf("%v, want %q in at most 500 bytes", err, tt.want)
			}
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestGuard: a registry without TLS is refused, and where TLS has failed for another cause, that
// cause is named.
func TestGuard(t *testing.T) {
	tag, err := parse("192.0.2.1:5000/culvert:1")
	need.NoError(t, err)
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	g := &guarded{RoundTripper: roundTrip(func(*http.Request) (*http.Response, error) { return nil, dial })}
	for _, tt := range []struct{ url, want string }{
		{"http://192.0.2.1:5000/v2/", "--plain-http allows it"},
		{"https://192.0.2.1:5000/v2/", "connection refused; check the name of the registry"},
		{"http://192.0.2.1:5000/v2/", "connection refused; check the name of the registry"},
		{"http://192.0.2.2:5000/v2/", "--plain-http allows it"},
	} {
		r, err := http.NewRequest(http.MethodGet, tt.url, nil)
		need.NoError(t, err)
		_, err = g.RoundTrip(r)
		if err := explain(tag, err, nil); !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.url, err, tt.want)
		}
	}
	plain := tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}
	if err := explain(tag, plain, nil); !strings.Contains(
		err.Error(),
		"does not speak TLS; culvert image push --plain",
	) {
		t.Errorf("a registry without TLS: %v", err)
	}
	both := fmt.Errorf("Get https://x/v2/: %w; Get http://x/v2/: stopped after 10 redirects", plain)
	if err := explain(tag, both, nil); !strings.Contains(err.Error(), "x/v2/: stopped after 10 redirects; check that") {
		t.Errorf("a registry that answers TLS with a page, and redirects in circles: %v", err)
	}
	if got := g.refused.Load(); got.host != "192.0.2.2:5000" {
		t.Errorf("refused %s last", got.host)
	}
	g.RoundTripper = roundTrip(func(*http.Request) (*http.Response, error) { return new(http.Response), nil })
	for _, host := range []string{"192.0.2.1:5000", "192.0.2.2:5000"} {
		before := g.refused.Load()
		r, err := http.NewRequest(http.MethodGet, "https://"+host+"/v2/", nil)
		need.NoError(t, err)
		_, err = g.RoundTrip(r)
		need.NoError(t, err)
		if got := g.refused.Load(); before == nil || got != nil && got.host == host {
			t.Errorf("after an answer of %s by TLS: refused %v, before it %v", host, got, before)
		}
	}
}

// pipes are connections in a bubble.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestPushSlow: a slow registry gets the image, and one that takes nothing any more is given up, in
// a time that a user waits.
func TestPushSlow(t *testing.T) {
	big := *amd64
	big.bytes = make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(big.bytes)
	im, err := New(&big)
	need.NoError(t, err)
	for _, tt := range []struct {
		name string
		// registry passes requests on, or waits until the test ends.
		registry    func(next http.Handler, ends <-chan struct{}) http.HandlerFunc
		least, most time.Duration
		want        string // of the error
	}{
		{"slow", func(next http.Handler, _ <-chan struct{}) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				// Before the registry takes its lock, for which no bubble's clock waits.
				text, err := io.ReadAll(&slowly{r.Body, 4 * time.Second})
				need.NoError(t, err)
				r.Body = io.NopCloser(bytes.NewReader(text))
				next.ServeHTTP(w, r)
			}
		}, 2 * stallPatience, time.Hour, ""},
		{"stops in the middle", func(next http.Handler, ends <-chan struct{}) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				text, err := io.ReadAll(io.LimitReader(r.Body, 1<<19))
				need.NoError(t, err)
				if len(text) == 1<<19 {
					<-ends
				}
				r.Body = io.NopCloser(bytes.NewReader(text))
				next.ServeHTTP(w, r)
			}
		}, stallPatience, 2 * stallPatience, "has taken nothing for 2m0s; try again"},
		{"does not answer in the end", func(next http.Handler, ends <-chan struct{}) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPatch {
					io.Copy(io.Discard, r.Body)
					<-ends
				}
				next.ServeHTTP(w, r)
			}
		}, answerPatience, 2 * stallPatience, "the registry is too slow; try again, or another registry"},
		{"never answers", func(_ http.Handler, ends <-chan struct{}) http.HandlerFunc {
			return func(http.ResponseWriter, *http.Request) { <-ends }
		}, answerPatience, 2 * stallPatience, "the registry is too slow; try again, or another registry"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			need.Bubble(t, func(t *testing.T) {
				network, real := make(pipes), remote.DefaultTransport
				remote.DefaultTransport = &http.Transport{
					DialContext: func(context.Context, string, string) (net.Conn, error) {
						here, there := net.Pipe()
						network <- there
						return here, nil
					},
				}
				defer func() { remote.DefaultTransport = real }()
				ends := make(chan struct{})
				server := &http.Server{Handler: tt.registry(silent(), ends)}
				go server.Serve(network)
				began := time.Now()
				_, err := im.Push(t.Context(), "localhost:5000/a:b", "", PushOptions{})
				took := time.Since(began)
				close(ends)
				server.Close()
				if tt.want == "" && err != nil ||
					tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%v, want %q", err, tt.want)
				}
				if took < tt.least || took > tt.most {
					t.Errorf("it took %v, want %v to %v", took, tt.least, tt.most)
				}
			})
		})
	}
}

// slowly waits before each piece of at most 16 KiB.
type slowly struct {
	io.Reader
	time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	time.Sleep(s.Duration) // the registry takes its time
	return s.Reader.Read(p[:min(len(p), 16<<10)])
}

// TestPushCredentials: a file of credentials that cannot be used is what the error names.
func TestPushCredentials(t *testing.T) {
	for text, want := range map[string]string{
		"{": "unexpected EOF; mend", `{"credsStore": "nobody-has-it"}`: "docker-credential-nobody-has-it",
	} {
		t.Setenv("DOCKER_CONFIG", t.TempDir())
		t.Setenv("HOME", t.TempDir())
		need.NoError(t, os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(text), 0o600))
		_, err := newImage(t).Push(t.Context(), serve(t, silent())+"/a:b", "", PushOptions{})
		if err == nil || !strings.Contains(err.Error(), "credentials: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestSave: the archive is an OCI layout, and docker's manifest leads to blobs that are there.
func TestSave(t *testing.T) {
	var text, again bytes.Buffer
	need.NoError(t, newImage(t).Save(&text, "localhost/culvert:v0.1.0"))
	need.NoError(t, newImage(t).Save(&again, "localhost/culvert:v0.1.0"))
	if !bytes.Equal(text.Bytes(), again.Bytes()) {
		t.Error("two archives differ")
	}
	files := entries(t, text.Bytes())
	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	need.NoError(t, json.Unmarshal([]byte(files["manifest.json"]), &docker))
	if d := docker[0]; d.RepoTags[0] != "localhost/culvert:v0.1.0" || files[d.Config] == "" || len(d.Layers) != 1 ||
		files[d.Layers[0]] == "" {
		t.Errorf("%+v of %d files", d, len(files))
	}
	var layout, index v1.IndexManifest
	need.NoError(t, json.Unmarshal([]byte(files["index.json"]), &layout))
	need.NoError(t, json.Unmarshal([]byte(files[blobPath(layout.Manifests[0].Digest)]), &index))
	if len(index.Manifests) != 2 || layout.Manifests[0].Annotations["io.containerd.image.name"] !=
		"localhost/culvert:v0.1.0" {
		t.Errorf("%+v, %+v", layout, index)
	}
	for _, d := range index.Manifests {
		if files[blobPath(d.Digest)] == "" {
			t.Errorf("%v is not there", d.Digest)
		}
	}
	if err := newImage(t).Save(io.Discard, "Culvert:1:2"); err == nil {
		t.Error("a bad name is accepted")
	}
}

// TestRead: what is no culvert for linux is refused, and named.
func TestRead(t *testing.T) {
	self, err := os.Executable()
	need.NoError(t, err)
	text := filepath.Join(t.TempDir(), "text")
	need.NoError(t, os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755))
	for file, want := range map[string]string{
		self: "is no culvert", text: "is no culvert", text + "x": "no such file", filepath.Dir(text): "is a directory",
	} {
		if _, err := Read(file); err == nil || !strings.HasPrefix(err.Error(), file+": ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}

// TestNewRefuses: two binaries of one architecture, or of two builds.
func TestNewRefuses(t *testing.T) {
	other := *arm64
	other.Revision = "5678"
	for want, all := range map[string][]*Binary{
		"a and a are both for amd64; give one for each architecture":                        {amd64, amd64},
		"a is v0.1.0 of commit 1234, and b is v0.1.0 of commit 5678; give two of one build": {amd64, &other},
	} {
		if _, err := New(all...); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if got := (&Binary{Version: "v0.1.0+dirty"}).Tag(); got != "v0.1.0-dirty" {
		t.Errorf("tag %s", got)
	}
	if got := (&Binary{Version: "(devel)"}).Tag(); got != "devel" {
		t.Errorf("tag %s", got)
	}
}
