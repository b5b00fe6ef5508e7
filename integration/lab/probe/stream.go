package probe

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
)

// pattern is a stream of bytes without repeated blocks, so that a lost, repeated, changed or moved
// block changes the SHA-256 sum.
type pattern struct {
	block [256 << 10]byte
	left  int64
	sum   hash.Hash
}

func newPattern(length int64, seed uint64) *pattern {
	p := &pattern{left: length, sum: sha256.New()}
	copy(p.block[:], noise(len(p.block), seed))
	return p
}

// noise returns n bytes that depend on seed.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(b)
	return b
}

// WriteTo writes the stream to w and remembers its sum.
func (p *pattern) WriteTo(w io.Writer) (n int64, err error) {
	for p.left > 0 {
		binary.LittleEndian.PutUint64(p.block[:], uint64(p.left))
		part := p.block[:min(p.left, int64(len(p.block)))]
		p.sum.Write(part)
		m, err := w.Write(part)
		n += int64(m)
		if err != nil {
			return n, err
		}
		p.left -= int64(len(part))
	}
	return n, nil
}

// CheckStream sends up and down bytes over one TCP connection at the same time.
func (e *Ends) CheckStream(ctx context.Context, up, down int64) (string, error) {
	began := time.Now()
	if _, err := e.Stream(ctx, up, down); err != nil {
		return "", err
	}
	rate := float64(up+down) * 8 / time.Since(began).Seconds() / 1e9
	return fmt.Sprintf("%.2f Gbit/s, %d MiB, SHA-256 equal", rate, (up+down)>>20), nil
}

// DialTimeout allows for a connection's first two SYNs to be lost.
const DialTimeout = 5 * time.Second

// Stream compares SHA-256 sums and the addresses that the pods saw, and returns the near end.
func (e *Ends) Stream(ctx context.Context, up, down int64) (*Transfer, error) {
	listener, err := e.To.ListenTCP(0)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	server := make(chan *Transfer, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			server <- &Transfer{Err: fmt.Errorf("accept: %w", err)}
			return
		}
		server <- NewTransfer(ctx, conn, down, up, 2)
	}()
	port := listener.Addr().(*net.TCPAddr).Port
	dialing, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	conn, err := e.From.DialFrom(dialing, netns.Over("tcp", e.Target), netip.AddrPortFrom(e.Local, 0),
		netip.AddrPortFrom(e.Target, uint16(port)), nil)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	near := NewTransfer(ctx, conn, up, down, 1)
	far := <-server
	if err := errors.Join(near.Err, far.Err); err != nil {
		return nil, err
	}
	if far.Peer != e.WantSource {
		return nil, fmt.Errorf("%s saw source %s, want %s", e.To.Name, far.Peer, e.WantSource)
	}
	if near.Peer != e.Target {
		return nil, fmt.Errorf("%s is connected to %s, want %s", e.From.Name, near.Peer, e.Target)
	}
	if near.Sent != far.Received {
		return nil, fmt.Errorf("up: SHA-256 %x arrived, want %x", far.Received, near.Sent)
	}
	if far.Sent != near.Received {
		return nil, fmt.Errorf("down: SHA-256 %x arrived, want %x", near.Received, far.Sent)
	}
	return near, nil
}

// Transfer is one end of a connection after it sent and received everything.
type Transfer struct {
	Peer           netip.Addr
	PeerPort       uint16
	Sent, Received [sha256.Size]byte
	FirstMSS       int // TCP payload bytes of a segment, at the start
	LastMSS        int // and at the end
	Err            error
}

// NewTransfer sends and receives concurrently and closes the connection.
func NewTransfer(ctx context.Context, conn net.Conn, send, receive int64, seed uint64) *Transfer {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	peer := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	t := &Transfer{Peer: peer.Addr().Unmap(), PeerPort: peer.Port()}
	t.FirstMSS = segmentSize(conn)
	sender := make(chan error, 1)
	go func() {
		p := newPattern(send, seed)
		n, err := p.WriteTo(conn)
		t.Sent = [sha256.Size]byte(p.sum.Sum(nil))
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		if err != nil {
			err = fmt.Errorf("sent %d of %d bytes: %w", n, send, err)
		}
		sender <- err
	}()
	sum := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{conn}, make([]byte, 256<<10))
	t.Received = [sha256.Size]byte(sum.Sum(nil))
	if err != nil || n != receive {
		err = fmt.Errorf("received %d of %d bytes: %w", n, receive, errors.Join(err, io.ErrUnexpectedEOF))
	}
	t.Err = errors.Join(err, <-sender)
	t.LastMSS = segmentSize(conn)
	if t.Err != nil {
		t.Err = errors.New(strings.ReplaceAll(t.Err.Error(), "\n", "; "))
	}
	return t
}

// segmentSize returns how much payload a connection puts into a segment now.
func segmentSize(conn net.Conn) (size int) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { size, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) })
	}
	return size
}
