package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A Client talks to the gateway at one socket.
type Client struct {
	Path string
	http http.Client
}

// NewClient returns a Client for the socket at path.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{path, http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true,
		DisableCompression: true}}}
}

// ErrNoGateway means that no gateway answers at a socket.
var ErrNoGateway = errors.New("no gateway answers there")

// Find returns a Client for the gateway called name: the path of a socket, its file name without
// .sock, or the cluster's name; "" means the only running one.
func Find(ctx context.Context, name string) (*Client, error) {
	running, err := Running(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(running) > 1 {
		var names []string
		for _, c := range running {
			names = append(names, c.Path)
		}
		return nil, fmt.Errorf("--socket: %d gateways run here; choose one: %s", len(running),
			strings.Join(names, ", "))
	}
	return running[0], nil
}

// Running returns a Client for each gateway called name, at least one; "" means all running ones.
func Running(ctx context.Context, name string) ([]*Client, error) {
	if strings.Contains(name, "/") {
		c := NewClient(name)
		return []*Client{c}, c.alive(ctx)
	}
	var running []*Client
	var closed error
	for _, path := range Paths() {
		base := strings.TrimSuffix(filepath.Base(path), ".sock")
		if name != "" && name != base && !strings.HasPrefix(base, name+"-") {
			continue
		}
		c := NewClient(path)
		switch err := c.alive(ctx); {
		case err == nil:
			running = append(running, c)
		case !errors.Is(err, ErrNoGateway):
			closed = err
		}
	}
	if len(running) > 0 {
		return running, nil
	}
	if closed != nil {
		return nil, closed
	}
	if _, err := os.ReadDir("/run/culvert"); errors.Is(err, fs.ErrPermission) {
		return nil,
			errors.New("/run/culvert cannot be read: gateways of root have their sockets there; run this as root (sudo), or name a socket by --socket")
	}
	if name != "" {
		return nil, fmt.Errorf(
			"--socket: no gateway %q runs here; give the path of its socket (control in its configuration)", name)
	}
	return nil, errors.New(
		"no gateway of this user runs here; start one, or name its socket by --socket (control in its configuration)")
}

// alive reports whether somebody listens.
func (c *Client) alive(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Path)
	if err != nil {
		return c.explain(err)
	}
	return conn.Close()
}

// Process returns the ID of the process that serves the socket, as this process sees it. Status has
// another one if the gateway is in a PID namespace of its own, such as in a container. 0: the
// process has no ID here (pid_namespaces(7)).
func (c *Client) Process(ctx context.Context) (pid int, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Path)
	if err != nil {
		return 0, c.explain(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *syscall.Ucred
	closed := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(closed, err); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

// explain adds a remedy to a connection error.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		owner := "its owner"
		if info, e := os.Stat(c.Path); e == nil {
			owner = fmt.Sprintf("user %d, who runs that gateway", info.Sys().(*syscall.Stat_t).Uid)
			if strings.HasSuffix(owner, " 0, who runs that gateway") {
				owner = "root, who runs that gateway (sudo)"
			}
		}
		return fmt.Errorf("%s: permission denied; run this as %s", c.Path, owner)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: %w; is it running, and is control in its configuration this socket?", c.Path,
			ErrNoGateway)
	}
	return fmt.Errorf("%s: %w", c.Path, err)
}

// Open sends a request and returns the answer, which must be closed. body may be nil. An Error of
// the gateway is returned as an error.
func (c *Client) Open(ctx context.Context, method, path string, query url.Values,
	body io.Reader) (*http.Response, error) {
	target := "http://gateway" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		if inner := new(url.Error); errors.As(err, &inner) {
			err = inner.Err
		}
		// A gateway without room closes the connection, which may cause various errors.
		if dial := new(net.OpError); ctx.Err() == nil && !(errors.As(err, &dial) && dial.Op == "dial") {
			err = fmt.Errorf("the gateway gave no answer (%w): it has too many connections, or is stopping", err)
		}
		return nil, c.explain(err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	var e Error
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if json.Unmarshal(text, &e) != nil || e.Message == "" {
		e.Message = response.Status
	}
	return nil, &e
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Get requests one value.
func (c *Client) Get(ctx context.Context, method, path string, query url.Values, v any) error {
	response, err := c.Open(ctx, method, path, query, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(v); err != nil {
		return c.unread(err)
	}
	return nil
}

// ErrCutOff means that a gateway disappeared while it answered.
var ErrCutOff = errors.New("the answer is cut off")

var errForeign = errors.New(
	"the answer is not that of a gateway: is this the socket of another program, or of another version?")

// unread explains why an answer cannot be read.
func (c *Client) unread(err error) error {
	why := ErrCutOff
	switch err.(type) {
	case *json.SyntaxError, *json.UnmarshalTypeError:
		why = errForeign
	}
	return fmt.Errorf("%s: %w: %w", c.Path, why, err)
}

// Each requests a list and calls yield for each line of it, until yield returns false.
func Each[T any](ctx context.Context, c *Client, path string, query url.Values, yield func(*T) bool) error {
	response, err := c.Open(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for d := json.NewDecoder(response.Body); ; {
		v := new(T)
		switch err := d.Decode(v); {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case err != nil:
			return c.unread(err)
		}
		if !yield(v) {
			return nil
		}
	}
}

// Status requests the gateway's status.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	s := new(Status)
	return s, c.Get(ctx, http.MethodGet, "/v1/status", nil, s)
}

// Sockets returns the base names of the sockets in Paths, for completion in shells.
func Sockets() (names []string) {
	for _, path := range Paths() {
		names = append(names, strings.TrimSuffix(filepath.Base(path), ".sock"))
	}
	return slices.Compact(names)
}
