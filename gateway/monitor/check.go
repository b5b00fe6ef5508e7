package monitor

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/gateway/config"
	"culvert/gateway/wg"
	"culvert/gateway/wgkey"
	"culvert/geneve/udp"
)

// CheckState is the connection check's view of the connection to the peer.
type CheckState uint8

// States of the connection check.
const (
	CheckOff        CheckState = iota // no ping is sent
	CheckConnecting                   // none has been answered yet
	CheckConnected
	CheckError // none has been answered for too long
)

func (s CheckState) String() string {
	return [...]string{"off", "connecting", "connected", "error"}[s]
}

// CheckStatus is the result of the connection check.
type CheckStatus struct {
	wg.Pings // RTT is 0 unless CheckConnected
	State    CheckState
	Measured time.Time // when RTT was; zero unless CheckConnected
	Answered uint64    // pings of ours that the peer has answered
	Asked    uint64    // pings of the peer that we have answered
	// RTTs are the numbers of answers in each bucket of RTTBounds; the last one counts slower
	// answers. RTTSum is the sum of all round-trip times.
	RTTs   [len(RTTBounds) + 1]uint64
	RTTSum time.Duration
}

// RTTBounds are the buckets of Liqo's gateway, so that the histograms of both can be added.
var RTTBounds = [...]time.Duration{
	10000 * time.Microsecond, 15000 * time.Microsecond, 20000 * time.Microsecond, 36250 * time.Microsecond,
	52500 * time.Microsecond,
	68750 * time.Microsecond, 85000 * time.Microsecond, 101250 * time.Microsecond, 117500 * time.Microsecond,
	133750 * time.Microsecond,
	150000 * time.Microsecond, 178380 * time.Microsecond, 212129 * time.Microsecond, 252264 * time.Microsecond,
	299992 * time.Microsecond,
}

// checkMessage is a datagram of Liqo's connection check, a JSON object. The answer to a ping is the
// same object with another type.
type checkMessage struct {
	ClusterID string          `json:"clusterID"` // of the receiver of the ping, as its sender knows it
	Type      string          `json:"msgType"`
	Stamp     json.RawMessage `json:"timeStamp"` // RFC 3339, by the clock of the sender of the ping

	at time.Time // Stamp
}

const (
	checkPing = "PING"
	checkPong = "PONG"

	maxCheckMessage = 1024 // bytes

	// checkRate limits the messages that are handled in a second: more than two gateways exchange,
	// and too few to keep one busy.
	checkRate  = 100
	checkBurst = 200
)

// parseCheck returns false for anything that is not a message of the check.
func parseCheck(b []byte) (m checkMessage, ok bool) {
	if len(b) > maxCheckMessage || json.Unmarshal(b, &m) != nil || m.Type != checkPing && m.Type != checkPong {
		return m, false
	}
	return m, len(m.Stamp) > 0 && json.Unmarshal(m.Stamp, &m.at) == nil && !m.at.IsZero()
}

// check is the connection check: UDP pings between the tunnel addresses of both gateways. It
// depends neither on the peer's clock nor on steps of ours.
type check struct {
	ends
	largest int // message, bytes
	limit   *rate.Limiter
	begun   chan struct{} // begin was called

	mu      sync.Mutex
	config  config.ConnectionCheck // +checklocks:mu
	cluster string                 // +checklocks:mu
	// when pings without an answer were sent, oldest first; Threshold at most
	waiting []time.Time // +checklocks:mu
	// no ping is sent, and nothing is judged
	held bool // +checklocks:mu
	// time of the last answer, or of the start
	heard time.Time // +checklocks:mu
	// when the next ping is due
	due    time.Time   // +checklocks:mu
	recent udp.Recent  // +checklocks:mu
	status CheckStatus // +checklocks:mu
}

func newCheck(own, peer netip.Addr, mtu config.TunnelMTU) *check {
	return &check{
		ends: ends{own, peer}, largest: min(maxCheckMessage, int(mtu)-headersOfUDP),
		limit: rate.NewLimiter(checkRate, checkBurst),
		begun: make(chan struct{}, 1),
	}
}

// begin restarts the check with the settings of c.
func (c *check) begin(with *config.Config, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config, c.cluster, c.waiting, c.heard, c.due = with.ConnectionCheck, with.Peer, nil, now, now
	if c.config.Port == 0 {
		c.config.Port = config.LiqoConnectionCheck.Port
	}
	c.status.State, c.status.RTT, c.status.Measured = CheckOff, 0, time.Time{}
	c.recent.Forget(0)
	if c.config.Interval > 0 && with.WireGuard.PeerPublicKey != (wgkey.Key{}) {
		c.status.State = CheckConnecting
	}
	select {
	case c.begun <- struct{}{}:
	default:
	}
}

// hold stops the check where it is, or lets it go on.
func (c *check) hold(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == on {
		return
	}
	now := time.Now()
	c.held, c.waiting, c.heard, c.due = on, nil, now, now
	select {
	case c.begun <- struct{}{}:
	default:
	}
}

