package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
)

// datagramSizes are payloads in bytes; from 1,313 on they need fragments.
var datagramSizes = []int{1, 1000, 1300, 1312, 1313, 3000, 9000, 60000}

// EchoServer sends every datagram back and remembers who sent it.
type EchoServer struct {
	conn *net.UDPConn
	done chan struct{}

	mu      sync.Mutex
	sources map[netip.Addr]int
}

// NewEchoServer starts a server at the host's address.
func NewEchoServer(h *netns.Host) (*EchoServer, error) {
	conn, err := h.ListenUDP(h.Address, 0)
	if err != nil {
		return nil, err
	}
	// Echoes may be fragmented on the path, whatever their size. With IPv6 only this host fragments
	// them, for the known path MTU.
	if !h.Address.Is6() {
		if err := setMTUDiscovery(conn, unix.IP_PMTUDISC_DONT); err != nil {
			conn.Close()
			return nil, err
		}
	}
	s := &EchoServer{conn: conn, done: make(chan struct{}), sources: make(map[netip.Addr]int)}
	go func() {
		defer close(s.done)
		buffer := make([]byte, 65536)
		for {
			n, from, err := s.conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error about an echo, which the client misses
			}
			s.mu.Lock()
			s.sources[from.Addr().Unmap()]++
			s.mu.Unlock()
			s.conn.WriteToUDPAddrPort(buffer[:n], from)
		}
	}()
	return s, nil
}

// Port is where it listens.
func (s *EchoServer) Port() int { return s.conn.LocalAddr().(*net.UDPAddr).Port }

// Close stops the server and returns how many datagrams came from each source.
func (s *EchoServer) Close() map[netip.Addr]int {
	s.conn.Close()
	<-s.done
	return s.sources
}

// DialUDP connects a UDP socket of the near pod to a port of the far one.
func (e *Ends) DialUDP(ctx context.Context, port int) (*net.UDPConn, error) {
	conn, err := e.From.DialFrom(ctx, netns.Over("udp", e.Target), netip.AddrPortFrom(e.Local, 0),
		netip.AddrPortFrom(e.Target, uint16(port)), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.From.Name, err)
	}
	return conn.(*net.UDPConn), nil
}

// dialEcho starts an echo server at the far pod and connects to it.
func (e *Ends) dialEcho(ctx context.Context) (*EchoServer, *net.UDPConn, error) {
	server, err := NewEchoServer(e.To)
	if err != nil {
		return nil, nil, err
	}
	conn, err := e.DialUDP(ctx, server.Port())
	if err != nil {
		server.Close()
	}
	return server, conn, err
}

// CheckUDP echoes datagrams of all sizes, which tests both directions.
func (e *Ends) CheckUDP(ctx context.Context) (string, error) {
	server, conn, err := e.dialEcho(ctx)
	if err != nil {
		return "", err
	}
	defer server.Close()
	defer conn.Close()
	var sent int
	for round := range 5 {
		for _, size := range datagramSizes {
			if err := echoUDP(conn, size, uint64(round)); err != nil {
				return "", err
			}
			sent++
		}
	}
	sources := server.Close()
	if sources[e.WantSource] != sent || len(sources) != 1 {
		return "", fmt.Errorf("%s saw datagrams from %v, want %d from %s", e.To.Name, sources, sent, e.WantSource)
	}
	return fmt.Sprintf("%d datagrams of 1 to 60000 bytes", sent), nil
}

// echoUDP sends one datagram and requires the same back.
func echoUDP(conn *net.UDPConn, size int, seed uint64) error {
	payload := noise(size, seed)
	if _, err := conn.Write(payload); err != nil {
		return fmt.Errorf("send %d bytes: %w", size, err)
	}
	if _, err := receiveDatagram(conn, payload); err != nil {
		return fmt.Errorf("echo of a datagram of %d bytes: %w", size, err)
	}
	return nil
}

// receiveDatagram requires this datagram next.
func receiveDatagram(conn *net.UDPConn, want []byte) (from netip.AddrPort, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(ReplyTimeout)); err != nil {
		return from, err
	}
	buffer := make([]byte, len(want)+1) // a longer datagram shows by one byte
	n, from, err := conn.ReadFromUDPAddrPort(buffer)
	if err == nil && !bytes.Equal(buffer[:n], want) {
		err = fmt.Errorf("%d bytes arrived, unlike the %d sent", n, len(want))
	}
	return from, err
}

// A train is what a QUIC sender gives to the kernel in one piece.
const (
	trains       = 200
	trainSegment = 1200 // bytes of each datagram but the last
	trainLast    = 700  // bytes of the last datagram
	trainLength  = 20   // datagrams
)

// CheckTrains sends UDP_SEGMENT trains in both directions; every datagram must arrive, in order and
// with its size. The receiver answers each train before the next.
func (e *Ends) CheckTrains(ctx context.Context) (string, error) {
	server, err := e.To.ListenUDP(e.To.Address, 0)
	if err != nil {
		return "", err
	}
	defer server.Close()
	client, err := e.DialUDP(ctx, server.LocalAddr().(*net.UDPAddr).Port)
	if err != nil {
		return "", err
	}
	defer client.Close()
	if err := errors.Join(cutTrains(client), cutTrains(server)); err != nil {
		return "", err
	}
	began := time.Now()
	for i := range trains {
		if _, err := client.Write(train(i)); err != nil {
			return "", fmt.Errorf("train %d to %s: %w", i, e.To.Name, err)
		}
		from, err := receiveTrain(server, i)
		if err != nil {
			return "", fmt.Errorf("train %d at %s: %w", i, e.To.Name, err)
		}
		if from.Addr().Unmap() != e.WantSource {
			return "", fmt.Errorf("%s saw source %s, want %s", e.To.Name, from.Addr(), e.WantSource)
		}
		if _, err := server.WriteToUDPAddrPort(train(i), from); err != nil {
			return "", fmt.Errorf("train %d back from %s: %w", i, e.To.Name, err)
		}
		if _, err := receiveTrain(client, i); err != nil {
			return "", fmt.Errorf("train %d back at %s: %w", i, e.From.Name, err)
		}
	}
	rate := 2 * trains * trainLength / time.Since(began).Seconds() / 1000
	return fmt.Sprintf("%d datagrams, %.0f k/s", 2*trains*trainLength, rate), nil
}

// train is the payload of a train, whose datagrams have its number and their own.
func train(number int) []byte {
	payload := make([]byte, (trainLength-1)*trainSegment+trainLast)
	for i := range trainLength {
		datagram := payload[i*trainSegment:]
		binary.BigEndian.PutUint32(datagram, uint32(number))
		binary.BigEndian.PutUint32(datagram[4:], uint32(i))
	}
	return payload
}

// cutTrains makes the kernel send what is written to conn as trains.
func cutTrains(conn *net.UDPConn) error {
	return control(conn, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, trainSegment)
	})
}

// receiveTrain requires the datagrams of one train.
func receiveTrain(conn *net.UDPConn, number int) (from netip.AddrPort, err error) {
	i := 0
	for datagram := range slices.Chunk(train(number), trainSegment) {
		if from, err = receiveDatagram(conn, datagram); err != nil {
			return from, fmt.Errorf("datagram %d of %d: %w", i, trainLength, err)
		}
		i++
	}
	return from, nil
}
