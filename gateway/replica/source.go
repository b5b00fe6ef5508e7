package replica

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/seats"
	"culvert/nat"
)

// acceptWait is the time to wait before accepting again after an error.
const acceptWait = time.Second

// A link is a follower's stream, at the source.
type link struct {
	r    *Replica
	wire *wire
	feed *nat.Feed
	wake chan struct{} // has room for one

	mu       sync.Mutex
	is       control.Stream // +checklocks:mu
	other    hello          // never changes but for its Config, which mu guards
	marks    []marked       // sent and not acknowledged; +checklocks:mu
	complete nat.Time       // all changes before this time are acknowledged; +checklocks:mu
	asked    string         // why the follower wants a copy; "" = it does not; +checklocks:mu
	acked    chan struct{}  // closed with each ack; +checklocks:mu
	gone     chan struct{}  // closed when the stream has ended
}

// marked is a pass whose mark was sent.
type marked struct {
	began nat.Time // the mark
	older nat.Time // when the previous pass began: nothing that the follower lacks is older
}

// Serve accepts followers until Close, and closes l.
func (r *Replica) Serve(l net.Listener) {
	seated := seats.New(l)
	seated.Yields = true
	defer context.AfterFunc(r.done, func() { seated.Close() })()
	defer seated.Close()
	config := r.keys.server()
	for {
		c, err := seated.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptor is free, or no memory
			r.Log.WithError(err).Warn("no standby can connect now; trying again")
			select {
			case <-r.done.Done():
			case <-time.After(acceptWait):
			}
			continue
		}
		if !r.begin(func() { r.serve(c, config) }) {
			c.Close()
		}
	}
}

// serve handles one connection.
func (r *Replica) serve(c net.Conn, config *tls.Config) {
	defer c.Close()
	defer context.AfterFunc(r.done, func() { c.Close() })()
	conn := tls.Server(c, config)
	conn.SetDeadline(time.Now().Add(greetTime))
	if err := conn.Handshake(); err != nil {
		r.refuse(reasonOf(err))
		return
	}
	w := &wire{conn: conn}
	other, err := w.receiveHello()
	if err == nil {
		err = w.sendJSON(kindHello, r.hello())
	}
	if err != nil {
		r.refuse(reasonOf(err))
		return
	}
	if other.Visit {
		if k, body, err := w.receive(greetTime); err == nil && k == kindNotice && r.Heard != nil {
			r.Heard(slices.Clone(body))
			r.followVisitor(c)
		}
		return
	}
	l := &link{r: r, wire: w, other: other, wake: make(chan struct{}, 1), acked: make(chan struct{}),
		gone: make(chan struct{})}
	l.is = control.Stream{Pod: other.Name, Address: c.RemoteAddr().String(), Since: time.Now(), NoFullCopy: true,
		CopyReason: copyFirst,
		ClockAhead: time.Until(other.Clock).Seconds()}
	if why := r.join(l); why != "" {
		r.refuse(why)
		return
	}
	defer close(l.gone)
	defer r.leave(l)
	seats.Release(c) // a follower stays, so it needs no seat
	r.Log.WithField("replica", other.Name).WithField("address", l.is.Address).Info("a standby copies connections")
	l.run()
}

// followVisitor follows a replica that has connected to say that it forwards and that nobody copies
// its table. That replica listens at the same port as this one.
func (r *Replica) followVisitor(c net.Conn) {
	from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	own, _ := netip.ParseAddrPort(c.LocalAddr().String())
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads && r.source == nil {
		r.aim(netip.AddrPortFrom(from.Addr().Unmap(), own.Port()))
	}
}

// reasonOf returns the label for why a connection was closed before it became a follower's.
func reasonOf(err error) string {
	var noTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &noTLS):
		return "not-tls"
	case errors.Is(err, errKey):
		return "key"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "slow"
	case errors.Is(err, errProtocol):
		return "protocol"
	}
	return "gone"
}

