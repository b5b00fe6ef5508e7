//go:build !nokube

package services

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const (
	macLength = 6
	// What neighbours are told, they are told as often as MetalLB does: at once, and each 1.1 s for five seconds. A kernel believes what
	// differs from a younger entry of its own only a second later.
	heraldCalls    = 5
	heraldInterval = 1100 * time.Millisecond
)

// A herald tells neighbours unasked that an address is here: those who know it at another node send there until they ask again. It needs
// CAP_NET_RAW; without, there is none.
type herald struct {
	log  logrus.FieldLogger
	wake chan struct{}
	sent atomic.Uint64 // packets

	// Of run alone.
	arp     int  // socket; -1: none
	nd      int  // likewise
	refused bool // which is logged once

	mu  sync.Mutex
	due map[announcement]*calling // +checklocks:mu
}

// A calling is what is left to tell of an announcement.
type calling struct {
	mac  net.HardwareAddr
	left int
}

func newHerald(log logrus.FieldLogger) *herald {
	return &herald{log: log, wake: make(chan struct{}, 1), arp: -1, nd: -1, due: map[announcement]*calling{}}
}

// call tells of an announcement from here on.
func (h *herald) call(at announcement, mac net.HardwareAddr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.due[at] = &calling{mac, heraldCalls}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// forget tells of an announcement no more.
func (h *herald) forget(at announcement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.due, at)
}

// run tells until ctx is done.
func (h *herald) run(ctx context.Context) {
	defer h.close()
	again := time.NewTimer(heraldInterval)
	defer again.Stop()
	for {
		fresh := false
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
			fresh = true
		case <-again.C:
		}
		more, err := h.tell(fresh)
		h.warn(err)
		if more {
			again.Reset(heraldInterval)
		}
	}
}

// warn logs the first error.
func (h *herald) warn(err error) {
	if err == nil || h.refused {
		return
	}
	h.refused = true
	log := h.log.WithError(err)
	if errors.Is(err, unix.EPERM) {
		log = log.WithField("remedy", "give culvert node CAP_NET_RAW")
	}
	log.Warn("neighbours are not told that an address is here: those that know it elsewhere notice later")
}

// tell tells of all announcements that are due once, or of those alone that were never told of. It reports whether there is more, and returns
// the first error.
func (h *herald) tell(fresh bool) (more bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at, c := range h.due {
		if fresh && c.left < heraldCalls {
			more = true
			continue
		}
		if failed := h.send(at, c.mac); err == nil {
			err = failed
		}
		if c.left--; c.left == 0 {
			delete(h.due, at)
		}
		more = more || c.left > 0
	}
	return more, err
}

func (h *herald) send(at announcement, mac net.HardwareAddr) error {
	if err := h.open(at.address.Is4()); err != nil {
		return err
	}
	if at.address.Is6() {
		to := &unix.SockaddrInet6{ZoneId: uint32(at.link), Addr: netip.IPv6LinkLocalAllNodes().As16()}
		return h.sendTo(h.nd, at, advertisement(at.address, mac), to)
	}
	to := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ARP), Ifindex: at.link, Halen: macLength, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if err := h.sendTo(h.arp, at, gratuitous(arpRequest, at.address, mac), to); err != nil {
		return err
	}
	return h.sendTo(h.arp, at, gratuitous(arpReply, at.address, mac), to)
}

func (h *herald) sendTo(socket int, at announcement, packet []byte, to unix.Sockaddr) error {
	if err := unix.Sendto(socket, packet, unix.MSG_DONTWAIT, to); err != nil {
		return fmt.Errorf("services: tell of %s: %w", at.address, err)
	}
	h.sent.Add(1)
	return nil
}

// open makes the socket of a family, unless it is there.
func (h *herald) open(v4 bool) (err error) {
	switch {
	case v4 && h.arp < 0:
		if h.arp, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil { // protocol 0 receives nothing
			h.arp = -1
			return fmt.Errorf("services: open a packet socket: %w", err)
		}
	case !v4 && h.nd < 0:
		if h.nd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6); err == nil {
			var none unix.ICMPv6Filter
			for i := range none.Data {
				none.Data[i] = ^uint32(0) // RFC 3542, Section 3.2: a bit that is set blocks
			}
			err = errors.Join(unix.SetsockoptICMPv6Filter(h.nd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &none),
				unix.SetsockoptInt(h.nd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255), // RFC 4861, Section 7.1.2
				unix.SetsockoptInt(h.nd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0))
		}
		if err != nil {
			if h.nd >= 0 {
				unix.Close(h.nd)
			}
			h.nd = -1
			return fmt.Errorf("services: open a socket of ICMPv6: %w", err)
		}
	}
	return nil
}

func (h *herald) close() {
	for _, socket := range []*int{&h.arp, &h.nd} {
		if *socket >= 0 {
			unix.Close(*socket)
			*socket = -1
		}
	}
}

const (
	arpRequest = 1
	arpReply   = 2
)

// gratuitous returns an ARP packet (RFC 826) of both forms that RFC 5944, Section 4.6, has for an address that has moved: whoever heeds one
// alone heeds it.
func gratuitous(operation uint16, a netip.Addr, mac net.HardwareAddr) []byte {
	b := []byte{7: byte(operation), 27: 0}
	copy(b, []byte{0, 1, 8, 0, macLength, 4})
	for _, at := range []int{8, 18} { // sender and target, whose MAC address matters in a reply only
		copy(b[at:], mac)
		copy(b[at+macLength:], a.AsSlice())
	}
	return b
}

// advertisement returns an unsolicited neighbour advertisement that replaces what neighbours know (RFC 4861, Section 7.2.6): override, with
// the target's link-layer address. The kernel adds the checksum.
func advertisement(a netip.Addr, mac net.HardwareAddr) []byte {
	const override, targetLinkLayer = 0x20, 2
	b := append([]byte{136, 0, 0, 0, override, 0, 0, 0}, a.AsSlice()...)
	return append(append(b, targetLinkLayer, 1), mac...)
}

func networkOrder(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
