package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/fresh"
)

// Host is one network namespace of a lab.
type Host struct {
	Name    string     // such as rome/pod1
	Address netip.Addr // within its cluster

	// Get fetches a page from a program inside that has a network stack of its own; nil if all
	// programs use the kernel's.
	Get func(ctx context.Context, url string) (string, error)

	ns *os.File
}

// New makes a network namespace with its loopback up.
func New(name string, address netip.Addr) (*Host, error) {
	h := &Host{Name: name, Address: address}
	err := OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		if err := fresh.Network(); err != nil {
			return err
		}
		var err error
		h.ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err == nil {
		err = h.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(lo)
		})
	}
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, nil
}

// Close releases the namespace, which disappears when no process, socket or link needs it any more.
func (h *Host) Close() {
	if h.ns != nil {
		h.ns.Close()
	}
}

// Do calls fn on a thread inside the host's network namespace. Sockets made and processes started
// by fn stay there. Goroutines started by fn do not.
func (h *Host) Do(fn func() error) error {
	return OnThread(func() error {
		if err := unix.Setns(int(h.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", h.Name, err)
		}
		return fn()
	})
}

// OnThread calls fn on a separate thread, which ends with fn: no other goroutine gets its
// namespaces or capabilities.
func OnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock
		done <- fn()
	}()
	return <-done
}

// in calls fn inside a host, and returns what it made there.
func in[T any](h *Host, fn func() (T, error)) (made T, err error) {
	err = h.Do(func() error {
		made, err = fn()
		return err
	})
	return made, err
}

// Dial is net.Dialer.DialContext inside the host. The address must be numeric.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return in(h, func() (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, address) })
}

// DialFrom dials from a local address inside the host; the zero Addr leaves it to the kernel.
// prepare, if not nil, is called with the socket before it is bound. Sockets may share a local port
// if their peers differ; UDP sockets only a given port, because the kernel could choose the same
// for two sockets with one peer.
func (h *Host) DialFrom(ctx context.Context, network string, local, to netip.AddrPort, prepare func(fd int) error) (
	net.Conn, error) {
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		e := raw.Control(func(fd uintptr) {
			if !strings.HasPrefix(network, "udp") || local.Port() != 0 {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			}
			if err == nil && prepare != nil {
				err = prepare(int(fd))
			}
		})
		return errors.Join(e, err)
	}}
	if local.Addr().IsValid() && strings.HasPrefix(network, "udp") {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(local)
	} else if local.Addr().IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(local)
	}
	return in(h, func() (net.Conn, error) { return dialer.DialContext(ctx, network, to.String()) })
}

// ListenPacket is net.ListenPacket inside the host.
func (h *Host) ListenPacket(network, address string) (net.PacketConn, error) {
	return in(h, func() (net.PacketConn, error) { return net.ListenPacket(network, address) })
}

// ListenUDP opens a UDP socket at an address of the host; port 0 is the kernel's choice.
func (h *Host) ListenUDP(at netip.Addr, port uint16) (*net.UDPConn, error) {
	conn, err := h.ListenPacket(Over("udp", at), netip.AddrPortFrom(at, port).String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return conn.(*net.UDPConn), nil
}

// ListenTCP listens at the host's address; port 0 is the kernel's choice.
func (h *Host) ListenTCP(port uint16) (net.Listener, error) {
	l, err := in(h, func() (net.Listener, error) {
		return net.Listen(Over("tcp", h.Address), netip.AddrPortFrom(h.Address, port).String())
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return l, nil
}

// Sysctl sets values below /proc/sys/net of this thread's network namespace.
func Sysctl(settings map[string]string) error {
	for name, value := range settings {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// Over returns the network for an address, in the notation of package net: tcp4, tcp6.
func Over(kind string, a netip.Addr) string {
	if a.Is6() {
		return kind + "6"
	}
	return kind + "4"
}

// At is the same host with another of its addresses.
func (h *Host) At(a netip.Addr) *Host {
	other := *h
	other.Address = a
	return &other
}
