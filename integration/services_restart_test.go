package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A serviceStream is a connection through a Service.
type serviceStream struct {
	net.Conn
	network, to string
	from        *peerHost
	who         string // the server that answers
	sent        int
}

// stream opens a connection and reads which server answers.
func (l *serviceLab) stream(from *peerHost, network, to string) *serviceStream {
	l.Helper()
	conn, err := from.dial(network, to)
	if err != nil {
		l.Fatalf("%s %s %s: %v", from.name, network, to, err)
	}
	l.Cleanup(func() { conn.Close() })
	s := &serviceStream{Conn: conn, network: network, to: to, from: from}
	if s.who, err = s.hear(); err != nil {
		l.Fatalf("%s %s %s: %v", from.name, network, to, err)
	}
	return s
}

// hear reads which server answers: it says so first over TCP, and in every answer over UDP, of
// which some may be lost.
func (s *serviceStream) hear() (who string, err error) {
	patience := startTimeout
	if s.network == "udp" {
		patience = 2 * time.Second
	}
	for end := time.Now().Add(startTimeout); ; {
		s.SetDeadline(time.Now().Add(patience))
		if s.network == "udp" {
			if _, err := s.Write([]byte("?")); err != nil {
				return "", err
			}
		}
		b := make([]byte, 100)
		n, err := s.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
			continue
		}
		who, _, _ := strings.Cut(string(b[:n]), " ")
		return who, err
	}
}

// send sends something that a TCP connection must echo.
func (s *serviceStream) send() error {
	s.sent++
	s.SetDeadline(time.Now().Add(startTimeout))
	_, err := fmt.Fprintf(s, "%06d", s.sent)
	return err
}

// heard reads the echo of the last send.
func (s *serviceStream) heard() error {
	s.SetDeadline(time.Now().Add(startTimeout))
	b := make([]byte, 6)
	if _, err := io.ReadFull(s, b); err != nil {
		return err
	}
	if string(b) != fmt.Sprintf("%06d", s.sent) {
		return fmt.Errorf("echo %q of %d", b, s.sent)
	}
	return nil
}

func (s *serviceStream) echo() error { return errors.Join(s.send(), s.heard()) }

// alive returns an error unless a connection continues with the server with which it began.
func (s *serviceStream) alive() error {
	if s.network == "tcp" {
		return s.echo()
	}
	who, err := s.hear()
	if err == nil && who != s.who {
		err = fmt.Errorf("%s answers, %s did", who, s.who)
	}
	return err
}

// kept waits until the node has written all present connections, which it does after each new one.
// The first write may have begun earlier, so it waits for a second.
func (l *serviceLab) kept() {
	l.Helper()
	written := func() (at time.Time) {
		if info, err := os.Stat(filepath.Join(l.state, "culvert1", "connections")); err == nil {
			at = info.ModTime() // may be some milliseconds before the time of another clock
		}
		return at
	}
	for range 2 {
		before := written()
		if _, _, err := l.ask(l.out, "tcp", "172.18.0.2:30010"); err != nil {
			l.Errorf("a new connection: %v", err)
		}
		await(l.T, "connections on disk", func() bool { return !written().Equal(before) })
	}
}

// all calls do for all streams at once, and returns for how many it has failed.
func (l *serviceLab) all(streams []*serviceStream, when string, do func(*serviceStream) error) (failed int) {
	l.Helper()
	results := make([]error, len(streams))
	var wait sync.WaitGroup
	for i, s := range streams {
		wait.Go(func() { results[i] = do(s) })
	}
	wait.Wait()
	for i, err := range results {
		if err != nil {
			if failed++; failed < 10 {
				l.Errorf("%s: %s %s %s: %v", when, streams[i].from.name, streams[i].network, streams[i].to, err)
			}
		}
	}
	if failed > 0 {
		l.Logf("%s: %d of %d have failed", when, failed, len(streams))
	}
	return failed
}

