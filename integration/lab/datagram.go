package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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

func newEchoServer(h *Host) (*echoServer, error) {
	conn, err := h.listenUDP(h.Address, 0)
	if err != nil {
		return nil, err
	}
	// Echoes may be fragmented on the path, whatever their size. With IPv6 only this host fragments them, for the known path MTU.
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
	conn, err := e.from.DialFrom(ctx, over("udp", e.target), netip.AddrPortFrom(e.local, 0), netip.AddrPortFrom(e.target, uint16(port)), nil)
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
	payload := make([]byte, size)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(payload)
	if _, err := conn.Write(payload); err != nil {
		return fmt.Errorf("send %d bytes: %w", size, err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	buffer := make([]byte, 65536)
	n, err := conn.Read(buffer)
	if err != nil {
		return fmt.Errorf("echo of a datagram of %d bytes: %w", size, err)
	}
	if !bytes.Equal(buffer[:n], payload) {
		return fmt.Errorf("echo of a datagram of %d bytes has %d bytes or other content", size, n)
	}
	return nil
}

// A train is what a QUIC sender gives to the kernel in one piece.
const (
	trains       = 200
	trainSegment = 1200 // bytes of each datagram but the last
	trainLast    = 700  // bytes of the last datagram
	trainLength  = 20   // datagrams
)

// checkTrains sends UDP_SEGMENT trains in both directions; every datagram must arrive, in order and with its size. The receiver answers each train
// before the next.
func (e *ends) checkTrains(ctx context.Context) (string, error) {
	server, err := e.to.listenUDP(e.to.Address, 0)
	if err != nil {
		return "", err
	}
	defer server.Close()
	client, err := e.dialUDP(ctx, server.LocalAddr().(*net.UDPAddr).Port)
	if err != nil {
		return "", err
	}
	defer client.Close()
	began := time.Now()
	for i := range trains {
		if err := sendTrain(client, netip.AddrPort{}, uint32(i)); err != nil {
			return "", fmt.Errorf("train %d to %s: %w", i, e.to.Name, err)
		}
		from, err := receiveTrain(server, uint32(i))
		if err != nil {
			return "", fmt.Errorf("train %d at %s: %w", i, e.to.Name, err)
		}
		if from.Addr().Unmap() != e.wantSource {
			return "", fmt.Errorf("%s saw source %s, want %s", e.to.Name, from.Addr(), e.wantSource)
		}
		if err := sendTrain(server, from, uint32(i)); err != nil {
			return "", fmt.Errorf("train %d back from %s: %w", i, e.to.Name, err)
		}
		if _, err := receiveTrain(client, uint32(i)); err != nil {
			return "", fmt.Errorf("train %d back at %s: %w", i, e.from.Name, err)
		}
	}
	rate := 2 * trains * trainLength / time.Since(began).Seconds() / 1000
	return fmt.Sprintf("%d datagrams, %.0f k/s", 2*trains*trainLength, rate), nil
}

// sendTrain sends a train in one system call; to is invalid on connected sockets.
func sendTrain(conn *net.UDPConn, to netip.AddrPort, number uint32) error {
	payload := make([]byte, (trainLength-1)*trainSegment+trainLast)
	for i := range trainLength {
		datagram := payload[i*trainSegment:]
		binary.BigEndian.PutUint32(datagram, number)
		binary.BigEndian.PutUint32(datagram[4:], uint32(i))
	}
	control := make([]byte, unix.CmsgSpace(2))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	header.Level, header.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	header.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], trainSegment)
	_, _, err := conn.WriteMsgUDPAddrPort(payload, control, to)
	return err
}

// receiveTrain requires the datagrams of one train.
func receiveTrain(conn *net.UDPConn, number uint32) (from netip.AddrPort, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(replyTimeout)); err != nil {
		return from, err
	}
	buffer := make([]byte, 65536)
	for i := range trainLength {
		n, source, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return from, fmt.Errorf("datagram %d of %d: %w", i, trainLength, err)
		}
		want := trainSegment
		if i == trainLength-1 {
			want = trainLast
		}
		if n != want {
			return from, fmt.Errorf("datagram %d of %d has %d bytes, want %d", i, trainLength, n, want)
		}
		if gotTrain, gotIndex := binary.BigEndian.Uint32(buffer), binary.BigEndian.Uint32(buffer[4:]); gotTrain != number || gotIndex != uint32(i) {
			return from, fmt.Errorf("datagram %d of train %d came as number %d", gotIndex, gotTrain, i)
		}
		from = source
	}
	return from, nil
}
