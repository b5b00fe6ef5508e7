package sim

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// lines are what connects the pods of a side with each other: streams that keep their order and
// lose nothing, but may stand still, as TCP's do.
type lines struct {
	mu        sync.Mutex
	listeners map[netip.AddrPort]*lineListener // +checklocks:mu
	silent    map[netip.AddrPort]bool          // nobody is there to say that nobody listens; +checklocks:mu
	cut       [2]bool                          // by the number of the pod that sends; +checklocks:mu
	delay     time.Duration                    // +checklocks:mu
	changed   chan struct{}                    // closed when something does; +checklocks:mu
}

const lineLatency = 300 * time.Microsecond

func newLines() *lines {
	return &lines{listeners: make(map[netip.AddrPort]*lineListener), silent: make(map[netip.AddrPort]bool),
		changed: make(chan struct{})}
}

// set changes how the lines fail.
func (l *lines) set(change func(*lines)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
	close(l.changed)
	l.changed = make(chan struct{})
}

// fail reports whether something is wrong with them.
func (l *lines) fail() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut != [2]bool{} || l.delay > 0
}

// deserted reports whether nobody was there to say that a pod's connections have ended: others may
// wait for that.
func (l *lines) deserted(at netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent[at]
}

// lineListener is a net.Listener.
type lineListener struct {
	lines  *lines
	at     netip.AddrPort
	vote   *vote
	called chan *line
	once   sync.Once
	closed chan struct{}
}

// listen returns the listener of a pod.
func (l *lines) listen(v *vote, at netip.AddrPort) *lineListener {
	x := &lineListener{lines: l, at: at, vote: v, called: make(chan *line, 16), closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners[at], l.silent[at] = x, false
	return x
}

// Accept implements net.Listener.
func (l *lineListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.called:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *lineListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.lines.mu.Lock()
		defer l.lines.mu.Unlock()
		if l.lines.listeners[l.at] == l {
			delete(l.lines.listeners, l.at)
		}
	})
	return nil
}

// Addr implements net.Listener.
func (l *lineListener) Addr() net.Addr { return lineAddr(l.at) }

// lineAddr is a net.Addr of no network that others know.
type lineAddr netip.AddrPort

func (lineAddr) Network() string  { return "line" }
func (a lineAddr) String() string { return netip.AddrPort(a).String() }

// dial connects a pod to another one.
func (l *lines) dial(ctx context.Context, v *vote, from, to netip.AddrPort) (net.Conn, error) {
	for {
		l.mu.Lock()
		listener, delay, changed := l.listeners[to], l.delay, l.changed
		cut := l.cut != [2]bool{} || l.silent[to]
		l.mu.Unlock()
		switch {
		case cut, v.dead.Load():
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-changed:
			}
			continue
		case listener == nil:
			return nil, syscall.ECONNREFUSED
		}
		timer := time.NewTimer(2 * (lineLatency + delay))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
		there, back := &pipe{lines: l, from: v.pod.number, wake: make(chan struct{}, 1)},
			&pipe{lines: l, from: 1 - v.pod.number, wake: make(chan struct{}, 1)}
		own := &line{vote: v, in: back, out: there, local: from, remote: to, closed: make(chan struct{})}
		other := &line{vote: listener.vote, in: there, out: back, local: to, remote: from, closed: make(chan struct{})}
		v.hold(own)
		listener.vote.hold(other)
		select {
		case listener.called <- other:
			return own, nil
		case <-listener.closed:
		default:
		}
		return nil, syscall.ECONNREFUSED
	}
}

// pipe is one direction of a line.
type pipe struct {
	lines *lines
	from  int
	wake  chan struct{}

	mu     sync.Mutex
	chunks []chunk   // +checklocks:mu
	end    error     // after the last chunk; nil: there is more to come; +checklocks:mu
	ends   time.Time // when it arrives; +checklocks:mu
}

// chunk is what was written at once.
type chunk struct {
	due  time.Time
	data []byte
}

func (p *pipe) put(data []byte) {
	p.lines.mu.Lock()
	due := time.Now().Add(lineLatency + p.lines.delay)
	p.lines.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.chunks); n > 0 && p.chunks[n-1].due.After(due) {
		due = p.chunks[n-1].due
	}
	p.chunks = append(p.chunks, chunk{due, append([]byte(nil), data...)})
	p.signal()
}

// finish ends the direction, if it has no end yet: nothing comes after what was put.
func (p *pipe) finish(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.end, p.ends = why, time.Now().Add(lineLatency)
	}
	p.signal()
}

func (p *pipe) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take returns what has come, or until when there is nothing.
func (p *pipe) take(b []byte) (n int, until time.Time, changed chan struct{}, err error) {
	p.lines.mu.Lock()
	cut := p.lines.cut[p.from]
	changed = p.lines.changed
	p.lines.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case cut:
	case len(p.chunks) > 0 && p.chunks[0].due.After(now):
		until = p.chunks[0].due
	case len(p.chunks) > 0:
		first := &p.chunks[0]
		n = copy(b, first.data)
		if first.data = first.data[n:]; len(first.data) == 0 {
			p.chunks = p.chunks[1:]
		}
	case p.end != nil && p.ends.After(now):
		until = p.ends
	case p.end != nil:
		err = p.end
	}
	return n, until, changed, err
}

// line is one end of a connection between pods. Its buffers have room for all that is written, so
// that Write never waits.
type line struct {
	vote          *vote
	in, out       *pipe
	local, remote netip.AddrPort
	once          sync.Once
	closed        chan struct{}

	mu     sync.Mutex
	before time.Time // when a Read is to end; +checklocks:mu
}

// Read implements net.Conn.
func (l *line) Read(b []byte) (int, error) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-l.closed:
			return 0, net.ErrClosed
		default:
		}
		n, until, changed, err := l.in.take(b)
		if n > 0 || err != nil {
			return n, err
		}
		l.mu.Lock()
		before := l.before
		l.mu.Unlock()
		now := time.Now()
		if !before.IsZero() && !before.After(now) {
			return 0, os.ErrDeadlineExceeded
		}
		wait := time.Hour
		for _, at := range []time.Time{until, before} {
			if !at.IsZero() {
				wait = min(wait, at.Sub(now))
			}
		}
		timer.Reset(wait)
		select {
		case <-l.closed:
		case <-l.in.wake:
		case <-changed:
		case <-timer.C:
		}
	}
}

// Write implements net.Conn. Its pod may be killed before what is written leaves it, or after that.
func (l *line) Write(b []byte) (int, error) {
	select {
	case <-l.closed:
		return 0, net.ErrClosed
	default:
	}
	if !l.vote.step() {
		l.out.put(b)
		l.vote.step()
	}
	return len(b), nil
}

// Close implements net.Conn.
func (l *line) Close() error {
	l.once.Do(func() {
		if close(l.closed); !l.vote.dead.Load() {
			l.out.finish(io.EOF)
			l.vote.release(l)
		}
	})
	return nil
}

// SetDeadline implements net.Conn, and so do those that follow. A Write needs none.
func (l *line) SetDeadline(t time.Time) error { return l.SetReadDeadline(t) }

func (l *line) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	l.before = t
	l.mu.Unlock()
	l.in.signal()
	return nil
}

func (l *line) SetWriteDeadline(time.Time) error { return nil }
func (l *line) LocalAddr() net.Addr              { return lineAddr(l.local) }
func (l *line) RemoteAddr() net.Addr             { return lineAddr(l.remote) }
