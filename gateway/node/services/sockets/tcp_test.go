package sockets

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/services"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/rules"
)

var defaultPorts = rules.PortRange{First: 61000, Last: 65534}

// who connects to the Service and returns the name of the endpoint that answers.
func who(t *testing.T, from string) (string, error) {
	t.Helper()
	c, err := dial(t, "tcp", from)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return heard(c)
}

func heard(c net.Conn) (string, error) {
	var b [40]byte
	_, err := io.ReadFull(c, b[:])
	return strings.TrimSpace(string(b[:])), err
}

// Each direction carries its bytes to the last one, and ends independently.
func TestStream(t *testing.T) {
	needHosts(t)
	const size = 16 << 20
	for _, e := range endpointA {
		listening(t, e, func(c *net.TCPConn) {
			h := sha256.New()
			n, err := io.Copy(h, c)
			fmt.Fprintf(c, "%d %x %v\n", n, h.Sum(nil), err)
			io.Copy(c, io.LimitReader(rand.NewChaCha8([32]byte{9}), size))
		})
	}
	serving(t, config(unix.IPPROTO_TCP, nil, endpointA))
	for _, from := range outside {
		c, err := dial(t, "tcp", from)
		need.NoError(t, err)
		h := sha256.New()
		if _, err := io.Copy(io.MultiWriter(h, c), io.LimitReader(rand.NewChaCha8([32]byte{8}), size)); err != nil {
			t.Fatal(err)
		}
		need.NoError(t, c.(*net.TCPConn).CloseWrite())
		answer, err := io.ReadAll(c)
		need.NoError(t, err)
		line, rest, _ := bytes.Cut(answer, []byte("\n"))
		if want := fmt.Sprintf("%d %x <nil>", size, h.Sum(nil)); string(line) != want {
			t.Errorf("%s: the endpoint got %s, want %s", from, line, want)
		}
		want, err := io.ReadAll(io.LimitReader(rand.NewChaCha8([32]byte{9}), size))
		if err != nil || !bytes.Equal(rest, want) {
			t.Errorf("%s: %d bytes come back, and not those that were sent (%v)", from, len(rest), err)
		}
	}
}

// An endpoint that has finished sending continues to receive.
func TestEndpointEndsFirst(t *testing.T) {
	needHosts(t)
	const size = 4 << 20
	got := make(chan string, 1)
	listening(t, endpointA[0], func(c *net.TCPConn) {
		c.Write([]byte("all"))
		c.CloseWrite()
		h := sha256.New()
		n, err := io.Copy(h, c)
		got <- fmt.Sprintf("%d %x %v", n, h.Sum(nil), err)
	})
	serving(t, config(unix.IPPROTO_TCP, nil, endpointA))
	c, err := dial(t, "tcp", outside[0])
	need.NoError(t, err)
	if said, err := io.ReadAll(c); err != nil || string(said) != "all" {
		t.Fatalf("%q: %v", said, err)
	}
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(h, c), io.LimitReader(rand.NewChaCha8([32]byte{7}), size)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got, want := <-got, fmt.Sprintf("%d %x <nil>", size, h.Sum(nil)); got != want {
		t.Errorf("the endpoint got %s, want %s", got, want)
	}
}

// accepting returns an endpoint's connections, which nobody serves.
func accepting(t *testing.T, at string) <-chan *net.TCPConn {
	t.Helper()
	accepted, done := make(chan *net.TCPConn, 1), make(chan struct{})
	t.Cleanup(func() { close(done) })
	listening(t, at, func(c *net.TCPConn) {
		accepted <- c
		<-done
	})
	return accepted
}

// halfClosed returns both ends of a connection of which one end, the client or the endpoint, has
// finished sending.
func halfClosed(t *testing.T, port string, accepted <-chan *net.TCPConn, byClient bool) (client,
	endpoint *net.TCPConn) {
	t.Helper()
	c, err := dialPort(t, "tcp", outside[0], port)
	need.NoError(t, err)
	client, endpoint = c.(*net.TCPConn), <-accepted
	endpoint.SetDeadline(time.Now().Add(patience))
	ends, hears := client, endpoint
	if !byClient {
		ends, hears = endpoint, client
	}
	need.NoError(t, ends.CloseWrite())
	if n, err := hears.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the other end hears %d bytes, %v", n, err)
	}
	return client, endpoint
}

