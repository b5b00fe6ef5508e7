package handover

import (
	"errors"
	"fmt"
	"time"

	"culvert/gateway/sweep"
	"culvert/nat"
)

const (
	// While the old process looks for records, it sends something at least this often.
	aliveTime = 100 * time.Millisecond
	// Connections that had a packet while records were sent are sent again, until a round takes
	// less than roundTime. The last round, in which no process forwards, then takes about as long.
	// If connections change faster than they are sent, it comes after maxRounds.
	roundTime = 10 * time.Millisecond
	maxRounds = 5
)

// A Table is the connections of a process, in one hand-over.
type Table struct {
	Engine *nat.Engine
	Now    func() nat.Time
	Name   func(nat.Link) string              // see nat.Engine.Feed
	Link   func(name string) (nat.Link, bool) // see nat.Engine.Restore
	Batch  time.Duration                      // how late a packet may be stamped too early
	since  nat.Time                           // all that has changed before has been sent
}

// SendAll sends all of t, and waits until the other process is ready for the cut.
func (l *Line) SendAll(t *Table) error {
	if _, err := l.send(t, sweep.Pause, TalkTime); err != nil {
		return err
	}
	if err := l.Send(KindStanding, nil, TalkTime); err != nil {
		return err
	}
	_, _, err := l.Want(KindReady, TalkTime)
	return err
}

// CutOver sends what changes in t, until that is little; stops the packets by stop; and sends the
// rest, and what last returns. It returns nil once the other process forwards. If that does not say
// so in time, the Line is shut.
func (l *Line) CutOver(t *Table, stop func() error, last func() *Cut) error {
	if err := catchUp(func() (time.Duration, error) { return l.send(t, sweep.Pause, TalkTime) }); err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	if _, err := l.send(t, 0, CutTime); err != nil {
		return err
	}
	if err := l.SendJSON(KindCut, last(), CutTime); err != nil {
		return err
	}
	if k, err := l.Last(CutTime); err != nil || k != KindForwarding {
		return errors.Join(err, fmt.Errorf("the new process does not forward in %v", CutTime))
	}
	return nil
}

// catchUp calls round, which returns how long it took, until that is short.
func catchUp(round func() (time.Duration, error)) error {
	for range maxRounds {
		if took, err := round(); err != nil || took < roundTime {
			return err
		}
	}
	return nil
}

// send sends the connections of t that had a packet since it was last sent, at first all. It sleeps
// for pause between slices; each message may take as long as within.
func (l *Line) send(t *Table, pause, within time.Duration) (took time.Duration, err error) {
	began, w := t.Now(), &recordWriter{l, within, time.Now()}
	err = t.Engine.Records(t.since, t.Name).Write(w, began, func() { w.pause(pause) })
	t.since = began.Add(-t.Batch)
	return time.Duration(t.Now() - began), err
}

// A recordWriter sends each Write as one message.
type recordWriter struct {
	line   *Line
	within time.Duration
	sent   time.Time
}

// Write implements io.Writer.
func (w *recordWriter) Write(b []byte) (int, error) {
	err := w.line.Send(KindRecords, b, w.within)
	w.sent = time.Now()
	return len(b), err
}

// pause sleeps. If nothing was sent for aliveTime, for example because few connections of a large
// table need records, it sends an empty message: otherwise the other end would conclude that this
// one hangs. If this fails, so does the next Write.
func (w *recordWriter) pause(length time.Duration) {
	time.Sleep(length)
	if time.Since(w.sent) >= aliveTime {
		w.Write(nil)
	}
}

// Restore gives t the records that arrive before a message of kind last, and returns the body of
// that message. It waits for each message as long as within. Ages in the first records count from
// now, and in those of changes, before KindCut, from when their message comes.
func (l *Line) Restore(t *Table, last Kind, within time.Duration) (body []byte, took nat.Restored, err error) {
	r := t.Engine.Restore(t.Link, t.Now())
	for {
		k, body, _, err := l.Receive(within)
		switch {
		case err != nil:
			return nil, took, err
		case k == last:
			return body, r.End(), nil
		case k != KindRecords:
			return nil, took, fmt.Errorf("%w: message %d", ErrStrange, k)
		case last == KindCut: // each message by itself
			r.End()
			r = t.Engine.Restore(t.Link, t.Now())
		}
		r.Write(body)
	}
}
