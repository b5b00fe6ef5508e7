package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"culvert/integration/fresh"
	"culvert/integration/lab"
	"culvert/integration/need"
)

// startTimeout is how long a program may take to become useful, on a very busy machine.
const startTimeout = time.Minute

// A peerHost is a network namespace, known by its name to ip(8).
type peerHost struct {
	t    *testing.T
	name string
	ns   netns.NsHandle

	family   peerFamily    // into which addresses in its commands are translated
	group    *controlGroup // in which programs are started; nil = this process's
	confined bool          // programs have a read-only root and cannot gain a capability
	volume   string        // what confined programs see at kubeState; "" = nothing
	refused  func() error  // puts a filter before the programs' system calls; nil = none
}

func newPeerHost(t *testing.T, name string) *peerHost { return newPeerHostOf(t, peerFamily{}, name) }

// newPeerHostOf makes a host of a family.
func newPeerHostOf(t *testing.T, f peerFamily, name string) *peerHost {
	t.Helper()
	h := &peerHost{t: t, name: name, family: f}
	err := onPeerThread(func() (err error) {
		if h.ns, err = netns.NewNamed(name); err != nil {
			return err
		}
		return fresh.Network()
	})
	if err != nil {
		t.Fatalf("network namespace %s: %v", name, err)
	}
	t.Cleanup(func() {
		h.ns.Close()
		netns.DeleteNamed(name)
	})
	if f != (peerFamily{}) {
		h.acceptAddresses()
	}
	h.ip("link set lo up")
	return h
}

// acceptAddresses makes IPv6 addresses of the host usable at once.
func (h *peerHost) acceptAddresses() {
	h.t.Helper()
	for _, links := range []string{"all", "default"} {
		h.sysctl("net/ipv6/conf/"+links+"/accept_dad", "0")
	}
}

// onPeerThread calls fn on a thread of its own, which may change its namespaces and then ends.
func onPeerThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends
		done <- fn()
	}()
	return <-done
}

// do calls fn on a thread inside the host. Everything that fn opens and starts stays there.
func (h *peerHost) do(fn func() error) error {
	return onPeerThread(func() error {
		if err := netns.Set(h.ns); err != nil {
			return fmt.Errorf("enter %s: %w", h.name, err)
		}
		return fn()
	})
}

// ip runs ip(8) commands inside the host, one a line.
func (h *peerHost) ip(commands ...string) {
	h.t.Helper()
	h.feed(strings.Join(commands, "\n"), "ip", "-batch", "-")
}

// router makes the host forward packets.
func (h *peerHost) router() {
	h.t.Helper()
	h.sysctl("net/ipv4/ip_forward", "1")
	if h.family != (peerFamily{}) {
		h.sysctl("net/ipv6/conf/all/forwarding", "1")
	}
}

func (h *peerHost) sysctl(name, value string) {
	h.t.Helper()
	need.NoError(h.t, h.do(func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) }))
}

// run runs a program inside the host and returns its standard output.
func (h *peerHost) run(program string, args ...string) string {
	h.t.Helper()
	return h.feed("", program, args...)
}

func (h *peerHost) feed(input, program string, args ...string) string {
	h.t.Helper()
	out, err := h.try(input, program, args...)
	need.NoError(h.t, err)
	return out
}

// try is run for programs that may fail.
func (h *peerHost) try(input, program string, args ...string) (string, error) {
	var out, diagnostics bytes.Buffer
	input = h.family.of(input)
	cmd := need.Command(h.t, program, h.family.all(args)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &diagnostics
	if err := h.do(cmd.Run); err != nil {
		return "", fmt.Errorf("%s: %s: %w\n%s%s%s", h.name, strings.Join(cmd.Args, " "), err, input, out.String(),
			diagnostics.String())
	}
	return out.String(), nil
}

// A peerProcess is a program that runs inside a host until the end of the test.
type peerProcess struct {
	cmd   *exec.Cmd
	log   string        // file with its standard output and error
	ended chan struct{} // closed once it has ended
}

// start starts a program inside the host; credential is nil for root. Its log is
// shown if the test fails.
func (h *peerHost) start(credential *syscall.Credential, program string, args ...string) *peerProcess {
	h.t.Helper()
	p := &peerProcess{cmd: need.Command(h.t, program, h.family.all(args)...), ended: make(chan struct{})}
	p.log = filepath.Join(h.t.TempDir(), filepath.Base(program)+".log")
	log, err := os.Create(p.log)
	need.NoError(h.t, err)
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	start := p.cmd.Start
	if h.group != nil {
		start = func() error { return h.group.start(p.cmd) }
	}
	err = h.do(func() error {
		if h.confined {
			if err := confine(h.volume); err != nil {
				return err
			}
		}
		if h.refused != nil {
			if err := h.refused(); err != nil {
				return err
			}
		}
		return start()
	})
	if err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
	go func() {
		p.cmd.Wait()
		close(p.ended)
	}()
	h.t.Cleanup(func() {
		p.stop()
		if h.t.Failed() {
			h.t.Logf(programOutput+"%s: %s:\n%s", h.name, strings.Join(p.cmd.Args, " "), p.output())
		}
	})
	return p
}

// stop sends SIGTERM to the process, and kills it if it hangs.
func (p *peerProcess) stop() {
	p.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(startTimeout):
		p.cmd.Process.Kill()
		<-p.ended
	}
}

