package sockets

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/node/services"
	"culvert/geneve/share"
	"culvert/integration/need"
	"culvert/nat"
)

// telling makes endpoints answer each datagram with their address and its text.
func telling(t *testing.T, endpoints ...[2]string) {
	t.Helper()
	for _, e := range endpoints {
		for _, address := range e {
			c, err := net.ListenPacket("udp", net.JoinHostPort(address, "8080"))
			need.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			go func() {
				for b := make([]byte, maxDatagram); ; {
					n, from, err := c.ReadFrom(b)
					if err != nil {
						return
					}
					c.WriteTo(append([]byte(address+" "), b[:n]...), from)
				}
			}()
		}
	}
}

// ask sends a datagram and returns the endpoint that answers, and the text that it got.
func ask(c net.Conn, text string) (who, what string, err error) {
	if _, err := c.Write([]byte(text)); err != nil {
		return "", "", err
	}
	b := make([]byte, maxDatagram)
	n, err := c.Read(b)
	who, what, _ = strings.Cut(string(b[:n]), " ")
	return who, what, err
}

// Datagrams of all sizes pass in both directions, and a client keeps its endpoint.
func TestDatagrams(t *testing.T) {
	needHosts(t)
	telling(t, endpointA, endpointC)
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA, endpointC))
	for _, from := range outside {
		c, err := dial(t, "udp", from)
		need.NoError(t, err)
		first := ""
		for _, size := range []int{1, 0, 1472, 9000, 60000} {
			text := string(bytes.Repeat([]byte{'x'}, size))
			name, got, err := ask(c, text)
			if err != nil || got != text {
				t.Fatalf("of a datagram of %d bytes %d come back: %v", size, len(got), err)
			}
			if first == "" {
				first = name
			}
			if name != first {
				t.Errorf("%s answers, want %s as before", name, first)
			}
		}
	}
	if n := s.stats.createdOf(unix.IPPROTO_UDP).Load(); n != 2 {
		t.Errorf("%d flows were created, want 2 for two clients", n)
	}
}

// After an endpoint is removed, the next packet goes to another one. If there is none, clients are
// refused.
func TestRemovedUDP(t *testing.T) {
	needHosts(t)
	telling(t, endpointA, endpointC)
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA))
	c, err := dial(t, "udp", outside[0])
	need.NoError(t, err)
	for _, e := range [][2]string{endpointA, endpointC, endpointA} {
		need.NoError(t, s.Apply(t.Context(), config(unix.IPPROTO_UDP, nil, e)))
		if name, _, err := ask(c, "?"); err != nil || name != e[0] {
			t.Fatalf("%s answers, want %s: %v", name, e[0], err)
		}
	}
	need.NoError(t, s.Apply(t.Context(), config(unix.IPPROTO_UDP, nil)))
	if name, _, err := ask(c, "?"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without endpoints %q answers: %v, want %v", name, err, unix.ECONNREFUSED)
	}
}

// An endpoint that is away for a while costs only the packets sent meanwhile.
func TestEndpointComesBack(t *testing.T) {
	needHosts(t)
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA))
	c, err := dial(t, "udp", outside[0])
	need.NoError(t, err)
	need.Eventually(t, patience, "the kernel reports the closed port", func() error {
		_, err := c.Write([]byte("?"))
		if err == nil && s.stats.failures.Load() == 0 {
			err = errors.New("no failure is counted")
		}
		return err
	})
	telling(t, endpointA)
	if name, _, err := ask(c, "?"); err != nil || name != endpointA[0] {
		t.Errorf("%q answers, want %s: %v", name, endpointA[0], err)
	}
}

// noFlows is nil if a Server has no flow.
func noFlows(s *Server) error {
	if n := s.all.count(); n > 0 {
		return fmt.Errorf("there are %d flows, want none", n)
	}
	return nil
}

// A flow without packets ends.
func TestIdleUDP(t *testing.T) {
	needHosts(t)
	telling(t, endpointA)
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA), func(i *idleTimes, _ *int) { i.udp = time.Second })
	c, err := dial(t, "udp", outside[0])
	need.NoError(t, err)
	_, _, err = ask(c, "?")
	need.NoError(t, err)
	need.Eventually(t, patience, "the idle flow ends", func() error { return noFlows(s) })
	if _, _, err := ask(c, "?"); err != nil {
		t.Errorf("the next packet is not answered: %v", err)
	}
	if n := s.stats.createdOf(unix.IPPROTO_UDP).Load(); n != 2 {
		t.Errorf("%d flows were created, want 2", n)
	}
}

