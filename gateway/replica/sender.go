package replica

import (
	"encoding/binary"
	"time"

	"culvert/gateway/sweep"
	"culvert/nat"
)

const (
	// passTime is the time between the starts of two passes.
	passTime = 50 * time.Millisecond
	// idleTime is the interval of marks while nothing changes, and the interval at which facts are
	// checked.
	idleTime = time.Second
	// maxMarks is the limit of unacknowledged marks; at the limit, passes wait.
	maxMarks = 16
	// After one full copy, the next waits for copyWait, which doubles with each copy up to
	// maxCopyWait. The follower hears nothing meanwhile: maxCopyWait must be shorter than
	// stallTime.
	copyWait, maxCopyWait = time.Second, 4 * time.Second
)

// Reasons for a full copy.
const (
	copyFirst         = "first"
	copyOverflow      = "overflow"
	copyConfiguration = "configuration" // the follower's has changed
	copyAsked         = "asked"         // the follower has another reason
)

// A sender is the sending goroutine of a link.
type sender struct {
	*link
	facts  string    // sent last
	looked time.Time // when facts were last checked
	marked time.Time // when a mark was last sent
	start  nat.Time  // of the stream
	passed nat.Time  // when the last complete pass began; 0 = there was none
	sent   bool      // this pass has sent something

	copies   uint64        // full copies that have begun
	wait     time.Duration // minimum time between the starts of two full copies
	lastCopy time.Time
}

// send sends passes until an error.
func (l *link) send(heard <-chan error) error {
	s := &sender{link: l, start: l.r.Now(), wait: copyWait}
	tick := time.NewTicker(passTime)
	defer tick.Stop()
	for flush := false; ; {
		if err := s.sendFacts(); err != nil {
			return err
		}
		if s.ready() {
			if err := s.pass(flush); err != nil {
				return err
			}
			flush = false
		}
		select {
		case err := <-heard:
			return err
		case <-l.r.done.Done():
			return l.r.done.Err()
		case <-l.wake:
			flush = true
		case <-tick.C:
		}
	}
}

// sendFacts sends Options.Facts if they have changed.
func (s *sender) sendFacts() error {
	if time.Since(s.looked) < idleTime {
		return nil
	}
	s.looked = time.Now()
	is := s.r.Facts()
	if string(is) == s.facts {
		return nil
	}
	s.facts = string(is)
	return s.wire.send(kindFacts, is)
}

// ready reports whether a pass may start. Full copies must not keep a follower busy that is too
// slow even for changes.
func (s *sender) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) >= maxMarks {
		return false
	}
	state := s.feed.State()
	early := state.Copies > 0 && time.Since(s.lastCopy) < s.wait
	if s.asked != "" && !early && !state.Lost {
		s.feed.Copy()
		s.is.CopyReason, s.asked = s.asked, ""
		return true
	}
	if state.Lost && state.Copies > 0 && !early {
		s.is.CopyReason = copyOverflow
	}
	return !state.Lost || !early
}

// pass sends everything that has changed, then a mark. With flush, it sends the mark even if
// nothing has changed.
func (s *sender) pass(flush bool) error {
	began := s.r.Now()
	s.sent = false
	if err := s.feed.Write(s, began, func() {
		time.Sleep(sweep.Pause)
		s.keepAlive()
	}); err != nil {
		return err
	}
	older := max(s.start, s.passed)
	s.passed = began
	if !s.sent && !flush && time.Since(s.marked) < idleTime {
		return nil
	}
	return s.mark(older)
}

// Write sends blocks of a pass.
func (s *sender) Write(blocks []byte) (int, error) {
	s.noteCopy()
	s.sent = true
	return len(blocks), s.wire.send(kindBlocks, blocks)
}

// keepAlive sends a mark during a long pass, such as that of a full copy: an end that hears nothing
// concludes that the other is gone. If this fails, so does the next message.
func (s *sender) keepAlive() {
	s.mu.Lock()
	full := len(s.marks) >= maxMarks
	s.mu.Unlock()
	if !full && time.Since(s.marked) >= idleTime {
		s.mark(max(s.start, s.passed))
	}
}

// mark sends the mark of the last complete pass. Nothing that the follower lacks is older than
// older.
func (s *sender) mark(older nat.Time) error {
	s.marked = time.Now()
	s.mu.Lock()
	s.marks = append(s.marks, marked{s.passed, older})
	s.mu.Unlock()
	return s.wire.send(kindMark, binary.BigEndian.AppendUint64(nil, uint64(s.passed)))
}

// noteCopy records that a full copy has started.
func (s *sender) noteCopy() {
	copies := s.feed.State().Copies
	if copies == s.copies {
		return
	}
	if s.wait = min(2*s.wait, maxCopyWait); time.Since(s.lastCopy) > 2*maxCopyWait {
		s.wait = copyWait
	}
	s.copies, s.lastCopy = copies, time.Now()
	s.mu.Lock()
	s.is.NoFullCopy = true
	reason := s.is.CopyReason
	s.mu.Unlock()
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.copies[reason]++
}
