package lab

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

// echoServer sends every datagram back and remembers who sent it.
type echoServer struct {
	conn *net.UDPConn
	done chan struct{}

	mu      sync.Mutex
	sources map[netip.Addr]int
}

func newEchoServer(h *netns.Host) (*echoServer, error) {
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
	s := &echoServer{conn: conn, done: make(chan struct{}), sources: make(map[netip.Addr]int)}
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

func (s *echoServer) port() int { return s.conn.LocalAddr().(*net.UDPAddr).Port }

// close stops the server and returns how many datagrams came from each source.
func (s *echoServer) close() map[netip.Addr]int {
	s.conn.Close()
	<-s.done
	return s.sources
}

// dialUDP connects a UDP socket of the near pod to a port of the far one.
func (e *ends) dialUDP(ctx context.Context, port int) (*net.UDPConn, error) {
	conn, err := e.from.DialFrom(ctx, netns.Over("udp", e.target), netip.AddrPortFrom(e.local, 0),
		netip.AddrPortFrom(e.target, uint16(port)), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.from.Name, err)
	}
	return conn.(*net.UDPConn), nil
}

// dialEcho starts an echo server at the far pod and connects to it.
func (e *ends) dialEcho(ctx context.Context) (*echoServer, *net.UDPConn, error) {
	server, err := newEchoServer(e.to)
	if err != nil {
		return nil, nil, err
	}
	conn, err := e.dialUDP(ctx, server.port())
	if err != nil {
		server.close()
	}
	return server, conn, err
}

// checkUDP echoes datagrams of all sizes, which tests both directions.
func (e *ends) checkUDP(ctx context.Context) (string, error) {
	server, conn, err := e.dialEcho(ctx)
	if err != nil {
		return "", err
	}
	defer server.close()
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
	sources := server.close()
	if sources[e.wantSource] != sent || len(sources) != 1 {
		return "", fmt.Errorf("%s saw datagrams from %v, want %d from %s", e.to.Name, sources, sent, e.wantSource)
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
	if err := conn.SetReadDeadline(time.Now().Add(replyTimeout)); err != nil {
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

// checkTrains sends UDP_SEGMENT trains in both directions; every datagram must arrive, in order and
// with its size. The receiver answers each train before the next.
func (e *ends) checkTrains(ctx context.Context) (string, error) {
	server, err := e.to.ListenUDP(e.to.Address, 0)
	if err != nil {
		return "", err
	}
	defer server.Close()
	client, err := e.dialUDP(ctx, server.LocalAddr().(*net.UDPAddr).Port)
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
			return "", fmt.Errorf("train %d to %s: %w", i, e.to.Name, err)
		}
		from, err := receiveTrain(server, i)
		if err != nil {
			return "", fmt.Errorf("train %d at %s: %w", i, e.to.Name, err)
		}
		if from.Addr().Unmap() != e.wantSource {
			return "", fmt.Errorf("%s saw source %s, want %s", e.to.Name, from.Addr(), e.wantSource)
		}
		if _, err := server.WriteToUDPAddrPort(train(i), from); err != nil {
			return "", fmt.Errorf("train %d back from %s: %w", i, e.to.Name, err)
		}
		if _, err := receiveTrain(client, i); err != nil {
			return "", fmt.Errorf("train %d back at %s: %w", i, e.from.Name, err)
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