// If an end that has finished sending disappears, the other is reset at once, although it sends
// nothing.
func TestHalfClosedReset(t *testing.T) {
	needHosts(t)
	accepted := accepting(t, endpointA[0])
	s := serving(t, config(unix.IPPROTO_TCP, nil, endpointA))
	for _, byClient := range []bool{true, false} {
		client, endpoint := halfClosed(t, "30080", accepted, byClient)
		goes, stays := client, endpoint
		if !byClient {
			goes, stays = endpoint, client
		}
		goes.SetLinger(0)
		goes.Close()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for began := time.Now(); s.tcpLimit.count() > 0; <-tick.C {
			if time.Since(began) > patience {
				t.Fatalf("client %v: the connection stays", byClient)
			}
		}
		if _, err := stays.Write([]byte("!")); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
			t.Errorf("client %v: who stays sees %v", byClient, err)
		}
	}
}

// An idle half-closed connection ends before others do; one with traffic continues.
func TestHalfClosedIdle(t *testing.T) {
	needHosts(t)
	t.Parallel()
	const idle, port = 3 * time.Second, 30081
	accepted := accepting(t, endpointB[0])
	at := func(s *services.Service) { s.NodePort = port }
	serving(t, config(unix.IPPROTO_TCP, at, endpointB), func(i *idleTimes, _ *int) { i.tcp, i.half = 4*idle, idle })
	var both sync.WaitGroup
	defer both.Wait()
	for _, byClient := range []bool{true, false} {
		client, endpoint := halfClosed(t, fmt.Sprint(port), accepted, byClient)
		speaks, hears := endpoint, client
		if !byClient {
			speaks, hears = client, endpoint
		}
		both.Go(func() {
			began, beat := time.Now(), time.NewTicker(idle/4)
			defer beat.Stop()
			for b := make([]byte, 1); time.Since(began) < 3*idle; <-beat.C {
				if _, err := speaks.Write(b); err != nil {
					t.Errorf("client %v, after %v: %v", byClient, time.Since(began), err)
					return
				}
				if _, err := hears.Read(b); err != nil {
					t.Errorf("client %v, after %v: %v", byClient, time.Since(began), err)
					return
				}
			}
			began = time.Now()
			if _, err := hears.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("client %v: %v", byClient, err)
			}
			if took := time.Since(began); took < idle/2 || took > 3*idle {
				t.Errorf("client %v: the silent one ends after %v", byClient, took)
			}
		})
	}
}

// A reset of one end resets the other.
func TestReset(t *testing.T) {
	needHosts(t)
	listening(t, endpointA[0], func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
	})
	serving(t, config(unix.IPPROTO_TCP, nil, endpointA))
	c, err := dial(t, "tcp", outside[0])
	need.NoError(t, err)
	c.Write([]byte("!"))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("after a reset of the endpoint: %v", err)
	}
}

// A client whose endpoint refuses gets another one, as long as one answers.
func TestAnotherEndpoint(t *testing.T) {
	needHosts(t)
	naming(t, endpointB)
	s := serving(t, config(unix.IPPROTO_TCP, nil, endpointA, endpointB, endpointC))
	for range 20 {
		for family, from := range outside {
			if name, err := who(t, from); err != nil || name != endpointB[family] {
				t.Fatalf("%s: %q answers: %v", from, name, err)
			}
		}
	}
	if s.stats.failures.Load() == 0 {
		t.Error("nobody has failed in 40 tries")
	}
	need.NoError(t, s.Apply(t.Context(), config(unix.IPPROTO_TCP, nil, endpointA, endpointC)))
	if name, err := who(t, outside[0]); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("nobody could answer, and %q does: %v", name, err)
	}
	if n := s.stats.refusedOf(unix.IPPROTO_TCP).of(nat.ReasonNoBackend).Load(); n != 1 {
		t.Errorf("%d connections were refused", n)
	}
}