// TestServicesRestart stops culvert node by SIGTERM and SIGKILL and starts it again, removes an
// endpoint and reloads the file. 500 connections of all kinds of clients must survive, over both
// families, and data sent while the node is down must arrive. New connections may fail only while
// it is down, and the node's own address always answers.
func TestServicesRestart(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		before := l.kernelState()
		l.state = t.TempDir()
		serve := []string{served("web", "tcp", 10, "", "pa", "pb"), served("dns", "udp", 10, "", "pa", "pb"),
			served("near", "tcp", 11, "externalTrafficPolicy: Local, internalTrafficPolicy: Local,", "pa")}
		l.start(serve...)
		var streams []*serviceStream
		for len(streams) < 500 {
			for _, r := range []struct {
				from        *peerHost
				network, to string
			}{
				{l.out, "tcp", "172.18.0.2:30010"}, {l.out, "udp", "172.18.0.2:30010"},
				{l.out, "tcp", "[fd18::2]:30010"}, {l.out, "udp", "[fd18::2]:30010"},
				{l.out, "tcp", "172.18.0.2:30011"}, {l.c, "tcp", "10.96.0.10:80"}, {l.c, "udp", "[fd96::10]:80"},
				{l.n1, "tcp", "[fd96::10]:80"},
				{l.n1, "udp", "10.96.0.10:80"}, {l.b, "tcp", "172.18.0.2:30010"},
			} {
				streams = append(streams, l.stream(r.from, r.network, r.to))
			}
		}
		var tcp []*serviceStream
		for _, s := range streams {
			if s.network == "tcp" {
				tcp = append(tcp, s)
			}
		}
		l.down("SIGTERM", unix.SIGTERM, tcp, serve)
		l.all(streams, "after SIGTERM", (*serviceStream).alive)
		l.kept()
		l.down("SIGKILL", unix.SIGKILL, tcp, serve)
		l.all(streams, "after SIGKILL", (*serviceStream).alive)

		// An endpoint is removed: TCP stays with it, UDP moves to the other.
		l.write(served("web", "tcp", 10, "", "pb"), served("dns", "udp", 10, "", "pb"), serve[2])
		l.reload("configuration applied", 1)
		l.all(tcp, "after an endpoint has left", (*serviceStream).echo)
		for _, s := range streams {
			if s.network == "udp" {
				s.who = "pb"
			}
		}
		l.all(streams, "after an endpoint has left", (*serviceStream).alive)
		l.reload("configuration applied", 2)
		l.all(streams, "after a reload", (*serviceStream).alive)
		l.write("  - {name: broken, port: 80, nodePort: 61005}\n")
		l.reload("services.serve[0].nodePort", 1)
		l.all(streams, "after a file that is refused", (*serviceStream).alive)

		// It is also removed while no process serves.
		l.node.stop()
		l.start(served("web", "tcp", 10, "", "pa"), served("dns", "udp", 10, "", "pb"), serve[2])
		l.all(streams, "after a restart with another file", (*serviceStream).alive)
		t.Logf("%d connections, of which %d are TCP", len(streams), len(tcp))

		for _, s := range streams {
			s.Close()
		}
		l.node.stop()
		if l.kernelState() == before {
			t.Error("nothing has stayed for the next run")
		}
		l.state = ""
		l.start(serve...)
		l.node.stop()
		if after := l.kernelState(); after != before {
			t.Errorf("left behind:\n%s\nthere was:\n%s", after, before)
		}
	}, programs("ip", "ip"))
}

// down ends the node, sends on all streams and starts the node again: everything must be echoed.
func (l *serviceLab) down(how string, signal unix.Signal, tcp []*serviceStream, serve []string) {
	l.Helper()
	l.node.cmd.Process.Signal(signal)
	<-l.node.ended
	began := time.Now()
	l.all(tcp, how+": while it is down", (*serviceStream).send)
	if _, _, err := l.ask(l.out, "tcp", "172.18.0.2:8080"); err != nil {
		l.Errorf("%s: the node itself does not answer: %v", how, err)
	}
	err := l.out.do(func() error {
		conn, err := net.DialTimeout("tcp", "172.18.0.2:30010", 100*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
		l.Errorf("%s: a new connection while nobody serves: %v, want silence", how, err)
	}
	l.start(serve...)
	pause := time.Since(began)
	failed := l.all(tcp, how+": what was sent while it was down", (*serviceStream).heard)
	l.Logf("%s: down for %v: %d of %d TCP connections go on", how, pause.Round(time.Millisecond),
		len(tcp)-failed, len(tcp))
	if _, _, err := l.ask(l.out, "tcp", "172.18.0.2:30010"); err != nil {
		l.Errorf("%s: a new connection after it: %v", how, err)
	}
}

// reload sends SIGHUP and waits until a message has been logged as often as times.
func (l *serviceLab) reload(message string, times int) {
	l.Helper()
	l.node.cmd.Process.Signal(unix.SIGHUP)
	await(l.T, message, func() bool { return strings.Count(l.node.output(), message) >= times })
}

// TestServicesDuplicateAddress gives the node's IPv6 address to another host while the node lacks
// it. IPv4 must still follow Services, the log must name the cause, and routes must have their
// source when the address is the node's again, also after a moment.
func TestServicesDuplicateAddress(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		l.n1.sysctl("net/ipv6/conf/lan/accept_dad", "1")
		l.start(served("web", "tcp", 10, "", "pa"))
		requireOutput := func(h *peerHost, want string, args ...string) {
			t.Helper()
			eventually(t, want, func() error {
				if out := l.node.output(); len(args) == 0 && !strings.Contains(out, want) || len(args) > 0 &&
					!strings.Contains(h.run("ip", args...), want) {
					return errNotYet
				}
				return nil
			})
		}
		l.n1.ip("address del fd18::2/64 dev lan", "address add fd18::2/64 dev lan nodad")
		requireOutput(l.n1, "src fd18::2", "-6", "route", "show", "table", "7091")
		l.n1.ip("address del fd18::2/64 dev lan")
		requireOutput(nil, "services.addresses[1]: fd18::2 is not an address of this machine")
		l.out.ip("address add fd18::2/64 dev lan nodad")
		l.n1.ip("address add fd18::2/64 dev lan")
		requireOutput(l.n1, "dadfailed", "-6", "address", "show", "dev", "lan")
		l.write(served("web", "tcp", 10, "", "pc"), served("more", "tcp", 15, "", "pa"))
		l.node.cmd.Process.Signal(unix.SIGHUP)
		requireOutput(nil, "configuration applied")
		for to, want := range map[string]string{"172.18.0.2:30010": "pc", "172.18.0.2:30015": "pa"} {
			if who, _, err := l.ask(l.out, "tcp", to); err != nil || who != want {
				t.Errorf("%s: %s answers, want %s: %v", to, who, want, err)
			}
		}
		l.out.ip("address del fd18::2/64 dev lan")
		l.n1.ip("address del fd18::2/64 dev lan", "address add fd18::2/64 dev lan nodad")
		requireOutput(l.n1, "src fd18::2", "-6", "route", "show", "table", "7091")
	}, programs("ip", "ip"))
}
