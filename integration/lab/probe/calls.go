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

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/step"
)

// NameServer answers each line of a connection with its host's name and the source that it sees.
type NameServer struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
}

// NewNameServer listens at the host's address.
func NewNameServer(h *netns.Host, port uint16) (*NameServer, error) {
	listener, err := h.ListenTCP(port)
	if err != nil {
		return nil, err
	}
	s := &NameServer{listener: listener}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			conn.(*net.TCPConn).SetLinger(0) // a FIN would be repeated when it no longer reaches its client
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					fmt.Fprintf(conn, "%s %s %s\n", h.Name, conn.RemoteAddr().(*net.TCPAddr).IP, lines.Text())
				}
			}()
		}
	}()
	return s, nil
}

// Close ends the listener and its connections.
func (s *NameServer) Close() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
}

// Call is a connection to a NameServer.
type Call struct {
	Conn  net.Conn
	lines *bufio.Reader
	count int

	Patience time.Duration // with an answer
}

// NewCall connects. The connection ends with ctx, if not before.
func NewCall(ctx context.Context, from *netns.Host, to netip.AddrPort) (*Call, error) {
	dialing, cancel := context.WithTimeout(ctx, ReplyTimeout)
	defer cancel()
	conn, err := from.Dial(dialing, netns.Over("tcp", to.Addr()), to.String())
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return &Call{Conn: conn, lines: bufio.NewReader(conn), Patience: ReplyTimeout}, nil
}

// Ask returns the name of the host that answers and the source that it sees.
func (c *Call) Ask() (name, source string, err error) {
	defer step.Catch(&err)
	c.count++
	question := fmt.Sprintf("question %d", c.count)
	c.Conn.SetDeadline(time.Now().Add(c.Patience))
	step.Must(fmt.Fprintln(c.Conn, question))
	line := step.Must(c.lines.ReadString('\n'))
	parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
	if len(parts) != 3 || parts[2] != question {
		return "", "", fmt.Errorf("answer %q to %q", line, question)
	}
	return parts[0], parts[1], nil
}

// AnsweredBy asks, and requires an answer from the named host, or from any if want is "".
func (c *Call) AnsweredBy(want string) error {
	name, _, err := c.Ask()
	if err == nil && want != "" && name != want {
		err = fmt.Errorf("answer from %s, want %s", name, want)
	}
	return err
}

// End closes the connection, and waits until the server has closed it too.
func (c *Call) End() error {
	defer c.Conn.Close()
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	c.Conn.SetDeadline(time.Now().Add(ReplyTimeout))
	if _, err := c.lines.ReadByte(); err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("the end of the connection: %v, want it reset", err)
	}
	return nil
}

// Refuses requires a connection to fail with this error.
func Refuses(ctx context.Context, from *netns.Host, to netip.AddrPort, want error) error {
	c, err := NewCall(ctx, from, to)
	if err == nil {
		c.Conn.Close()
	}
	if !errors.Is(err, want) {
		return fmt.Errorf("call to %s: %v, want %v", to, err, want)
	}
	return nil
}
