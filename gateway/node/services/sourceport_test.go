package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
	"culvert/nat"
)

// dialFrom asks from a port of the node's own.
func (n *node) dialFrom(port int, to string) *stream {
	n.Helper()
	// although an earlier run's connection is in TIME-WAIT
	again := func(_, _ string, conn syscall.RawConn) (err error) {
		e := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return errors.Join(e, err)
	}
	d := net.Dialer{Timeout: patient, LocalAddr: &net.TCPAddr{IP: net.IPv4(172, 18, 0, 2), Port: port}, Control: again}
	conn, err := d.Dial("tcp", to)
	need.NoError(n, err)
	n.Cleanup(func() { conn.Close() })
	s := &stream{Conn: conn}
	s.who, err = s.hear()
	need.NoError(n, err)
	return s
}

// A connection keeps its privileged port, whatever becomes of the endpoint's port or of the
// Service, and the kernel leads the endpoint's packets to the device for as long as that takes.
func TestSourcePortKept(t *testing.T) {
	n := newNode(t)
	s := n.start(n.config())
	for _, pod := range podAddresses {
		n.serve("8081", net.JoinHostPort(pod[0], "8081"))
	}
	leads := func(want string) error { // from these ports
		for _, rule := range kernelRules(t) {
			if _, ends, ok := strings.Cut(rule, " sport "); ok && !strings.HasPrefix(ends, want+" ") {
				return fmt.Errorf("%s, want %s", rule, want)
			}
		}
		return nil
	}
	need.NoError(t, leads("8080-8080"))
	first := n.dialFrom(700, "10.96.0.10:80")
	n.requireAnswer("at first", first, "still")
	need.NoError(t, s.Apply(context.Background(), n.config("PA", `{address: 10.244.1.5, port: 8081, node: n1}`)))
	second := n.dialFrom(701, "10.96.0.10:80")
	n.requireAnswer("with another port", first, "still")
	n.requireAnswer("with another port", second, "still")
	if second.who != "8081" {
		t.Errorf("%s answers", second.who)
	}
	kept := 0
	for at, more := nat.Cursor(0), true; more; {
		var list []nat.ConnInfo
		list, at, more = s.engine.Connections(at, &nat.ConnFilter{}, s.now(), nil)
		for i := range list {
			x := &list[i]
			if port := x.Original.SourcePort(); port < 1024 && port == x.Reply.DestinationPort() {
				kept++
			}
		}
	}
	if kept != 2 {
		t.Errorf("%d connections keep their ports", kept)
	}
	without := n.config(serverFile[strings.Index(serverFile, "serve:"):], "serve: []\n")
	need.NoError(t, s.Apply(context.Background(), without))
	n.requireAnswer("without the Service", first, "still")
	n.requireAnswer("without the Service", second, "still")
	need.NoError(t, leads("8080-8081"))
	need.NoError(t, first.end())
	need.NoError(t, second.end())
	need.Eventually(t, patient, "no rule for what is over", func() error {
		if err := s.Apply(context.Background(), without); err != nil {
			return err
		}
		return leads("none")
	})
}