// streaming turns the flows of a client's address into streams.
func streaming(s *Server, from string) int {
	s.all.mu.Lock()
	var own []*flow
	if of := s.all.sources[share.Source(netip.MustParseAddr(from))]; of != nil {
		own = slices.Collect(maps.Keys(of.flows))
	}
	s.all.mu.Unlock()
	for _, f := range own {
		s.all.makeStream(f)
	}
	n := 0
	for _, f := range own {
		if f.stream.Load() {
			n++
		}
	}
	return n
}

// A client that opens as many streams as it can gets its share, which leaves room for another
// client; what finds no room is counted.
func TestCapUDP(t *testing.T) {
	needHosts(t)
	telling(t, endpointA)
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA), func(_ *idleTimes, most *int) { *most = 16 })
	fresh := func(from string) net.Conn {
		t.Helper()
		c, err := dial(t, "udp", from)
		need.NoError(t, err)
		if name, _, err := ask(c, "?"); err != nil || name != endpointA[0] { // the node handles packets in order
			t.Fatalf("a client at %s is answered by %q, want %s: %v", from, name, endpointA[0], err)
		}
		return c
	}
	left := 16
	for i, from := range []string{outside[0], stranger[0], pod[0], endpointC[0], endpointB[0]} {
		for n := 0; n < 32 && s.all.streams.count() < 16; n++ {
			fresh(from)
			streaming(s, from)
		}
		if left /= 2; s.all.streams.count() != 16-left {
			t.Fatalf("%d streams of %d clients, want %d", s.all.streams.count(), i+1, 16-left)
		}
	}
	if left != 0 || s.all.count() != 16 {
		t.Fatalf("there are %d flows with room for %d more streams, want 16 and none", s.all.count(), left)
	}
	c, err := dial(t, "udp", nodeAt[0])
	need.NoError(t, err)
	_, err = c.Write([]byte("?"))
	need.NoError(t, err)
	refused := s.stats.refusedOf(unix.IPPROTO_UDP).of(nat.ReasonTableFull)
	need.Eventually(t, patience, "a client is refused when streams have all places", func() error {
		if refused.Load() == 0 {
			return fmt.Errorf("none is refused with %d flows", s.all.count())
		}
		return nil
	})
}

// More clients than there are places send one request each, first from several sources and then
// from one. Each is answered, and a stream beside them keeps its flow.
func TestBusyUDP(t *testing.T) {
	needHosts(t)
	telling(t, endpointA)
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA), func(_ *idleTimes, most *int) { *most = 16 })
	stream, err := dial(t, "udp", pod[0])
	need.NoError(t, err)
	if _, _, err := ask(stream, "?"); err != nil || streaming(s, pod[0]) != 1 {
		t.Fatal(err)
	}
	const each = 100
	sources := []string{outside[0], outside[1], stranger[0], stranger[1]}
	for i := range each * len(sources) {
		from := sources[i%len(sources)] // all sources in turn, and then only the first
		if i >= each*len(sources)/2 {
			from = sources[0]
		}
		c, err := dial(t, "udp", from)
		need.NoError(t, err)
		if _, got, err := ask(c, fmt.Sprint(i)); err != nil || got != fmt.Sprint(i) {
			t.Fatalf("client %d, from %s: %q comes back: %v", i, from, got, err)
		}
		// Its port stays occupied: another client with it would get its flow.
	}
	if _, _, err := ask(stream, "?"); err != nil {
		t.Errorf("the stream is not answered: %v", err)
	}
	if n := s.stats.createdOf(unix.IPPROTO_UDP).Load(); n != each*uint64(len(sources))+1 {
		t.Errorf("%d flows were created, want one for each of %d clients", n, each*len(sources)+1)
	}
	if n := s.stats.evicted[answered].Load(); n < each*uint64(len(sources))-16 || s.stats.evicted[waiting].Load() > 0 {
		t.Errorf("%d answered and %d waiting flows were evicted, want at least %d and none", n,
			s.stats.evicted[waiting].Load(), each*len(sources)-16)
	}
	if text := s.metrics(); !strings.Contains(text,
		fmt.Sprintf("culvert_connections_evicted_total{protocol=\"udp\",state=\"answered\"} %d\n",
			s.stats.evicted[answered].Load())) {
		t.Errorf("the metrics lack the number of evicted flows: %s", text)
	}
}

