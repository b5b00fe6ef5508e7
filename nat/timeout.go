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

var stateNames = [states]string{"syn-sent", "syn-received", "established", "fin-wait", "close-wait", "last-ack", "time-wait", "closed",
	"udp", "udp-stream", "icmp", "sctp-opening", "sctp", "sctp-closing", "other"}

func (s state) String() string { return stateNames[s] }

// shortUnreplied is how long unreplied connections live when the table is under pressure.
const shortUnreplied = 30 * time.Second

// compile returns the timeouts by state.
func (t *Timeouts) compile() [states]time.Duration {
	all := [states]time.Duration{
		t.TCPSynSent, t.TCPSynReceived, t.TCPEstablished, t.TCPFinWait, t.TCPCloseWait, t.TCPLastAck, t.TCPTimeWait, t.TCPClosed,
		t.UDP, t.UDPStream, t.ICMP, t.SCTPOpening, t.SCTP, t.SCTPClosing, t.Other,
	}
	for s, d := range [states]time.Duration{
		120 * time.Second, 60 * time.Second, 120 * time.Hour, 120 * time.Second, 60 * time.Second, 30 * time.Second, 120 * time.Second, 10 * time.Second,
		120 * time.Second, 120 * time.Second, 60 * time.Second, 30 * time.Second, 120 * time.Hour, 10 * time.Second, 600 * time.Second,
	} {
		if all[s] == 0 {
			all[s] = d
		}
	}
	return all
}

// rankOf returns the rank of a replied connection.
func rankOf(s state) rank {
	switch s {
	case stateFinWait, stateCloseWait, stateLastAck, stateTimeWait, stateClosed, stateSCTPClosing:
		return rankClosing
	}
	return rankSettled
}

// lifetime is how long c may be idle.
func (s *snapshot) lifetime(c *conn, pressed bool) time.Duration {
	d := s.timeouts[c.state]
	if c.has(flagReplied) {
		return d
	}
	if c.state == stateEstablished {
		d = s.timeouts[stateSynSent] // picked up in mid-stream, one side heard
	}
	if pressed {
		d = min(d, shortUnreplied)
	}
	return d
}

const (
	wheelSlots = 1 << 10
	wheelTick  = time.Second
)

// A wheel is a hashed timing wheel (Varghese and Lauck, 1987). Packets only store when they came; a connection whose slot comes up
// before its time is put into a later one.
type wheel struct {
	tick    int64 // the slot being worked on
	due     Time  // when it ends; until then there is nothing to do
	started bool
	slots   [wheelSlots]uint32
}

// start begins with the slot of now, if the wheel has not begun.
func (w *wheel) start(now Time) {
	if !w.started {
		w.started, w.tick = true, int64(now)/int64(wheelTick)
	}
}

// arm puts a connection into the slot of its deadline, or the furthest one. Preconditions: it is in no slot.
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

// slotBit tells a slot from a connection's number.
const slotBit = 1 << 31

// unlink takes a connection out of its slot, if it is in one.
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

// expire looks at up to budget connections whose slot has come, and returns what is left of the budget: 0 if there may be more.
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
		deadline := c.lastSeen.Add(e.snapshot.lifetime(c, e.pressed()))
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

// pressed reports whether the table is so full that unreplied connections must hurry.
func (e *Engine) pressed() bool {
	return e.table.used*pressureDenominator > e.snapshot.maxEntries*pressureNumerator
}

// reschedule moves c's timer when its state may have shortened its life.
func (e *Engine) reschedule(c *conn, number uint32, now Time) {
	e.table.wheel.unlink(&e.table, number)
	e.table.wheel.arm(&e.table, number, now.Add(e.snapshot.lifetime(c, e.pressed())))
}
