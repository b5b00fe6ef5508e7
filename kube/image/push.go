package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"culvert/kube"
)

const (
	answerPatience = time.Minute     // after a request has been sent
	stallPatience  = 2 * time.Minute // without a byte that is sent
)

var errStalled = fmt.Errorf("the registry has taken nothing for %v; try again, or another registry", stallPatience)

// PushOptions are optional.
type PushOptions struct {
	PlainHTTP bool                    // the registry may be asked without TLS
	Progress  func(done, total int64) // bytes; called while they are sent
}

// Name returns what Push returns, and pushes nothing.
func (im *Image) Name(ref, fallback string) (string, error) {
	tag, err := parse(ref, name.WithDefaultTag(fallback))
	if err != nil {
		return "", err
	}
	digest, err := im.Digest()
	return tag.Name() + "@" + digest, err
}

// Push sends the image to a registry under REF, HOST[:PORT]/REPOSITORY[:TAG], and returns REF with
// its tag and digest. Without a tag, it takes fallback. Credentials are those of docker and podman:
// config.json, its helpers, and REGISTRY_AUTH_FILE. The tag is written last: when Push fails, the
// registry has no image under it that is not whole.
func (im *Image) Push(ctx context.Context, ref, fallback string, o PushOptions) (string, error) {
	options := []name.Option{name.WithDefaultTag(fallback)}
	if o.PlainHTTP {
		options = append(options, name.Insecure)
	}
	tag, err := parse(ref, options...)
	if err != nil {
		return "", err
	}
	digest, err := im.index.Digest()
	if err != nil {
		return "", err
	}
	// Not in WriteIndex, whose errors do not tell a registry that refuses from a broken file.
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, tag.Context())
	if err != nil {
		return "", fmt.Errorf("%s: credentials: %s; mend the config.json of docker or the auth.json of podman",
			tag, oneLine(err.Error()))
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	updates := make(chan v1.Update, 16)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		stall := time.AfterFunc(stallPatience, func() { stop(errStalled) })
		defer stall.Stop()
		for u := range updates {
			stall.Reset(stallPatience)
			if o.Progress != nil && u.Error == nil {
				o.Progress(u.Complete, u.Total)
			}
		}
	}()
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = answerPatience
	guard := &guarded{RoundTripper: t, plain: o.PlainHTTP}
	all := []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(auth), remote.WithUserAgent("culvert"),
		remote.WithTransport(guard),
	}
	err = remote.WriteIndex(tag, im.index, append(all, remote.WithProgress(updates))...) // closes updates
	<-watched
	cause := context.Cause(ctx)
	var answered *transport.Error
	if refused := guard.refused.Load(); err != nil && refused != nil && !errors.As(err, &answered) {
		err = refused // which the errors of other attempts hide
	}
	if err != nil {
		return "", explain(tag, err, cause)
	}
	// What answers every request with a page of its own is no registry.
	if has, err := remote.Head(tag, all...); err != nil {
		return "", explain(tag, err, cause)
	} else if has.Digest != digest {
		return "", fmt.Errorf(
			"%s: the registry has %s after %s was pushed; somebody else pushes to it, or it is no registry",
			tag, has.Digest, digest)
	}
	return fmt.Sprintf("%s@%s", tag.Name(), digest), nil
}

// parse reads a reference that names a registry and has no digest.
func parse(ref string, options ...name.Option) (name.Tag, error) {
	const want = "want HOST[:PORT]/REPOSITORY[:TAG], such as registry.example/net/culvert:0.1.0"
	host, _, ok := strings.Cut(ref, "/")
	switch {
	case strings.Contains(ref, "@"):
		return name.Tag{}, fmt.Errorf("%q has a digest, which follows from the image; %s", ref, want)
	case strings.Contains(ref, "://"):
		return name.Tag{}, fmt.Errorf("%q is a URL; %s", ref, want)
	case !ok || !strings.ContainsAny(host, ".:") && host != "localhost":
		return name.Tag{}, fmt.Errorf("%q names no registry; %s", ref, want)
	}
	tag, err := name.NewTag(ref, options...)
	if err != nil {
		return name.Tag{}, fmt.Errorf("%q: %s; %s", ref, oneLine(err.Error()), want)
	}
	return tag, nil
}

// guarded refuses requests without TLS to other machines, which would show them credentials.
type guarded struct {
	http.RoundTripper
	plain           bool
	failed, refused atomic.Pointer[failure] // the last of each
}

// failure is of a request to a host, which may be one without TLS after another one with it.
type failure struct {
	host string
	error
}

func (f *failure) Unwrap() error { return f.error }

var errPlain = errors.New("credentials and image would cross the network without TLS; " +
	"culvert image push --plain-http allows it")

func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "https" || g.plain || loopback(r.URL.Hostname()) {
		resp, err := g.RoundTripper.RoundTrip(r)
		if err != nil {
			g.failed.Store(&failure{r.URL.Host, err})
		} else if f := g.refused.Load(); f != nil && f.host == r.URL.Host {
			g.refused.CompareAndSwap(f, nil) // it was tried because TLS had not answered yet
		}
		return resp, err
	}
	f := g.failed.Load()
	if f == nil || f.host != r.URL.Host { // otherwise that is why this is tried without TLS
		f = &failure{r.URL.Host, fmt.Errorf("refusing %s://%s: %w", r.URL.Scheme, r.URL.Host, errPlain)}
	}
	g.refused.Store(f)
	return nil, f
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// explain says what to do about a failed push.
func explain(tag name.Tag, err, cause error) error {
	host := tag.RegistryStr()
	var refused *transport.Error
	var op *net.OpError
	var dns *net.DNSError
	said, noTLS := err.Error(), false
	for _, text := range []string{"server gave HTTP response to HTTPS client",
		"first record does not look like a TLS handshake"} {
		if _, without, ok := strings.Cut(said, text+"; "); ok {
			said = without // what came of the attempt without TLS
		}
		noTLS = noTLS || strings.Contains(said, text)
	}
	what := oneLine(said)
	switch {
	case cause != nil:
		return fmt.Errorf("%s: %w", tag, cause)
	case errors.Is(err, errPlain):
		return fmt.Errorf("%s: %w", tag, err)
	case errors.As(err, &refused) && (refused.StatusCode == http.StatusUnauthorized ||
		refused.StatusCode == http.StatusForbidden):
		return fmt.Errorf(
			"%s: %s; log in with docker login %s or podman login %[3]s, and check that you may push to it",
			tag, what, host)
	case refused != nil && refused.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("%s: %s; the fault is in the registry: its log says more", tag, what)
	case noTLS:
		return fmt.Errorf("%s: the registry does not speak TLS; culvert image push --plain-http allows that", tag)
	case strings.Contains(what, "x509: "):
		return fmt.Errorf("%s: %s; add the registry's CA to this machine's, or name it in SSL_CERT_FILE", tag, what)
	case strings.Contains(what, "timeout awaiting response headers"), strings.Contains(what, "TLS handshake timeout"):
		return fmt.Errorf("%s: %s; the registry is too slow; try again, or another registry", tag, what)
	case errors.As(err, &dns), errors.As(err, &op):
		return fmt.Errorf("%s: %s; check the name of the registry, and the way to it", tag, what)
	}
	return fmt.Errorf("%s: %s; check that %s is a registry that you may push to", tag, what, host)
}

// oneLine makes what a registry has answered fit a line of a terminal or two.
func oneLine(text string) string {
	return kube.Cut(strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " "), 240)
}
