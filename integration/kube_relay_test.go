package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"culvert/integration/need"
)

// A kubeRelay relays connections between gateways and the API server, so that a test can cut or
// hold them. It copies bytes without understanding them.
type kubeRelay struct {
	listener net.Listener
	moves    *sync.Cond // of mu: no longer held

	mu     sync.Mutex
	closed bool                  // +checklocks:mu
	held   bool                  // +checklocks:mu
	conns  map[*net.TCPConn]bool // +checklocks:mu
}

const kubeRelayPort = kubeAPIPort + 1

// startKubeRelay relays to the API server at an address of the host until the test ends.
func startKubeRelay(h *peerHost, address string) *kubeRelay {
	h.t.Helper()
	l, err := h.listen("tcp4", net.JoinHostPort(address, strconv.Itoa(kubeRelayPort)))
	need.NoError(h.t, err)
	r := &kubeRelay{listener: l, conns: make(map[*net.TCPConn]bool)}
	r.moves = sync.NewCond(&r.mu)
	h.t.Cleanup(func() {
		l.Close()
		r.cut(true)
	})
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && r.add(conn) {
				go r.carry(h, conn, net.JoinHostPort(address, strconv.Itoa(kubeAPIPort)))
			}
		}
	}()
	return r
}

// carry connects a client's connection with one to the API server.
func (r *kubeRelay) carry(h *peerHost, client net.Conn, to string) {
	defer r.drop(client)
	server, err := h.dial("tcp4", to)
	if err != nil || !r.add(server) {
		return
	}
	defer r.drop(server)
	go func() {
		defer r.drop(client)
		io.Copy(client, heldReader{server, r})
	}()
	io.Copy(server, client)
}

// A heldReader reads from the API server, but waits while the relay is held.
type heldReader struct {
	from  io.Reader
	relay *kubeRelay
}

func (h heldReader) Read(b []byte) (int, error) {
	n, err := h.from.Read(b)
	h.relay.mu.Lock()
	defer h.relay.mu.Unlock()
	for h.relay.held {
		h.relay.moves.Wait()
	}
	return n, err
}

// hold holds back what the API server sends to gateways, or lets it pass again.
func (r *kubeRelay) hold(held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = held
	r.moves.Broadcast()
}

// add returns false if the relay is closed.
func (r *kubeRelay) add(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := conn.(*net.TCPConn)
	c.SetLinger(0) // so that Close resets the connection, as when a process is killed
	if r.closed {
		c.Close()
		return false
	}
	r.conns[c] = true
	return true
}

func (r *kubeRelay) drop(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	conn.Close()
	delete(r.conns, conn.(*net.TCPConn))
}

// cut ends all connections; if closed is true, new ones too until open.
func (r *kubeRelay) cut(closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed, r.held = closed, false
	r.moves.Broadcast()
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
}

// open accepts connections again.
func (r *kubeRelay) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = false
}

// askEtcd returns a client of the API server's etcd.
func (k *kubeAPI) askEtcd(t *testing.T) *kubeClient {
	return &kubeClient{t: t, base: "http://127.0.0.1:2379",
		http: http.Client{Transport: &http.Transport{DialContext: k.host.dialContext}}}
}

// store writes an object that the API server itself would refuse.
func (k *kubeAPI) store(t *testing.T, key string, o object) {
	t.Helper()
	text, err := json.Marshal(o)
	if err == nil {
		err = k.askEtcd(t).request(http.MethodPost, "/v3/kv/put", "application/json", object{"key": []byte(key),
			"value": text}, nil)
	}
	need.NoError(t, err)
}

// compact makes etcd forget everything but the present objects.
func (k *kubeAPI) compact(t *testing.T) {
	t.Helper()
	etcd := k.askEtcd(t)
	var found struct{ Header struct{ Revision string } }
	need.NoError(t, etcd.request(http.MethodPost, "/v3/kv/range", "application/json", object{"key": "AA=="}, &found))
	err := etcd.request(http.MethodPost, "/v3/kv/compaction", "application/json",
		object{"revision": found.Header.Revision, "physical": true}, nil)
	if err != nil {
		t.Fatalf("compact at revision %s: %v", found.Header.Revision, err)
	}
}

// requireExpired fails unless the API server refuses to watch from a version because it is too old.
func (k *kubeAPI) requireExpired(t *testing.T, kind, resourceVersion string) {
	t.Helper()
	path := kubePath(liqoVersion, kind, "", "") + "?watch=1&timeoutSeconds=1&resourceVersion=" + resourceVersion
	eventually(t, "a watch is refused", func() error {
		var event struct{ Object struct{ Code int } }
		err := k.admin.request(http.MethodGet, path, "", nil, &event)
		if refused := new(kubeError); errors.As(err, &refused) {
			event.Object.Code = refused.Code
		} else if err != nil {
			return err
		}
		if event.Object.Code != http.StatusGone { // too early, perhaps
			return fmt.Errorf("status %d, want %d", event.Object.Code, http.StatusGone)
		}
		return nil
	})
}