// found returns the results so far.
func (c *check) found() CheckStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Lost, s.Requests = c.recent.Lost()
	s.Sent, s.AllMissed = c.recent.Totals()
	if s.Answered > 0 {
		s.Missed = len(c.waiting)
	}
	return s
}

// tick returns the ping that is due, or nil, and when to call it again; the zero Time means never.
// No ping is sent to a peer that cannot be reached; it counts as one without an answer.
func (c *check) tick(now time.Time, reachable bool) (ping []byte, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status.State == CheckOff || c.held {
		return nil, time.Time{}
	}
	lost := c.heard.Add(time.Duration(c.config.Threshold) * c.config.Interval)
	if now.After(lost) {
		c.status.State, c.status.RTT, c.status.Measured = CheckError, 0, time.Time{}
	}
	if !now.Before(c.due) {
		c.due = now.Add(c.config.Interval)
		if reachable {
			ping = c.ping(now)
		}
	}
	if next = c.due; c.status.State != CheckError && lost.Before(next) {
		next = lost.Add(1) // the first moment after
	}
	return ping, next
}

// ping builds a ping and remembers it.
//
// Preconditions: c.mu is held.
// +checklocks:c.mu
func (c *check) ping(now time.Time) []byte {
	if len(c.waiting) == c.config.Threshold {
		c.waiting = slices.Delete(c.waiting, 0, 1)
	}
	c.waiting = append(c.waiting, now)
	c.recent.Request()
	stamp, _ := json.Marshal(now) // these two cannot fail before the year 10000
	b, _ := json.Marshal(checkMessage{ClusterID: c.cluster, Type: checkPing, Stamp: stamp})
	return c.packet(c.config.Port, c.config.Port, b)
}

// receive handles a packet to the check, one for which mine is true. It returns the answer to send,
// or nil, and false if the packet is not a message, is an unexpected answer, or exceeds checkRate.
func (c *check) receive(packet []byte, now time.Time) (answer []byte, ok bool) {
	udp := header.UDP(header.IPv4(packet).Payload())
	payload, ok := c.payload(udp)
	if !ok || !c.limit.AllowN(now, 1) {
		return nil, false
	}
	m, ok := parseCheck(payload)
	if !ok {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Type == checkPong {
		return nil, c.answered(&m, now)
	}
	m.Type = checkPong
	b, err := json.Marshal(m)
	if err != nil || len(b) > c.largest { // escaping makes it longer
		return nil, false
	}
	c.status.Asked++
	return c.packet(c.config.Port, udp.SourcePort(), b), true
}

// answered records an answer. An answer to an older ping is ignored after one to a newer ping.
//
// Preconditions: c.mu is held.
// +checklocks:c.mu
func (c *check) answered(m *checkMessage, now time.Time) bool {
	i := slices.IndexFunc(c.waiting, m.at.Equal) // in whatever time zone
	if i < 0 || m.ClusterID != c.cluster {
		return false
	}
	rtt := now.Sub(c.waiting[i])
	c.status.State, c.status.RTT, c.status.Measured = CheckConnected, rtt, now
	c.status.Answered++
	within, _ := slices.BinarySearch(RTTBounds[:], rtt)
	c.status.RTTs[within]++
	c.status.RTTSum += rtt
	c.heard = now
	c.recent.Answer(len(c.waiting) - 1 - i)
	c.waiting = slices.Delete(c.waiting, 0, i+1)
	return true
}

// mine reports whether a packet to the tunnel address is for the check: an unfragmented datagram
// from the peer's gateway itself to the check's port.
func (c *check) mine(packet []byte) bool {
	udp, ok := c.datagram(packet)
	if !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return udp.DestinationPort() == c.config.Port
}

// checkRemedy and liqoRemedy say what to do when no ping is answered. Faults of the tunnel itself
// have findings of their own.
const (
	checkRemedy = "if the tunnel works, the peer is no gateway of Liqo or culvert: set connectionCheck to false"
	liqoRemedy  = "if the tunnel works, does the pod of the peer's gateway run, and does no FirewallConfiguration drop UDP between the gateways?"
)

// CheckConnection pings the peer until ctx ends, and logs when its answer changes.
func (m *Monitor) CheckConnection(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	said := CheckConnecting
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.check.begun:
		case <-timer.C:
		}
		ping, next := m.check.tick(time.Now(), peerKnown(m.path.WG))
		if ping != nil {
			m.path.Send(ping)
		}
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		found := m.check.found()
		if found.State == said {
			continue
		}
		switch said = found.State; said {
		case CheckConnected:
			m.log.WithField("rtt", found.RTT).Info("the peer answers the connection check")
		case CheckError:
			remedy := checkRemedy
			if c, _ := m.current.Get(); c.Liqo {
				remedy = liqoRemedy
			}
			m.log.WithField("remedy", remedy).Warn("the peer does not answer the connection check")
		}
	}
}

// peerKnown reports whether the peer's address is known.
func peerKnown(device *wg.Device) bool {
	s, err := device.PeerStats()
	return err == nil && s.Endpoint != ""
}
