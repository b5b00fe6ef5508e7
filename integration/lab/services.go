package lab

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
)

// serviceCalls is how many connections show how a service balances: the chance that one of two backends gets all of them is 1 in 2^39.
const serviceCalls = 40

// nameServer answers each line of a connection with its host's name and the source that it sees.
type nameServer struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
}

func newNameServer(h *Host, port uint16) (*nameServer, error) {
	listener, err := h.listenTCP(port)
	if err != nil {
		return nil, err
	}
	s := &nameServer{listener: listener}
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
				lines := bufio.NewReader(conn)
				for {
					line, err := lines.ReadString('\n')
					if err != nil {
						conn.Close()
						return
					}
					fmt.Fprintf(conn, "%s %s %s", h.Name, conn.RemoteAddr().(*net.TCPAddr).IP, line)
				}
			}()
		}
	}()
	return s, nil
}

func (s *nameServer) close() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
}

// call is a connection to a nameServer.
type call struct {
	conn  net.Conn
	lines *bufio.Reader
	count int
}

func newCall(ctx context.Context, from *Host, to netip.AddrPort) (*call, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	conn, err := from.Dial(ctx, over("tcp", to.Addr()), to.String())
	if err != nil {
		return nil, err
	}
	return &call{conn: conn, lines: bufio.NewReader(conn)}, nil
}

// ask returns the name of the host that answers and the source that it sees.
func (c *call) ask() (name, source string, err error) {
	c.count++
	question := fmt.Sprintf("question %d", c.count)
	c.conn.SetDeadline(time.Now().Add(replyTimeout))
	if _, err := fmt.Fprintln(c.conn, question); err != nil {
		return "", "", err
	}
	line, err := c.lines.ReadString('\n')
	if err != nil {
		return "", "", err
	}
	parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
	if len(parts) != 3 || parts[2] != question {
		return "", "", fmt.Errorf("answer %q to %q", line, question)
	}
	return parts[0], parts[1], nil
}

// end closes the connection, and waits until the server has closed it too.
func (c *call) end() error {
	defer c.conn.Close()
	if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	c.conn.SetDeadline(time.Now().Add(replyTimeout))
	if _, err := c.lines.ReadByte(); err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("the end of the connection: %v, want it reset", err)
	}
	return nil
}

// serviceCheck reaches services of one cluster from a pod of the other.
type serviceCheck struct {
	lab     *Lab
	plan    *plan
	cluster int // of the services, in the plan
	from    *Host
	others  *Host // the other pod there
	source  netip.Addr
}

// serviceChecks test services with two backends.
func (l *Lab) serviceChecks(p *plan) []Check {
	var checks []Check
	for i := range p {
		c, peer := &p[i], &p[1-i]
		s := &serviceCheck{lab: l, plan: p, cluster: i, from: l.host(p, peer.Name+"/pod1"), others: l.host(p, peer.Name+"/pod2")}
		s.source = peer.Seen(s.from.Address)
		for _, service := range []struct {
			name    string
			address netip.Addr
			run     func(context.Context, netip.AddrPort) (string, error)
		}{
			{"service balance", c.Balanced, s.balance},
			{"service affinity", c.Sticky, s.affinity},
			{"service removal", c.Balanced, s.removalKeeps},
			{"service reset", c.Strict, s.removalResets},
		} {
			to := netip.AddrPortFrom(c.Seen(service.address), servicePort)
			checks = append(checks, Check{service.name, s.from.Name + " → " + to.String(), func(ctx context.Context) (string, error) {
				return s.withBackends(ctx, to, service.run)
			}})
		}
	}
	return checks
}

// withBackends runs a check while both backends serve.
func (s *serviceCheck) withBackends(ctx context.Context, to netip.AddrPort, run func(context.Context, netip.AddrPort) (string, error)) (string, error) {
	for _, n := range s.plan[s.cluster].Nodes {
		server, err := newNameServer(s.lab.host(s.plan, s.plan[s.cluster].Name+"/"+n.PodName), backendPort)
		if err != nil {
			return "", err
		}
		defer server.close()
	}
	return run(ctx, to)
}

// calls makes connections one after another and counts who answered.
func (s *serviceCheck) calls(ctx context.Context, from *Host, to netip.AddrPort, n int) (map[string]int, error) {
	want := s.plan.of(from.Name).Seen(from.Address).String()
	seen := make(map[string]int)
	for range n {
		c, err := newCall(ctx, from, to)
		if err != nil {
			return seen, fmt.Errorf("connection %d to %s: %w", len(seen)+1, to, err)
		}
		name, source, err := c.ask()
		c.conn.Close()
		if err != nil {
			return seen, fmt.Errorf("%s: %w", to, err)
		}
		if source != want {
			return seen, fmt.Errorf("%s saw source %s, want %s", name, source, want)
		}
		seen[name]++
	}
	return seen, nil
}