// Clients get their shares of endpoints by weight.
func TestWeights(t *testing.T) {
	needHosts(t)
	naming(t, endpointA, endpointC)
	serving(t, config(unix.IPPROTO_TCP, func(s *services.Service) {
		for i := range s.Endpoints {
			if s.Endpoints[i].Node == "n2" {
				s.Endpoints[i].Weight = 3
			}
		}
	}, endpointA, endpointC))
	const n = 400
	got := 0
	for range n {
		name, err := who(t, outside[0])
		need.NoError(t, err)
		if name == endpointC[0] {
			got++
		}
	}
	if d := got - 300; d < -44 || d > 44 { // five times the standard deviation of 400 draws, √(400·¾·¼) = 8.7
		t.Errorf("%d of %d connections got the endpoint with weight 3 of 4", got, n)
	}
}

// The client decides about policies, as with the engine. All addresses of these tests belong to
// this machine: tests of whole processes check that outside hosts get local endpoints only.
func TestWhoAsks(t *testing.T) {
	needHosts(t)
	naming(t, endpointA, endpointC)
	s := serving(t, config(unix.IPPROTO_TCP, func(s *services.Service) { s.ExternalLocal = true },
		endpointA, endpointC))
	for _, r := range []struct {
		from [2]string
		want [2]map[string]bool
	}{
		{pod, [2]map[string]bool{{endpointA[0]: true, endpointC[0]: true}, {endpointA[1]: true, endpointC[1]: true}}},
		{nodeAt, [2]map[string]bool{{endpointA[0]: true, endpointC[0]: true},
			{endpointA[1]: true, endpointC[1]: true}}},
	} {
		for family, from := range r.from {
			got := map[string]bool{}
			for range 30 {
				name, err := who(t, from)
				if err != nil {
					t.Fatal(from, err)
				}
				got[name] = true
			}
			if fmt.Sprint(got) != fmt.Sprint(r.want[family]) {
				t.Errorf("%s: %v answer", from, got)
			}
		}
	}
	ranges := config(unix.IPPROTO_TCP, func(s *services.Service) {
		s.NodePort, s.Port = 0, 30080
		s.LoadBalancerIPs, s.SourceRanges = []netip.Addr{netip.MustParseAddr(nodeAt[0])},
			[]netip.Prefix{netip.MustParsePrefix(outside[0] + "/32")}
		s.Affinity = rules.AffinityClientIP
	}, endpointA, endpointC)
	need.NoError(t, s.Apply(t.Context(), ranges))
	first, err := who(t, outside[0])
	need.NoError(t, err)
	for range 20 {
		if name, err := who(t, outside[0]); err != nil || name != first {
			t.Fatalf("%q answers, and %q has before: %v", name, first, err)
		}
	}
	if name, err := who(t, stranger[0]); err == nil {
		t.Errorf("who may not ask is answered by %q", name)
	}
	if n := s.stats.refusedOf(unix.IPPROTO_TCP).of(nat.ReasonFiltered).Load(); n != 1 {
		t.Errorf("%d connections were refused", n)
	}
}

// The PROXY protocol tells an endpoint its client's address, whichever side sends first, once the
// Service asks for it.
func TestProxyProtocol(t *testing.T) {
	needHosts(t)
	for _, e := range endpointA {
		l, err := net.Listen("tcp", net.JoinHostPort(e, "8080"))
		need.NoError(t, err)
		defer l.Close()
		told := &proxyproto.Listener{Listener: l, ReadHeaderTimeout: patience,
			ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
				return proxyproto.REQUIRE, nil
			}}
		go func() {
			for {
				c, err := told.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "%s %s", c.RemoteAddr(), c.LocalAddr())
				c.Close()
			}
		}()
	}
	s := serving(t, config(unix.IPPROTO_TCP, nil, endpointA))
	need.NoError(t, s.Apply(t.Context(), config(unix.IPPROTO_TCP, func(s *services.Service) { s.ProxyProtocol = true },
		endpointA)))
	for _, from := range outside {
		c, err := dial(t, "tcp", from)
		need.NoError(t, err)
		got, err := io.ReadAll(c)
		if want := fmt.Sprintf("%s %s", c.LocalAddr(), c.RemoteAddr()); err != nil || string(got) != want {
			t.Errorf("the endpoint was told %q, want %q: %v", got, want, err)
		}
	}
}

