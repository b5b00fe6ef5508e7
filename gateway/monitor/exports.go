package monitor

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/gateway/exports"
)

// exportsRate limits the datagrams about exports that are handled in a second: more than a peer
// sends, and too few to keep a gateway busy.
const exportsRate = 400

// exchange carries the datagrams of an exports.Exchange.
type exchange struct {
	ends
	limit *rate.Limiter
	take  atomic.Pointer[Take]
}

// Take handles a datagram of the peer about exports. It returns false if the datagram is useless.
// It must not block, and packets wait for it.
type Take func(datagram []byte) bool

// Exchange passes the peer's datagrams about exports to take.
func (m *Monitor) Exchange(take Take) { m.exchange.take.Store(&take) }

// Tell sends the peer a datagram about exports, unless this gateway may not speak to the peer on
// its own account.
func (m *Monitor) Tell(datagram []byte) {
	if _, peer := m.reaches(); !peer {
		return
	}
	m.path.Send(m.exchange.packet(exports.UDPPort, exports.UDPPort, datagram))
}

// Exports implements path.Local.
func (m *Monitor) Exports(packet []byte) (ok, mine bool) {
	return m.exchange.receive(packet, time.Now())
}

// IsExports reports whether a packet to the tunnel address is about exports.
func (m *Monitor) IsExports(packet []byte) bool {
	_, ok := m.exchange.mine(packet)
	return ok
}

func (x *exchange) mine(packet []byte) (header.UDP, bool) {
	udp, ok := x.datagram(packet)
	return udp, ok && x.take.Load() != nil && udp.DestinationPort() == exports.UDPPort
}

func (x *exchange) receive(packet []byte, now time.Time) (ok, mine bool) {
	udp, ok := x.mine(packet)
	if !ok {
		return false, false
	}
	payload, ok := x.payload(udp)
	return ok && x.limit.AllowN(now, 1) && (*x.take.Load())(payload), true
}
