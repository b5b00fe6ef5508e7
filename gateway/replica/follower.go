package replica

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"culvert/gateway/control"
	"culvert/nat"
)

const (
	// A lost stream is dialled again after redialTime, which doubles up to maxRedialTime.
	redialTime, maxRedialTime = 100 * time.Millisecond, time.Second
	// warnTime is the time between two warnings that there is no stream.
	warnTime = time.Minute
	// askTime is the minimum time between two requests for another copy.
	askTime = 5 * time.Second
	// staleTime is how old the count of what this follower could not use may become. Since then its
	// connections may have ended, or there may be room for them.
	staleTime = 5 * time.Minute
)

// A following is a stream from a source, at the follower.
type following struct {
	r      *Replica
	wire   *wire
	conn   net.Conn // under wire's TLS; its Close sends no closing message
	from   string   // the source's name
	mirror *nat.Mirror
	whole  chan struct{} // closed by once when a copy is whole
	once   sync.Once

	mu      sync.Mutex
	is      control.Stream    // +checklocks:mu
	other   hello             // +checklocks:mu
	heard   time.Time         // +checklocks:mu
	unknown map[string]uint64 // messages of unknown kinds, by what they are; +checklocks:mu

	// Only the receiving goroutine uses these: when it last asked for a copy, and the configuration
	// at that time.
	asked      time.Time
	generation uint32
}

// Follow makes the replica follow the source at an address instead of any other; the zero AddrPort
// means none. It does nothing after Lead.
func (r *Replica) Follow(at netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads {
		r.aim(at)
	}
}

// +checklocks:r.mu
func (r *Replica) aim(at netip.AddrPort) {
	if r.target == at {
		return
	}
	r.target, r.bare = at, nil
	close(r.retarget)
	r.retarget = make(chan struct{})
}

var (
	// ErrNoTable means that the followed replica has neither led nor received a whole copy.
	ErrNoTable = errors.New("the other pod has no table of connections")
	// ErrOlder means that the followed replica does not lead, and that its table is older than this
	// replica's.
	ErrOlder = errors.New("the other pod's table of connections is older than this one's")
)

