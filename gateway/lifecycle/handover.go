package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/gateway/path"
)

const (
	// overlapTime is how long after the cut the old process decrypts the peer's packets of the old
	// session, and would continue if the new process died. doneTime is how long it waits for the
	// new process to confirm the end, which a busy machine may delay.
	overlapTime = time.Second
	doneTime    = 1600 * time.Millisecond
	// drainTime limits how long packets take to leave wireguard-go, and drainQuiet how long the
	// next one takes, because a packet that was discarded there never leaves.
	drainTime  = 100 * time.Millisecond
	drainQuiet = 10 * time.Millisecond
	drainPoll  = 100 * time.Microsecond
	renewPoll  = 5 * time.Millisecond
	// stopPatience is how long a gateway that is told to stop waits for the end of a hand-over.
	stopPatience, stopPoll = 10 * time.Second, 5 * time.Millisecond
	// A packet is stamped with its batch's time, which may be up to batchTime old.
	batchTime = 200 * time.Millisecond
)

// table returns the connections, which are handed over.
func (life *Life) table() *handover.Table {
	_, links := life.Current.Get()
	return &handover.Table{Engine: life.path.Engine, Now: path.Now, Name: links.Name, Link: links.Find,
		Batch: batchTime}
}

// Errors for callers while processes change.
var (
	ErrHanding = errors.New("a hand-over to another process is under way; ask again when it has ended")
	ErrTaking  = errors.New("this gateway has only begun to take over from another process; ask again in some seconds")
)

// HandOver implements control.Source.
func (life *Life) HandOver(o control.TakeoverOptions) (func(*net.UnixConn), error) {
	c, _ := life.Current.Get()
	switch {
	case o.Protocol != handover.Version:
		return nil, fmt.Errorf("this gateway hands over by version %d of the conversation, not %d: restart it",
			handover.Version, o.Protocol)
	case o.Cluster != c.Cluster || o.Peer != c.Peer:
		return nil, fmt.Errorf(
			"this is the gateway of cluster %s towards %s, not of %s towards %s; name the right socket by --takeover",
			c.Cluster, c.Peer, o.Cluster, o.Peer)
	case c.Elected:
		return nil, errors.New("this gateway has replicas, of which another one takes over: end this one")
	case !life.Ready():
		return nil, errors.New("this gateway is starting or stopping")
	case life.taken.busy():
		return nil, ErrTaking
	case slices.ContainsFunc(life.lent, func(l lentSocket) bool { return l.socket == nil }):
		return nil, errors.New("this gateway's sockets are not the kernel's")
	case !life.handing.CompareAndSwap(false, true):
		return nil, ErrHanding
	}
	return func(conn *net.UnixConn) {
		if conn == nil {
			life.handing.Store(false)
			return
		}
		h := &handing{life: life, line: handover.NewLine(conn)}
		h.next = h.line.Peer()
		h.process = processOf(h.next)
		defer h.process.close()
		h.handOver()
	}, nil
}

// HandOverOver is HandOver to a gateway in this process that takes over through the other ends of
// wire and relay. It closes both. It returns nil when the other gateway carries the packets; on an
// error this gateway continues.
func (life *Life) HandOverOver(wire handover.Wire, relay net.Conn) error {
	h := &handing{life: life, line: handover.NewLine(wire), relay: handover.NewRelay(relay)}
	err := ErrHanding
	switch {
	case life.taken.busy():
		err = ErrTaking
	case life.Ready() && life.handing.CompareAndSwap(false, true):
		return h.handOver()
	}
	h.line.Refuse(err)
	h.line.Close()
	h.relay.Close()
	return err
}

// handOver returns nil when the other process carries the packets; this gateway must then stop.
func (h *handing) handOver() error {
	life := h.life
	life.Applying.Lock() // waits for the change in progress; from now on none is applied
	life.Log.WithField("process", h.next).Info("handing over")
	life.Applying.Unlock()
	err := h.run()
	if err != nil {
		h.line.Refuse(err)
	}
	h.line.Close()
	if err != nil {
		life.Log.WithError(err).Warn("hand-over failed: this gateway goes on")
		if h.taken { // the peer knows another session
			life.renew()
		}
		life.handing.Store(false)
		return err
	}
	life.successor.Store(int64(h.next))
	close(life.gone)
	return nil
}

// Finish waits for the end of a hand-over, and reports whether another process carries the packets
// then. Before the cut the other process has no packets; if this one ended, it could only start
// afresh.
func (life *Life) Finish() bool {
	if !life.handing.Load() {
		return false
	}
	life.Log.Info("stopping when the hand-over has ended")
	late, tick := time.NewTimer(stopPatience), time.NewTicker(stopPoll)
	defer late.Stop()
	defer tick.Stop()
	for life.handing.Load() {
		select {
		case <-life.gone:
			return true
		case <-late.C:
			return false
		case <-tick.C:
		}
	}
	return false
}