// A connection survives the removal of its endpoint and of its Service. A Service without endpoints
// refuses.
func TestRemovedTCP(t *testing.T) {
	needHosts(t)
	naming(t, endpointA, endpointC)
	s := serving(t, config(unix.IPPROTO_TCP, nil, endpointA))
	c, err := dial(t, "tcp", outside[0])
	need.NoError(t, err)
	if name, err := heard(c); name != endpointA[0] {
		t.Fatal(name, err)
	}
	echo := func() error {
		if _, err := c.Write([]byte("still")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 5))
		return err
	}
	for _, endpoints := range [][][2]string{{endpointC}, {}} {
		need.NoError(t, s.Apply(t.Context(), config(unix.IPPROTO_TCP, nil, endpoints...)))
		if err := echo(); err != nil {
			t.Fatalf("with %v the connection ends: %v", endpoints, err)
		}
	}
	if _, err := who(t, outside[0]); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without endpoints: %v", err)
	}
	none := config(unix.IPPROTO_TCP, nil)
	none.Services = nil
	need.NoError(t, s.Apply(t.Context(), none))
	if err := echo(); err != nil {
		t.Errorf("the connection ends with the Service: %v", err)
	}
	if _, err := who(t, outside[0]); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without the Service: %v", err)
	}
}

// An idle connection ends; one with traffic in one direction does not.
func TestIdleTCP(t *testing.T) {
	needHosts(t)
	t.Parallel()
	const idle = 6 * time.Second
	naming(t, endpointA)
	serving(t, config(unix.IPPROTO_TCP, nil, endpointA), func(i *idleTimes, _ *int) { i.tcp = idle })
	silent, err := dial(t, "tcp", outside[0])
	need.NoError(t, err)
	speaks, err := dial(t, "tcp", outside[0])
	need.NoError(t, err)
	for _, c := range []net.Conn{silent, speaks} {
		if _, err := heard(c); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := silent.Read(make([]byte, 1))
		ended <- err
	}()
	began := time.Now()
	tick := time.NewTicker(idle / 4)
	defer tick.Stop()
	for silentEnds := false; !silentEnds || time.Since(began) < 2*idle; {
		select {
		case err := <-ended:
			if silentEnds = true; !errors.Is(err, unix.ECONNRESET) {
				t.Fatalf("the silent one ends by %v", err)
			}
			if took := time.Since(began); took < idle/2 {
				t.Errorf("the silent one ends after %v", took)
			}
		case <-tick.C:
			if _, err := speaks.Write([]byte(".")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := io.ReadFull(speaks, make([]byte, 4)); err != nil {
		t.Errorf("the one that speaks: %v", err)
	}
}

// A connection on which a byte passes in time continues, whenever the idle time is checked: here
// both directions check when the first byte is that old and the second one has passed since.
func TestBeat(t *testing.T) {
	needHosts(t)
	t.Parallel()
	const idle, port = 12 * time.Second, 30082
	beats := []time.Duration{idle / 10, idle * 21 / 20}
	listening(t, endpointC[0], func(c *net.TCPConn) {
		began := time.Now()
		for _, at := range beats {
			beat := time.NewTimer(time.Until(began.Add(at)))
			<-beat.C
			c.Write([]byte("!"))
		}
		io.Copy(io.Discard, c)
	})
	at := func(s *services.Service) { s.NodePort = port }
	serving(t, config(unix.IPPROTO_TCP, at, endpointC), func(i *idleTimes, _ *int) { i.tcp = idle })
	var all sync.WaitGroup
	defer all.Wait()
	for i := range 20 {
		c, err := dialPort(t, "tcp", outside[0], fmt.Sprint(port))
		need.NoError(t, err)
		all.Go(func() {
			if n, err := io.ReadFull(c, make([]byte, len(beats))); err != nil {
				t.Errorf("connection %d: %d beats, %v", i, n, err)
			}
			c.SetReadDeadline(time.Now().Add(idle / 4)) // by then both directions have checked
			if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("connection %d: %d bytes after the last beat, %v", i, n, err)
			}
		})
	}
}
