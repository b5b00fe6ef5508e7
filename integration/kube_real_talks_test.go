package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// How a talk is used.
const (
	idle      = iota // carries nothing until count asks
	sending          // only its client sends
	receiving        // only its client receives
	numUses
)

const (
	talkPace = 500 * time.Millisecond // time between two bytes of a talk
	talkTick = 5 * time.Millisecond   // time between two groups of talks that get a byte
	// A talk that carries nothing for this time counts as lost. TCP repeats lost segments after
	// pauses that double. If the path fails for 13 s, the longest pause is 26 s.
	talkLost = 40 * time.Second
)

// A talk is a TCP connection of which the test has both ends.
type talk struct {
	kind    string
	use     int
	client  net.Conn
	far     chan net.Conn // gets the server's end from accept
	server  net.Conn      // the server's end
	got     atomic.Int64  // bytes received
	last    time.Time     // of the reading goroutine
	longest atomic.Int64  // between two bytes, in nanoseconds
	failure atomic.Pointer[error]
}

// A talkWay opens talks of a kind.
type talkWay struct {
	kind string
	n    int
	dial func(i int) (net.Conn, error)
}

// talks are connections between clusters, of many kinds and uses.
type talks struct {
	t    *testing.T
	ways []talkWay

	mu    sync.Mutex
	next  uint32           // number of a talk
	fresh map[uint32]*talk // talks without their server's end
	all   [][]*talk        // by way; a lost one is nil
}

func newTalks(t *testing.T) *talks {
	f := &talks{t: t, fresh: map[uint32]*talk{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.send(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		for _, x := range slices.Concat(f.all...) {
			x.end(errNotYet)
		}
	})
	return f
}

// accept takes the servers' ends of talks until the listener is closed. A client first sends the
// number of its talk.
func (f *talks) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			var number [4]byte
			if _, err := io.ReadFull(conn, number[:]); err != nil {
				conn.Close()
				return
			}
			f.mu.Lock()
			x := f.fresh[binary.BigEndian.Uint32(number[:])]
			f.mu.Unlock()
			if x == nil {
				conn.Close()
				return
			}
			conn.(*net.TCPConn).SetKeepAlive(false)
			x.far <- conn
		}()
	}
}

// open begins a talk of a way.
func (f *talks) open(way *talkWay, i int) (*talk, error) {
	conn, err := way.dial(i)
	if err != nil {
		return nil, err
	}
	conn.(*net.TCPConn).SetKeepAlive(false) // so that an idle talk sends nothing
	x := &talk{kind: way.kind, use: i % numUses, client: conn, far: make(chan net.Conn, 1), last: time.Now()}
	f.mu.Lock()
	f.next++
	number := f.next
	f.fresh[number] = x
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.fresh, number)
		f.mu.Unlock()
	}()
	if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, number)); err != nil {
		return nil, err
	}
	select {
	case x.server = <-x.far:
	case <-time.After(5 * time.Second):
		conn.Close()
		return nil, errors.New("the connection has not reached a listener of the test within 5s")
	}
	go x.receive()
	return x, nil
}

// receive counts bytes and measures pauses until the talk ends.
func (x *talk) receive() {
	conn := x.server
	if x.use == receiving {
		conn = x.client
	}
	for b := make([]byte, 64); ; {
		n, err := conn.Read(b)
		if err != nil {
			x.end(err)
			return
		}
		now := time.Now()
		if x.use != idle {
			x.longest.Store(max(x.longest.Load(), int64(now.Sub(x.last))))
		}
		x.last = now
		x.got.Add(int64(n))
	}
}

// end ends the talk. Only the first error counts.
func (x *talk) end(err error) {
	if x != nil && x.failure.CompareAndSwap(nil, &err) {
		x.client.Close()
		x.server.Close()
	}
}

// write has the talk carry a byte.
func (x *talk) write() {
	conn := x.client
	if x.use == receiving {
		conn = x.server
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		x.end(err)
	}
}

// send writes a byte to each talk that is not idle, each talkPace.
func (f *talks) send(ctx context.Context) {
	tick := time.NewTicker(talkTick)
	defer tick.Stop()
	const turns = int(talkPace / talkTick)
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.mu.Lock()
		for _, all := range f.all {
			for i := turn % turns; i < len(all); i += turns {
				if x := all[i]; x != nil && x.use != idle {
					x.write()
				}
			}
		}
		f.mu.Unlock()
	}
}

// add opens all talks of a way. Their listeners must be ready.
func (f *talks) add(way talkWay) {
	f.t.Helper()
	f.mu.Lock()
	f.ways, f.all = append(f.ways, way), append(f.all, make([]*talk, way.n))
	f.mu.Unlock()
	f.fill(len(f.ways) - 1)
}

// fill opens the talks of a way that are missing.
func (f *talks) fill(way int) {
	f.t.Helper()
	w := &f.ways[way]
	for i := range w.n {
		if f.all[way][i] != nil {
			continue
		}
		eventuallyWithin(f.t, kubeStartTimeout, fmt.Sprintf("%s: talk %d", w.kind, i), func() error {
			x, err := f.open(w, i)
			if err == nil {
				f.mu.Lock()
				f.all[way][i] = x
				f.mu.Unlock()
			}
			return err
		})
	}
}

// A talkCount is the state of the talks of a kind.
type talkCount struct {
	all, lost int
	longest   time.Duration
	why       error
}

func (c talkCount) String() string {
	text := fmt.Sprintf("%d of %d lost, longest pause %v", c.lost, c.all, c.longest.Round(10*time.Millisecond))
	if c.why != nil {
		text += fmt.Sprintf(" (%v)", c.why)
	}
	return text
}

// count waits until each talk has carried a byte since the call or is lost, and counts both by
// kind. It replaces lost talks.
func (f *talks) count() map[string]*talkCount {
	f.t.Helper()
	by := map[string]*talkCount{}
	before := map[*talk]int64{}
	for _, x := range slices.Concat(f.all...) {
		if before[x] = x.got.Load(); x.use == idle {
			x.write()
		}
	}
	// polling; a lost talk is a result, not a failure
	for until := time.Now().Add(talkLost); ; time.Sleep(10 * time.Millisecond) {
		waits := false
		for x, n := range before {
			waits = waits || x.got.Load() == n && x.failure.Load() == nil
		}
		if !waits || time.Now().After(until) {
			break
		}
	}
	f.mu.Lock()
	for _, all := range f.all {
		for i, x := range all {
			c := by[x.kind]
			if c == nil {
				c = &talkCount{}
				by[x.kind] = c
			}
			c.all++
			c.longest = max(c.longest, time.Duration(x.longest.Swap(0)))
			failure := x.failure.Load()
			if failure == nil && x.got.Load() > before[x] {
				continue
			}
			x.end(errNotYet)
			c.lost++
			c.why = *x.failure.Load()
			all[i] = nil
		}
	}
	f.mu.Unlock()
	for way := range f.ways {
		f.fill(way)
	}
	return by
}

// said logs counts by kind, and returns how many talks were lost.
func (f *talks) said(what string, by map[string]*talkCount) (lost int) {
	f.t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(by)) {
		f.t.Logf("%-28s %-18s %v", what, kind, by[kind])
		lost += by[kind].lost
	}
	return lost
}
