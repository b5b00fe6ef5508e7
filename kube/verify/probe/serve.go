package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	// maxConnections is how many connections a server accepts at once; it closes others.
	maxConnections = 256
	// maxEcho is how many bytes a server returns to one connection.
	maxEcho = 1 << 30
	// maxSilence is how long a server waits for bytes.
	maxSilence = 30 * time.Second
)

// Serve answers askers with the token on both sockets until ctx ends, and closes them. name is what
// it calls itself.
func Serve(ctx context.Context, tcp net.Listener, udp net.PacketConn, token, name string) error {
	if len(token) != tokenBytes {
		return fmt.Errorf("token: %d bytes; want %d", len(token), tokenBytes)
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() { <-ctx.Done(); tcp.Close(); udp.Close() })
	tasks.Go(func() { answerUDP(udp, token) })
	places := make(chan struct{}, maxConnections)
	for {
		conn, err := tcp.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case places <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		tasks.Go(func() {
			defer func() { <-places }()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			echo(conn, token, name)
		})
	}
}

// answerUDP returns questions as answers until the socket is closed.
func answerUDP(udp net.PacketConn, token string) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := udp.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !isDatagram(b[:n], token, '?') {
			continue
		}
		b[tokenBytes] = '!'
		udp.WriteTo(b[:n], from) // a lost answer is asked for again
	}
}

// isDatagram reports whether b is a datagram of the run.
func isDatagram(b []byte, token string, kind byte) bool {
	return len(b) >= minDatagram && string(b[:tokenBytes]) == token && b[tokenBytes] == kind
}

// minDatagram is the length of the shortest datagram: token, kind, and number.
const minDatagram = tokenBytes + 1 + 4

// echo answers one connection.
func echo(conn net.Conn, token, name string) {
	conn.SetDeadline(time.Now().Add(maxSilence))
	first := make([]byte, tokenBytes+1)
	if _, err := io.ReadFull(conn, first); err != nil || string(first) != token+"\n" {
		return
	}
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return
	}
	if _, err := fmt.Fprintf(conn, "%s %s\n", host, name); err != nil {
		return
	}
	b := make([]byte, 64<<10)
	for left := maxEcho; left > 0; {
		conn.SetDeadline(time.Now().Add(maxSilence))
		n, err := conn.Read(b)
		if n > 0 {
			if _, err := conn.Write(b[:n]); err != nil {
				return
			}
			left -= n
		}
		if err != nil {
			return
		}
	}
}

// readGreeting reads the server's first line.
func readGreeting(r *bufio.Reader) (seen, server string, err error) {
	line, err := r.ReadSlice('\n') // of at most the reader's size
	if err != nil {
		return "", "", err
	}
	seen, server, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
	if _, err := netip.ParseAddr(seen); err != nil || !ok || server == "" {
		return "", "", errors.New("not a server of this run")
	}
	return seen, server, nil
}
