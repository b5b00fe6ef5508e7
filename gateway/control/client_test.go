package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"culvert/integration/need"
)

// TestTooManyConnections: the client recognises a gateway that closes a connection at once, even
// before it has sent the request.
func TestTooManyConnections(t *testing.T) {
	c := NewClient(filepath.Join(t.TempDir(), "socket"))
	l, err := net.Listen("unix", c.Path)
	need.NoError(t, err)
	defer l.Close()
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		near, err := new(net.Dialer).DialContext(ctx, "unix", c.Path)
		if err != nil {
			return nil, err
		}
		far, err := l.Accept()
		if err != nil {
			return nil, err
		}
		return near, far.Close()
	}}
	for range 100 {
		if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(),
			"it has too many connections, or is stopping") {
			t.Fatal(err)
		}
	}
}

// serveAt serves a handler at a socket until the test ends.
func serveAt(t *testing.T, path string, serve func(net.Listener)) *Client {
	t.Helper()
	need.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	l, err := net.Listen("unix", path)
	need.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go serve(l)
	return NewClient(path)
}

// TestClientExplains: whoever does not answer as a gateway does gets an error with a remedy, or one
// that says what is wrong.
func TestClientExplains(t *testing.T) {
	socket := func() string { return filepath.Join(t.TempDir(), "socket") }
	answers := func(status int, text string) *Client {
		return serveAt(t, socket(), func(l net.Listener) {
			http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				io.WriteString(w, text)
			}))
		})
	}
	dead := socket()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	need.NoError(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	gateway := NewServer(nil, nil)
	t.Cleanup(gateway.Close)
	for _, r := range []struct {
		client     *Client
		path, want string
	}{
		{NewClient(socket()), "/v1/status",
			"no gateway answers there; is it running, and is control in its configuration this socket?"},
		{NewClient(dead), "/v1/status", "no gateway answers there; is it running"},
		{serveAt(t, socket(), gateway.Serve), "/v2/status",
			"no GET /v2/status here: is the command of another version than the gateway?"},
		{answers(http.StatusOK, "220 mail"), "/v1/status", "the answer is not that of a gateway"},
		{answers(http.StatusOK, `{"cluster": 7}`), "/v1/status",
			"is this the socket of another program, or of another version?"},
		{answers(http.StatusOK, `{"cluster": "rome"`), "/v1/status", "the answer is cut off"},
		{answers(http.StatusBadGateway, "<html>"), "/v1/status", "502 Bad Gateway"},
		{answers(http.StatusBadRequest, `{"error": "port: no"}`), "/v1/status", "port: no"},
	} {
		for what, err := range map[string]error{
			"a value": r.client.Get(t.Context(), http.MethodGet, r.path, nil, new(Status)),
			"a list":  Each(t.Context(), r.client, r.path, nil, func(*Status) bool { return true }),
		} {
			if err == nil || !strings.Contains(err.Error(), r.want) {
				t.Errorf("%s: %v, want %q", what, err, r.want)
			}
		}
	}
	owner := fmt.Sprintf("user %d, who runs that gateway", os.Getuid())
	if os.Getuid() == 0 {
		owner = "root, who runs that gateway (sudo)"
	}
	for file, want := range map[string]string{os.Args[0]: owner, "/nowhere": "its owner"} {
		if err := NewClient(file).explain(os.NewSyscallError("connect", syscall.EACCES)); err.Error() != file+
			": permission denied; run this as "+want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestEach: a list ends where it is cut off, with an error, or where the caller has enough.
func TestEach(t *testing.T) {
	c := serveAt(t, filepath.Join(t.TempDir(), "socket"), func(l net.Listener) {
		http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"table": "a"}{"table": "b"}{"tab`)
		}))
	})
	for enough, want := range map[int]string{1: "", 2: "", 3: "the answer is cut off"} {
		var tables string
		err := Each(t.Context(), c, "/", nil, func(r *Rule) bool {
			tables += r.Table
			return len(tables) < enough
		})
		if tables != "ab"[:min(enough, 2)] || (want == "") != (err == nil) || err != nil &&
			!strings.Contains(err.Error(), want) {
			t.Errorf("of %d: %q, %v, want %q", enough, tables, err, want)
		}
	}
}

// TestFind: a gateway is found by its socket, the name of that, or its cluster; with several, all
// are named. A process that died is none. A node is found by its own name.
func TestFind(t *testing.T) {
	dir, node := t.TempDir(), "test-node-"+strconv.Itoa(os.Getpid())
	t.Setenv("XDG_RUNTIME_DIR", dir)
	cluster := "test-rome-" + strconv.Itoa(os.Getpid()) // no other gateway of this machine has it
	serve := func(path string) net.Listener {
		var at net.Listener
		up := make(chan bool)
		serveAt(t, path, func(l net.Listener) { at = l; close(up) })
		<-up
		return at
	}
	milan, turin, n := DefaultPath(cluster, "milan"), DefaultPath(cluster, "turin"), NodePath(node)
	serve(milan)
	second := serve(turin)
	serve(n)
	find := func(find func(context.Context, string) (*Client, error), name, want string) {
		t.Helper()
		c, err := find(t.Context(), name)
		if got := fmt.Sprint(err); err == nil && c.Path != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%s: %v, %v, want %s", name, c, err, want)
		}
	}
	find(Find, milan, milan)
	find(Find, cluster+"-turin", turin)
	find(Find, cluster, "--socket: 2 gateways run here; choose one: "+milan+", "+turin)
	find(Find, "no-"+cluster, `--socket: no gateway "no-`+cluster+`" runs here`)
	find(Find, filepath.Join(dir, "x"), "is it running, and is control in its configuration this socket?")
	find(FindNode, node, n)
	find(FindNode, n, n)
	find(FindNode, node+"x", "no node of this user serves Services or has links here")
	if all := Sockets(); !slices.Contains(all, cluster+"-milan") || slices.Contains(all, node) {
		t.Errorf("for completion: %q", all)
	}
	if pid, err := NewClient(milan).Process(t.Context()); pid != os.Getpid() || err != nil {
		t.Errorf("process %d serves: %v", pid, err)
	}
	second.(*net.UnixListener).SetUnlinkOnClose(false)
	second.Close()
	find(Find, cluster, milan)
	find(Find, cluster+"-turin", "no gateway \""+cluster+"-turin\" runs here")
	os.Remove(milan)
	if _, err := NewClient(milan).Process(t.Context()); !errors.Is(err, ErrNoGateway) {
		t.Errorf("without a socket: %v", err)
	}
}

// TestNodeServer: a node tells its status, and that it is no gateway.
func TestNodeServer(t *testing.T) {
	want := NodeStatus{Name: "n1", Mode: "tun", Addresses: []netip.Addr{netip.MustParseAddr("172.18.0.2")},
		Services: []NodeService{{Name: "web", Port: 80, Endpoints: 2}}}
	s := NewNodeServer(func() NodeStatus { return want }, nil)
	t.Cleanup(s.Close)
	c := serveAt(t, filepath.Join(t.TempDir(), "socket"), s.Serve)
	if got, err := c.Node(t.Context()); err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := c.Doctor(t.Context()); err == nil ||
		err.Error() != "this is a node, which knows culvert status alone" {
		t.Errorf("as of a gateway: %v", err)
	}
}

// TestLacks: what a follower did not take is counted, with a remedy if there is one.
func TestLacks(t *testing.T) {
	s := Stream{NotTaken: map[string]uint64{"no-room": 3, "something": 1}}
	want := []string{"1 not taken, something", "3 not taken, no-room: the standby's table is full: give it more memory"}
	if got := s.Lacks(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
