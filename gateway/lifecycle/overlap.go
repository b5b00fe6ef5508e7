package lifecycle

import (
	"os"
	"time"

	"culvert/gateway/handover"
)

// busy reports whether finish still runs.
func (t *Taking) busy() bool {
	if t == nil {
		return false
	}
	select {
	case <-t.over:
		return false
	default:
		return true
	}
}

// finish carries the packets that the old process decrypts. It lets that process exit only after
// overlapTime, so that there is a gateway if this process dies before.
func (t *Taking) finish(life *Life) {
	if t == nil {
		return
	}
	defer close(t.over)
	defer t.close()
	for _, s := range t.offer.Sockets {
		// elsewhere here, and left to this process
		if (s.Name == "control" || s.Name == "uapi") && t.files[s.Name] != nil {
			os.Remove(s.At)
		}
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		for p := range t.relay.Packets() {
			if take := life.path.Diverted(); take != nil {
				take([][]byte{p}, 0)
			}
		}
	}()
	wait := greetTime
	over, again := time.NewTimer(time.Until(t.forwards.Add(overlapTime))), time.NewTimer(wait)
	defer over.Stop()
	defer again.Stop()
	for done := false; !done; {
		select {
		case <-over.C:
			done = true
		case <-again.C: // messages get lost
			if t.talked && !life.metSince(t.forwards) {
				life.path.WG.Renew()
			} else {
				life.path.WG.Confirm()
			}
			wait *= 2 // a new handshake invalidates the answer to the last one
			again.Reset(wait)
		}
	}
	for i := range life.lent {
		life.lent[i].conn.Own()
	}
	t.line.Send(handover.KindDone, nil, time.Second)
	select {
	case <-returned: // the old process has ended
	case <-time.After(doneTime):
	}
	t.relay.Close()
	<-returned
	life.path.Divert(nil)
	if _, lost := t.relay.Totals(); lost > 0 {
		life.Log.WithField("lost", lost).Warn("packets of the previous gateway's session were lost for lack of room")
	}
}

// close closes the connection to the old process. It may be called more than once.
func (t *Taking) close() {
	t.line.Close()
	if t.relay != nil {
		t.relay.Close()
	}
	t.files.Close()
	if t.before != nil {
		t.before.close()
		t.before = nil
	}
}