// output returns what the process has written; whole lines only while it runs.
func (p *peerProcess) output() string {
	var text []byte
	lines, err := lab.ReadLines(p.log)
	if p.running() != nil {
		text, err = os.ReadFile(p.log)
		lines = string(text)
	}
	if err != nil {
		return err.Error()
	}
	return lines
}

// running returns an error once the process has ended.
func (p *peerProcess) running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %s", p.cmd.Path, p.cmd.ProcessState)
	default:
		return nil
	}
}

// eventually calls condition until it holds or startTimeout has passed.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	eventuallyWithin(t, startTimeout, what, condition)
}

// eventuallyWithin is eventually with a limit of its own.
func eventuallyWithin(t *testing.T, limit time.Duration, what string, condition func() error) {
	t.Helper()
	need.Eventually(t, limit, what, condition)
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventually(t, what, func() error {
		if holds() {
			return nil
		}
		return errNotYet
	})
}

// awaitOutput waits until a process has printed a text. It must not end before.
func (p *peerProcess) awaitOutput(t *testing.T, text string) {
	t.Helper()
	eventually(t, "output of "+strings.Join(p.cmd.Args, " "), func() error {
		if out := p.output(); !strings.Contains(out, text) {
			return errors.Join(fmt.Errorf("no %q in\n%s", text, out), p.running())
		}
		return nil
	})
}

// join connects two hosts by a veth pair named after the host at the other end.
func join(a, b *peerHost, addressA, addressB string, mtu int) {
	a.t.Helper()
	a.ip(fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d netns %s", b.name, mtu, a.name, mtu, b.name))
	for _, end := range []struct {
		h           *peerHost
		dev, prefix string
	}{{a, b.name, addressA}, {b, a.name, addressB}} {
		if end.prefix != "" {
			add := end.h.family.of(fmt.Sprintf("address add %s dev %s", end.prefix, end.dev))
			// else it is tentative until Linux has noted the link's carrier, a while after "up",
			// even with accept_dad 0
			if strings.Contains(add, "::") {
				add += " nodad"
			}
			end.h.ip(add)
		}
		end.h.ip("link set " + end.dev + " up")
	}
}

// dial, listen and listenPacket are those of package net, inside the host.
func (h *peerHost) dial(network, address string) (conn net.Conn, err error) {
	return h.dialWithin(startTimeout, network, address)
}

// dialWithin is dial with another limit.
func (h *peerHost) dialWithin(limit time.Duration, network, address string) (conn net.Conn, err error) {
	err = h.do(func() error {
		conn, err = (&net.Dialer{Timeout: limit}).Dial(network, h.family.of(address))
		return err
	})
	return conn, err
}

func (h *peerHost) dialContext(_ context.Context, network, address string) (net.Conn, error) {
	return h.dial(network, address)
}

func (h *peerHost) listen(network, address string) (l net.Listener, err error) {
	err = h.do(func() error {
		l, err = net.Listen(network, h.family.of(address))
		return err
	})
	return l, err
}

func (h *peerHost) listenPacket(network, address string) (c net.PacketConn, err error) {
	err = h.do(func() error {
		c, err = net.ListenPacket(network, h.family.of(address))
		return err
	})
	return c, err
}

// accept listens at an address inside the host until the end of the test. It calls handle in a
// goroutine for each connection, and then closes the connection.
func (h *peerHost) accept(t testing.TB, network, address string, handle func(net.Conn)) {
	t.Helper()
	h.acceptBehind(t, network, address, func(l net.Listener) net.Listener { return l }, handle)
}

// acceptHeaded is accept over TCP for connections that must begin with a PROXY protocol header.
func (h *peerHost) acceptHeaded(t testing.TB, address string, handle func(net.Conn)) {
	t.Helper()
	h.acceptBehind(t, "tcp", address, func(l net.Listener) net.Listener {
		return &proxyproto.Listener{Listener: l, ReadHeaderTimeout: startTimeout,
			ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
				return proxyproto.REQUIRE, nil
			}}
	}, handle)
}

// acceptBehind is accept on what wrap makes of the listener.
func (h *peerHost) acceptBehind(t testing.TB, network, address string, wrap func(net.Listener) net.Listener,
	handle func(net.Conn)) {
	t.Helper()
	l, err := h.listen(network, address)
	need.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func(l net.Listener) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}(wrap(l))
}

// echo returns everything that a connection sends.
func echo(conn net.Conn) { io.Copy(conn, conn) }

var errNotYet = errors.New("not yet")