// Whole waits for a complete copy of the followed source's table. It fails with ErrNoTable or
// ErrOlder as soon as the source says so.
func (r *Replica) Whole(ctx context.Context) error {
	tick := time.NewTicker(passTime)
	defer tick.Stop()
	for {
		r.mu.Lock()
		f, bare := r.source, r.bare
		r.mu.Unlock()
		if bare != nil {
			return bare
		}
		var whole chan struct{}
		if f != nil {
			whole = f.whole
		}
		select {
		case <-whole:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// follow follows the source that Follow has set, until Close.
func (r *Replica) follow() {
	wait, warned := redialTime, time.Time{}
	for r.done.Err() == nil {
		r.mu.Lock()
		at, retarget := r.target, r.retarget
		r.mu.Unlock()
		var again <-chan time.Time
		if at.IsValid() {
			ctx, cancel := context.WithCancel(r.done)
			go func() {
				select {
				case <-retarget:
					cancel()
				case <-ctx.Done():
				}
			}()
			lasted, err := r.followAt(ctx, at, retarget)
			if lasted > maxRedialTime {
				wait, warned = redialTime, time.Time{}
			}
			if ctx.Err() == nil && time.Since(warned) >= warnTime {
				warned = time.Now()
				r.Log.WithError(err).WithField("address",
					at).Warn("connections are not copied: the stream from the active gateway is down")
			}
			cancel()
			again = time.After(wait)
			wait = min(2*wait, maxRedialTime)
		}
		select {
		case <-r.done.Done():
		case <-retarget:
			wait, warned = redialTime, time.Time{}
		case <-again:
		}
	}
}

// followAt follows one source until the stream or ctx ends, and returns how long that took.
// retarget is from when at became the target.
func (r *Replica) followAt(ctx context.Context, at netip.AddrPort, retarget chan struct{}) (lasted time.Duration,
	err error) {
	own := r.hello()
	w, other, err := r.greet(ctx, at, own)
	if err != nil {
		return 0, err
	}
	c := w.conn.(*tls.Conn).NetConn()
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	switch {
	case other.NoTable:
		err = ErrNoTable
	case other.Age > own.Age:
		err = ErrOlder
	}
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.retarget == retarget {
			r.bare = err
		}
		return 0, err
	}
	r.restoring.Lock()
	defer r.restoring.Unlock()
	if !r.aimsSince(retarget) {
		return 0, ctx.Err()
	}
	f := &following{r: r, wire: w, conn: c, from: other.Name, mirror: r.Engine.Mirror(r.Link),
		whole: make(chan struct{}), other: other, heard: time.Now(),
		unknown: map[string]uint64{}, generation: r.Engine.Generation()}
	f.is = control.Stream{Pod: other.Name, Address: at.String(), Since: time.Now(), NoFullCopy: true,
		ClockAhead: time.Until(other.Clock).Seconds()}
	defer f.mirror.Close()
	r.setSource(f)
	defer r.setSource(nil)
	r.Log.WithField("replica", other.Name).WithField("address",
		at).Info("connections are copied from the active gateway")
	begin := time.Now()
	err = f.receive()
	return time.Since(begin), err
}

// greet connects to the replica at an address, and returns its hello. The caller closes the
// connection.
func (r *Replica) greet(ctx context.Context, at netip.AddrPort, own hello) (w *wire, other hello, err error) {
	ctx, cancel := context.WithTimeout(ctx, greetTime)
	defer cancel()
	c, err := r.Dial(ctx, at)
	if err != nil {
		return nil, other, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer func() {
		if stop(); err != nil {
			c.Close()
		}
	}()
	conn := tls.Client(c, r.keys.client())
	if err := conn.HandshakeContext(ctx); err != nil {
		// the alert of a source that GetConfigForClient refuses
		if strings.Contains(err.Error(), "tls: internal error") {
			err = fmt.Errorf("%w of WireGuard, as while the key of a gateway is changed, and its older pods end: %w",
				errKey, err)
		}
		r.refuse(reasonOf(err))
		return nil, other, err
	}
	w = &wire{conn: conn}
	if err := w.sendJSON(kindHello, own); err != nil {
		return nil, other, err
	}
	if other, err = w.receiveHello(); err != nil {
		return nil, other, fmt.Errorf("no hello: %w", err)
	}
	return w, other, nil
}

// Visit sends the replica at an address a notice of at most MaxNotice bytes, as Tell does to
// connected replicas. If that replica neither leads nor has a source, it follows this one from then
// on.
func (r *Replica) Visit(ctx context.Context, at netip.AddrPort, message []byte) error {
	own := r.hello()
	own.Visit = true
	w, _, err := r.greet(ctx, at, own)
	if err != nil {
		return err
	}
	defer w.conn.Close()
	return w.send(kindNotice, message)
}

// aimsSince reports whether the target has not changed since retarget was made.
func (r *Replica) aimsSince(retarget chan struct{}) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retarget == retarget
}

func (r *Replica) setSource(f *following) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.source != nil {
		r.asOf = r.source.asOf(r.asOf)
	}
	r.source, r.bare = f, nil
}

// receive handles the source's messages until the stream ends.
func (f *following) receive() error {
	for {
		k, body, err := f.wire.receive(stallTime)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.heard = time.Now()
		f.mu.Unlock()
		switch k {
		case kindFacts:
			f.r.Took(slices.Clone(body))
		case kindBlocks:
			if len(body)%nat.RecordBlock != 0 {
				return fmt.Errorf("%w: a part of a block", errProtocol)
			}
			f.mirror.Write(body, f.r.Now())
		case kindMark:
			if len(body) != 8 {
				return fmt.Errorf("%w: a mark of %d bytes", errProtocol, len(body))
			}
			if err := f.acknowledge(binary.BigEndian.Uint64(body)); err != nil {
				return err
			}
		case kindNotice:
			if f.r.Heard != nil {
				f.r.Heard(slices.Clone(body))
			}
		case kindHello, kindAck, kindCopy:
			return errors.Join(errProtocol, fmt.Errorf("message %d", k))
		default: // of a newer version
			f.mu.Lock()
			f.unknown["message"]++
			f.mu.Unlock()
		}
	}
}

// acknowledge answers a mark. It asks for another copy if that may bring what this follower could
// not use of the last one.
func (f *following) acknowledge(mark uint64) error {
	state := f.mirror.State()
	a := ack{Mark: mark, Entries: f.r.Engine.Stats().Connections, Whole: state.Whole, NotTaken: map[string]uint64{},
		Config: f.r.Config()}
	f.mu.Lock()
	for _, n := range []struct {
		why string
		n   int
	}{{"unknown-link", state.UnknownLink}, {"unbound", state.Unbound}, {"no-room", state.NoRoom},
		{"damaged-block", state.Damaged}, {"foreign-block", state.Foreign}} {
		if n.n > 0 {
			a.NotTaken[n.why] = uint64(n.n)
		}
	}
	for why, n := range f.unknown {
		a.NotTaken[why] = n
	}
	if f.is.NoFullCopy && state.Whole {
		whole := time.Now()
		f.is.LastCopy = &whole
	}
	f.is.NoFullCopy, f.is.Entries, f.is.NotTaken = !state.Whole, a.Entries, a.NotTaken
	f.mu.Unlock()
	if state.Whole {
		f.once.Do(func() {
			f.r.mu.Lock() // before f.mu, if both are held
			f.r.complete = true
			f.r.mu.Unlock()
			close(f.whole)
		})
	}
	if err := f.wire.sendJSON(kindAck, a); err != nil {
		return err
	}
	return f.ask(&state)
}

// ask asks for another copy if this follower could not use all of the last one, and the
// configuration has changed since or the count is old.
func (f *following) ask(state *nat.MirrorState) error {
	refused, generation := state.UnknownLink+state.Unbound+state.NoRoom+state.Damaged+state.Foreign,
		f.r.Engine.Generation()
	if refused == 0 || time.Since(f.asked) < askTime {
		return nil
	}
	why := copyConfiguration
	if generation == f.generation {
		f.mu.Lock()
		stale := state.Whole && time.Since(*f.is.LastCopy) >= staleTime
		f.mu.Unlock()
		if why = copyAsked; !stale {
			return nil
		}
	}
	f.generation, f.asked = generation, time.Now()
	return f.wire.send(kindCopy, []byte(why))
}

// asOf returns the time at which the table last equalled the source's; if no copy is whole, it
// returns before.
func (f *following) asOf(before time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.is.NoFullCopy {
		return before
	}
	return f.heard
}

// describe returns the state of the stream.
func (f *following) describe() control.Stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	is := f.is
	other := f.other
	other.Config = f.r.Config() // the source compares them: the one in its hello may be old
	is.Differs, is.LagSeconds = f.r.differs(&other), time.Since(f.heard).Seconds()
	return is
}