func (s *serviceCheck) balance(ctx context.Context, to netip.AddrPort) (string, error) {
	seen, err := s.calls(ctx, s.from, to, serviceCalls)
	if err != nil {
		return "", err
	}
	if len(seen) != 2 {
		return "", fmt.Errorf("%d connections: %s, want two backends", serviceCalls, count(seen))
	}
	return count(seen), nil
}

// affinity requires one backend for all connections of each client, even after a change of the configuration.
func (s *serviceCheck) affinity(ctx context.Context, to netip.AddrPort) (string, error) {
	figure := ""
	for _, from := range []*Host{s.from, s.others} {
		seen, err := s.calls(ctx, from, to, serviceCalls/2)
		if err != nil {
			return "", err
		}
		if err := s.lab.reload(ctx, s.cluster, nil); err != nil {
			return "", err
		}
		more, err := s.calls(ctx, from, to, serviceCalls/2)
		if err != nil {
			return "", err
		}
		for name, n := range more {
			seen[name] += n
		}
		if len(seen) != 1 {
			return "", fmt.Errorf("connections of %s: %s, want one backend", from.Name, count(seen))
		}
		if figure != "" {
			figure += "; "
		}
		figure += count(seen)
	}
	return figure, nil
}

// oneEach opens a connection to each backend.
func (s *serviceCheck) oneEach(ctx context.Context, to netip.AddrPort) (map[string]*call, error) {
	calls := make(map[string]*call)
	for range serviceCalls {
		c, err := newCall(ctx, s.from, to)
		if err != nil {
			return calls, err
		}
		name, _, err := c.ask()
		if err != nil {
			return calls, errors.Join(err, c.conn.Close())
		}
		if calls[name] != nil {
			c.conn.Close()
			continue
		}
		calls[name] = c
		if len(calls) == 2 {
			return calls, nil
		}
	}
	return calls, fmt.Errorf("%d connections reached %d backends, want 2", serviceCalls, len(calls))
}

// without removes the first pod from the named service and returns a function that restores it.
func (s *serviceCheck) without(ctx context.Context, service string) (leaving, staying string, restore func() error, err error) {
	c := &s.plan[s.cluster]
	err = s.lab.reload(ctx, s.cluster, func(config object) {
		for _, o := range config["nat"].(object)["services"].([]object) {
			if o["name"] == service+c.suffix() {
				o["backends"] = o["backends"].([]object)[1:]
			}
		}
	})
	return c.Name + "/" + c.Nodes[0].PodName, c.Name + "/" + c.Nodes[1].PodName,
		func() error { return s.lab.reload(ctx, s.cluster, nil) }, err
}

// removalKeeps removes a backend: its connection continues, new ones go to the remaining backend.
func (s *serviceCheck) removalKeeps(ctx context.Context, to netip.AddrPort) (string, error) {
	calls, err := s.oneEach(ctx, to)
	defer closeAll(calls)
	if err != nil {
		return "", err
	}
	leaving, staying, restore, err := s.without(ctx, "balanced")
	if err != nil {
		return "", err
	}
	for name, c := range calls {
		if got, _, err := c.ask(); err != nil || got != name {
			return "", errors.Join(fmt.Errorf("connection to %s after %s left: answer from %q: %w", name, leaving, got, err), restore())
		}
	}
	seen, err := s.calls(ctx, s.from, to, serviceCalls/2)
	if err = errors.Join(err, restore()); err != nil {
		return "", err
	}
	if len(seen) != 1 || seen[staying] == 0 {
		return "", fmt.Errorf("new connections after %s left: %s", leaving, count(seen))
	}
	return fmt.Sprintf("2 go on, new ones: %s", count(seen)), nil
}

// removalResets removes a backend of a service with onRemoval reset.
func (s *serviceCheck) removalResets(ctx context.Context, to netip.AddrPort) (string, error) {
	calls, err := s.oneEach(ctx, to)
	defer closeAll(calls)
	if err != nil {
		return "", err
	}
	leaving, staying, restore, err := s.without(ctx, "strict")
	if err != nil {
		return "", err
	}
	_, _, lost := calls[leaving].ask()
	name, _, err := calls[staying].ask()
	if err = errors.Join(err, restore()); err != nil {
		return "", err
	}
	if name != staying {
		return "", fmt.Errorf("connection to %s answered by %s", staying, name)
	}
	if !errors.Is(lost, unix.ECONNRESET) && !errors.Is(lost, unix.EPIPE) && !errors.Is(lost, io.EOF) {
		return "", fmt.Errorf("connection to %s after it left: %v, want it reset", leaving, lost)
	}
	return "1 goes on, 1 reset", nil
}

func closeAll(calls map[string]*call) {
	for _, c := range calls {
		c.conn.Close()
	}
}
