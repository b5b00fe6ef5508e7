package nat

import "time"

// A state selects a connection's timeout.
type state uint8

const (
	stateSynSent state = iota
	stateSynReceived
	stateEstablished
	stateFinWait
	stateCloseWait
	stateLastAck
	stateTimeWait
	stateClosed
	stateUDP
	stateUDPStream
	stateICMP
	stateSCTPOpening
	stateSCTP
	stateSCTPClosing
	stateOther
	states
)

var stateNames = [states]string{"syn-sent", "syn-received", "established", "fin-wait", "close-wait", "last-ack",
	"time-wait", "closed",
	"udp", "udp-stream", "icmp", "sctp-opening", "sctp", "sctp-closing", "other"}

func (s state) String() string { return stateNames[s] }

const (
	// shortUnsettled is how long unsettled connections live when the table is under pressure.
	shortUnsettled = 30 * time.Second
	// streamPackets is how many packets in both directions make a UDP connection a stream: more
	// than a question and its answer.
	streamPackets = 4
)

// compile returns the timeouts by state.
func (t *Timeouts) compile() [states]time.Duration {
	all := [states]time.Duration{
		t.TCPSynSent, t.TCPSynReceived, t.TCPEstablished, t.TCPFinWait, t.TCPCloseWait, t.TCPLastAck,
		t.TCPTimeWait, t.TCPClosed,
		t.UDP, t.UDPStream, t.ICMP, t.SCTPOpening, t.SCTP, t.SCTPClosing, t.Other,
	}
	for s, d := range [states]time.Duration{
		120 * time.Second, 60 * time.Second, 120 * time.Hour, 120 * time.Second, time.Hour, 30 * time.Second,
		120 * time.Second, 10 * time.Second,
		120 * time.Second, 120 * time.Second, 60 * time.Second, 30 * time.Second, 120 * time.Hour, 10 * time.Second,
		600 * time.Second,
	} {
		if all[s] == 0 {
			all[s] = d
		}
	}
	return all
}

// rankOf returns the rank of a replied connection. An answer alone settles nothing: it goes to
// whatever address a sender has forged. A handshake settles a connection, and so does a stream of
// UDP. A ping never does (the kernel likewise never sets IPS_ASSURED in nf_conntrack_proto_icmp.c),
// nor a connection that was reset.
func rankOf(s state) rank {
	switch s {
	case stateSynSent, stateSynReceived, stateClosed, stateUDP, stateICMP, stateSCTPOpening:
		return rankUnsettled
	case stateFinWait, stateLastAck, stateTimeWait, stateSCTPClosing:
		return rankClosing
	case stateCloseWait:
		return rankHalfClosed
	}
	return rankSettled
}

// lifetime is how long c may be idle.
func (s *snapshot) lifetime(c *conn, pressed bool) time.Duration {
	d := s.timeouts[c.state]
	if c.has(flagReplied) && rankOf(c.state) != rankUnsettled {
		return d
	}
	if c.state == stateEstablished {
		d = s.timeouts[stateSynSent] // picked up in mid-stream, only one side heard
	}
	if pressed {
		d = min(d, shortUnsettled)
	}
	return d
}

const (
	wheelSlots = 1 << 10
	wheelTick  = time.Second
)

// A wheel is a hashed timing wheel (Varghese and Lauck, 1987). Packets only store their arrival
// time; a connection whose slot comes up early is moved to a later slot.
type wheel struct {
	tick    int64 // the current slot
	due     Time  // when the current slot ends; nothing to do before
	started bool
	slots   [wheelSlots]uint32
}

// start begins with the slot of now, if the wheel has not started.
func (w *wheel) start(now Time) {
	if !w.started {
		w.started, w.tick = true, int64(now)/int64(wheelTick)
	}
}

// arm puts a connection into the slot of its deadline, or the furthest slot. Preconditions: it is
// in no slot.
func (w *wheel) arm(tb *table, number uint32, deadline Time) {
	tick := int64(deadline)/int64(wheelTick) + 1
	tick = max(min(tick, w.tick+wheelSlots-1), w.tick+1)
	slot := uint32(tick % wheelSlots)
	head, at := &w.slots[slot], tb.cold(number)
	at.wheelNext, at.wheelPrevious = *head, slotBit|slot
	if *head != 0 {
		tb.cold(*head).wheelPrevious = number
	}
	*head = number
}

// slotBit distinguishes a slot from a connection's number.
const slotBit = 1 << 31

// unlink removes a connection from its slot, if it is in one.
func (w *wheel) unlink(tb *table, number uint32) {
	at := tb.cold(number)
	switch {
	case at.wheelPrevious == 0:
		return
	case at.wheelPrevious&slotBit != 0:
		w.slots[at.wheelPrevious&^slotBit] = at.wheelNext
	default:
		tb.cold(at.wheelPrevious).wheelNext = at.wheelNext
	}
	if at.wheelNext != 0 {
		tb.cold(at.wheelNext).wheelPrevious = at.wheelPrevious
	}
	at.wheelNext, at.wheelPrevious = 0, 0
}

// expire checks up to budget connections whose slot has come up, and returns the rest of the
// budget: 0 if there may be more.
func (e *Engine) expire(now Time, budget int) int {
	tb, w := &e.table, &e.table.wheel
	if now < w.due {
		return budget
	}
	w.start(now)
	target := int64(now) / int64(wheelTick)
	if target-w.tick > wheelSlots {
		w.tick = target - wheelSlots // each slot comes up once
	}
	for w.tick < target {
		number := w.slots[w.tick%wheelSlots]
		if number == 0 {
			w.tick++
			continue
		}
		if budget == 0 {
			return 0
		}
		budget--
		c := tb.at(number)
		deadline := e.seen(c, now).Add(e.snapshot.lifetime(c, e.pressed()))
		if deadline <= now {
			e.end(c, number, endExpired, now)
			continue
		}
		w.unlink(tb, number)
		w.arm(tb, number, deadline)
	}
	w.due = Time(target+1) * Time(wheelTick)
	return budget
}

// pressed reports whether the table is so full that unsettled connections live only shortUnsettled.
func (e *Engine) pressed() bool {
	return e.table.used*pressureDenominator > e.snapshot.maxEntries*pressureNumerator
}

// reschedule moves c's timer if its new state may have a shorter lifetime.
func (e *Engine) reschedule(c *conn, number uint32, now Time) {
	e.table.wheel.unlink(&e.table, number)
	e.table.wheel.arm(&e.table, number, now.Add(e.snapshot.lifetime(c, e.pressed())))
}