// The endpoint of a Service is the Service itself. A packet loops only until no place is left,
// because new flows are not evicted.
func TestLoopUDP(t *testing.T) {
	needHosts(t)
	s := serving(t, config(unix.IPPROTO_UDP, func(s *services.Service) {
		for i := range s.Endpoints {
			s.Endpoints[i].Port = 30080
		}
	}, nodeAt), func(_ *idleTimes, most *int) { *most = 16 })
	c, err := dial(t, "udp", outside[0])
	need.NoError(t, err)
	_, err = c.Write([]byte("?"))
	need.NoError(t, err)
	refused := s.stats.refusedOf(unix.IPPROTO_UDP).of(nat.ReasonConnectionShare)
	need.Eventually(t, patience, "the packet stops when no place is left", func() error {
		if refused.Load() == 0 {
			return fmt.Errorf("%d flows were made, none refused", s.stats.createdOf(unix.IPPROTO_UDP).Load())
		}
		return nil
	})
	if made, n := s.stats.createdOf(unix.IPPROTO_UDP).Load(), refused.Load(); made != 16 || n != 1 {
		t.Errorf("%d flows were created and %d refused, want 16 and 1", made, n)
	}
}

// An ICMP error about one packet affects no other one: the client keeps its flow, and so the source
// port that its endpoint sees.
func TestErrorsOfTheWay(t *testing.T) {
	needHosts(t)
	telling(t, endpointA)
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA))
	c, err := dial(t, "udp", outside[0])
	need.NoError(t, err)
	_, _, err = ask(c, "?")
	need.NoError(t, err)
	var own, backend netip.AddrPort
	for at, d := range s.listening {
		if !at.at.Addr().Is4() {
			continue
		}
		d.flowing.Lock()
		for _, f := range d.flows {
			own, backend = f.conn.LocalAddr().(*net.UDPAddr).AddrPort(), f.backend
		}
		d.flowing.Unlock()
	}
	router, err := net.Dial("ip4:icmp", own.Addr().String())
	need.NoError(t, err)
	defer router.Close()
	for name, kind := range map[string][2]byte{"too big": {3, 4}, "prohibited": {3, 13}, "bad header": {12, 0}} {
		for range 4 {
			if _, err := router.Write(complaint(kind, own, backend)); err != nil {
				t.Fatal(err)
			}
			if _, got, err := ask(c, name); err != nil || got != name {
				t.Fatalf("%s: %q comes back: %v", name, got, err)
			}
		}
	}
	if n := s.stats.createdOf(unix.IPPROTO_UDP).Load(); n != 1 {
		t.Errorf("%d flows were created, want 1 for one client", n)
	}
}

// complaint returns an ICMP error about a datagram (RFC 792; next-hop MTU: RFC 1191, Section 4).
func complaint(kind [2]byte, source, destination netip.AddrPort) []byte {
	b := []byte{kind[0], kind[1], 0, 0, 0, 0, 1400 >> 8, 1400 & 0xff, 0x45, 0, 5, 0xdc, 0, 1, 0x40, 0, 64,
		unix.IPPROTO_UDP, 0, 0}
	b = append(append(b, source.Addr().AsSlice()...), destination.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, source.Port()), destination.Port())
	b = append(b, 5, 0xc8, 0, 0)
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}

// A flow whose packets can no longer leave, because a route or its own address is gone, ends
// although the client keeps sending. The client's next packet may take another route.
func TestLostWay(t *testing.T) {
	needHosts(t)
	telling(t, endpointA)
	s := serving(t, config(unix.IPPROTO_UDP, nil, endpointA), func(i *idleTimes, _ *int) { i.udp = time.Second })
	c, err := dial(t, "udp", outside[0])
	need.NoError(t, err)
	_, _, err = ask(c, "?")
	need.NoError(t, err)
	lose(t, endpointA[0])
	need.Eventually(t, patience, "the flow ends although its client keeps sending", func() error {
		_, err := c.Write([]byte("?"))
		need.NoError(t, err)
		return noFlows(s)
	})
	needHosts(t)
	if who, _, err := ask(c, "?"); err != nil || who != endpointA[0] {
		t.Errorf("when the route is back, %q answers, want %s: %v", who, endpointA[0], err)
	}
}
