//go:build !nokube

package announce

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
	// Neighbours are updated as often as by MetalLB: at once, and every 1.1 s for five seconds. A
	// kernel accepts a change only one second after it last updated the entry.
	garpRepeats  = 5
	garpInterval = 1100 * time.Millisecond
)

// A garpSender sends gratuitous ARP and unsolicited neighbour advertisements for announced
// addresses. Without them, neighbours that know an address at another node keep sending there until
// they ask again. It needs CAP_NET_RAW; without, it sends nothing.
type garpSender struct {
	log  logrus.FieldLogger
	wake chan struct{}
	sent atomic.Uint64 // packets

	// Used only by run.
	arp     int  // socket; -1: none
	nd      int  // likewise
	refused bool // logged once

	mu  sync.Mutex
	due map[announcement]*calling // +checklocks:mu
}

// A calling is what remains to be sent for an announcement.
type calling struct {
	mac  net.HardwareAddr
	left int
}

func newGARPSender(log logrus.FieldLogger) *garpSender {
	return &garpSender{log: log, wake: make(chan struct{}, 1), arp: -1, nd: -1, due: map[announcement]*calling{}}
}

// call starts sending for an announcement.
func (h *garpSender) call(at announcement, mac net.HardwareAddr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.due[at] = &calling{mac, garpRepeats}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// forget stops sending for an announcement.
func (h *garpSender) forget(at announcement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.due, at)
}

// run sends until ctx is done.
func (h *garpSender) run(ctx context.Context) {
	defer h.close()
	again := time.NewTimer(garpInterval)
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
		more, err := h.sendDue(fresh)
		h.warn(err)
		if more {
			again.Reset(garpInterval)
		}
	}
}

// warn logs the first error.
func (h *garpSender) warn(err error) {
	if err == nil || h.refused {
		return
	}
	h.refused = true
	log := h.log.WithError(err)
	if errors.Is(err, unix.EPERM) {
		log = log.WithField("remedy", "give culvert node CAP_NET_RAW")
	}
	log.Warn("neighbours cannot be told that an address is here: they notice when their entries expire")
}

// sendDue sends once for every announcement that is due, or, if fresh, only for those not sent
// before. It reports whether more remains, and returns the first error.
func (h *garpSender) sendDue(fresh bool) (more bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at, c := range h.due {
		if fresh && c.left < garpRepeats {
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

func (h *garpSender) send(at announcement, mac net.HardwareAddr) error {
	if err := h.open(at.address.Is4()); err != nil {
		return err
	}
	if at.address.Is6() {
		to := &unix.SockaddrInet6{ZoneId: uint32(at.link), Addr: netip.IPv6LinkLocalAllNodes().As16()}
		return h.sendTo(h.nd, at, advertisement(at.address, mac), to)
	}
	to := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ARP), Ifindex: at.link, Halen: macLength,
		Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if err := h.sendTo(h.arp, at, gratuitous(arpRequest, at.address, mac), to); err != nil {
		return err
	}
	return h.sendTo(h.arp, at, gratuitous(arpReply, at.address, mac), to)
}

func (h *garpSender) sendTo(socket int, at announcement, packet []byte, to unix.Sockaddr) error {
	if err := unix.Sendto(socket, packet, unix.MSG_DONTWAIT, to); err != nil {
		return fmt.Errorf("services: tell of %s: %w", at.address, err)
	}
	h.sent.Add(1)
	return nil
}

// open makes the socket of a family if necessary.
func (h *garpSender) open(v4 bool) (err error) {
	switch {
	case v4 && h.arp < 0:
		// protocol 0 receives nothing
		if h.arp, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			h.arp = -1
			return fmt.Errorf("services: open a packet socket: %w", err)
		}
	case !v4 && h.nd < 0:
		if h.nd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6); err == nil {
			var none unix.ICMPv6Filter
			for i := range none.Data {
				none.Data[i] = ^uint32(0) // RFC 3542, Section 3.2: a set bit blocks
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

func (h *garpSender) close() {
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

// gratuitous returns an ARP packet (RFC 826), request or reply, as in RFC 5944, Section 4.6, for an
// address that has moved; some hosts accept only one of the two forms.
func gratuitous(operation uint16, a netip.Addr, mac net.HardwareAddr) []byte {
	b := []byte{7: byte(operation), 27: 0}
	copy(b, []byte{0, 1, 8, 0, macLength, 4})
	for _, at := range []int{8, 18} { // sender and target; the target's MAC address matters only in a reply
		copy(b[at:], mac)
		copy(b[at+macLength:], a.AsSlice())
	}
	return b
}

// advertisement returns an unsolicited neighbour advertisement that replaces neighbours' entries
// (RFC 4861, Section 7.2.6): override, with the target's link-layer address. The kernel adds the
// checksum.
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