// join adds l to the followers, replacing any of the same name, or returns why it cannot.
func (r *Replica) join(l *link) (why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.source; s != nil && s.from == l.other.Name {
		// a source follows nobody, so this stream leads to a process that has ended; it will be
		// gone at the next attempt
		s.conn.Close()
	}
	if !r.complete || r.source != nil {
		return "no-table"
	}
	r.links = slices.DeleteFunc(r.links, func(o *link) bool {
		if o.other.Name != l.other.Name {
			return false
		}
		o.wire.conn.Close()
		return true
	})
	if len(r.links) >= maxFollowers {
		return "too-many"
	}
	r.links = append(r.links, l)
	return ""
}

func (r *Replica) leave(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links = slices.DeleteFunc(r.links, func(o *link) bool { return o == l })
}

// run sends passes until the stream ends.
func (l *link) run() {
	l.feed = l.r.Engine.Feed(l.r.LinkName)
	defer l.feed.Close()
	heard := make(chan error, 1)
	go func() { heard <- l.listen() }()
	err := l.send(heard)
	l.wire.conn.Close()
	if l.r.done.Err() == nil {
		l.r.Log.WithError(err).WithField("replica", l.other.Name).Warn("the standby's stream has ended")
	}
}

// listen handles the follower's messages.
func (l *link) listen() error {
	for {
		k, body, err := l.wire.receive(stallTime + idleTime)
		if err != nil {
			return err
		}
		switch k {
		case kindAck:
			var a ack
			if json.Unmarshal(body, &a) != nil {
				return errProtocol
			}
			l.acknowledged(&a)
		case kindCopy:
			l.mu.Lock()
			if l.asked = copyAsked; string(body) == copyConfiguration {
				l.asked = copyConfiguration
			}
			l.mu.Unlock()
		case kindNotice:
			if l.r.Heard != nil {
				l.r.Heard(slices.Clone(body))
			}
		}
	}
}

func (l *link) acknowledged(a *ack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.r.Now()
	for len(l.marks) > 0 && l.marks[0].began <= nat.Time(a.Mark) {
		l.is.LagSeconds = time.Duration(now - l.marks[0].older).Seconds()
		l.complete = l.marks[0].began
		l.marks = l.marks[1:]
	}
	if l.is.NoFullCopy && a.Whole {
		whole := time.Now()
		l.is.LastCopy = &whole
	}
	l.is.Entries, l.is.NoFullCopy, l.is.NotTaken = a.Entries, !a.Whole, a.NotTaken
	if a.Config != "" {
		l.other.Config = a.Config
	}
	close(l.acked)
	l.acked = make(chan struct{})
}

// describe returns the state of the stream.
func (l *link) describe(now nat.Time) control.Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	is := l.is
	is.Differs = l.r.differs(&l.other)
	if len(l.marks) > 0 {
		is.LagSeconds = max(is.LagSeconds, time.Duration(now-l.marks[0].older).Seconds())
	}
	return is
}

// Acknowledged returns up to which time a follower with a whole copy has acknowledged all changes;
// false if there is no such follower.
func (r *Replica) Acknowledged(follower string) (until nat.Time, whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		l.mu.Lock()
		until, whole = l.complete, l.is.Pod == follower && !l.is.NoFullCopy
		l.mu.Unlock()
		if whole {
			return until, true
		}
	}
	return 0, false
}

// Flush waits until every follower has acknowledged all changes before the call, or is gone.
func (r *Replica) Flush(ctx context.Context) error {
	now := r.Now()
	r.mu.Lock()
	links := slices.Clone(r.links)
	r.mu.Unlock()
	for _, l := range links {
		if err := l.flush(ctx, now); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) flush(ctx context.Context, until nat.Time) error {
	for {
		l.mu.Lock()
		done, acked := l.complete >= until, l.acked
		l.mu.Unlock()
		if done {
			return nil
		}
		select {
		case l.wake <- struct{}{}:
		default:
		}
		select {
		case <-acked:
		case <-l.gone:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
