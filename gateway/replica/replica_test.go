package replica

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"culvert/gateway/handover/handovertest"
	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/nat"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var started = time.Now()

func now() nat.Time { return nat.Time(time.Since(started)) }

// talk opens n connections, numbered from first on.
func talk(t testing.TB, e *nat.Engine, first, n int) {
	t.Helper()
	handovertest.Open(t, e, first, n, now)
}

// table returns the tuples of all connections.
func table(e *nat.Engine) (all []string) {
	var list []nat.ConnInfo
	for at, more := nat.Cursor(0), true; more; {
		list, at, more = e.Connections(at, &nat.ConnFilter{}, now(), list)
	}
	for i := range list {
		all = append(all, list[i].Original.String()+" "+list[i].Reply.String()+" "+list[i].State)
	}
	slices.Sort(all)
	return all
}

// A pod is a Replica of the test.
type pod struct {
	*Replica
	e  *nat.Engine
	at netip.AddrPort

	mu    sync.Mutex
	took  string
	heard []string
}

func newPod(t testing.TB, name string, key wgkey.Key, most int, change ...func(*Options)) *pod {
	t.Helper()
	return newPodAt(t, name, key, most, netip.MustParseAddrPort("127.0.0.1:0"), change...)
}

func newPodAt(t testing.TB, name string, key wgkey.Key, most int, at netip.AddrPort, change ...func(*Options)) *pod {
	t.Helper()
	l, err := net.Listen("tcp", at.String())
	need.NoError(t, err)
	return newPodOn(t, name, key, most, l, change...)
}

func newPodOn(t testing.TB, name string, key wgkey.Key, most int, l net.Listener, change ...func(*Options)) *pod {
	t.Helper()
	p := &pod{e: handovertest.NewEngine(t, most)}
	log := logrus.New()
	log.SetOutput(io.Discard)
	o := Options{
		Log: logrus.NewEntry(log), Key: key, Name: name, Version: "v1", Engine: p.e, Now: now,
		LinkName: handovertest.LinkName, Link: handovertest.Link,
		Config: func() string { return "same" }, Facts: func() []byte { return []byte("facts of " + name) },
		Took: func(b []byte) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.took = string(b)
		},
		Heard: func(b []byte) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.heard = append(p.heard, string(b))
		},
	}
	for _, f := range change {
		f(&o)
	}
	p.Replica = New(o)
	p.at = l.Addr().(*net.TCPAddr).AddrPort()
	var served sync.WaitGroup
	served.Go(func() { p.Serve(l) })
	t.Cleanup(func() {
		p.Close()
		served.Wait()
	})
	return p
}

// patience limits waiting on a busy machine.
const patience = 30 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	need.Eventually(t, patience, "the replicas come to the expected state", check)
}

func equal(t testing.TB, got, want *nat.Engine) {
	t.Helper()
	if g, w := table(got), table(want); !slices.Equal(g, w) {
		t.Fatalf("%d connections, want the same %d as the source", len(g), len(w))
	}
}

func TestStream(t *testing.T) {
	key := wgkey.NewPrivate()
	active, standby := newPod(t, "a", key, 10_000), newPod(t, "b", key, 10_000)
	active.Lead()
	standby.e.Freeze()
	talk(t, active.e, 0, 1000)
	standby.Follow(active.at)
	need.NoError(t, standby.Whole(within(t)))
	equal(t, standby.e, active.e)
	if standby.took != "facts of a" {
		t.Errorf("the standby gets the facts %q, want \"facts of a\"", standby.took)
	}
	// Connections that begin and end later.
	talk(t, active.e, 1000, 500)
	active.e.DeleteConnections(0, &nat.ConnFilter{}, now())
	need.NoError(t, active.Flush(within(t)))
	equal(t, standby.e, active.e)
	if n := active.Tell([]byte("yours")); n != 1 {
		t.Errorf("the active replica tells %d others, want 1", n)
	}
	if n := standby.Tell([]byte("mine")); n != 1 {
		t.Errorf("the standby tells %d others, want 1", n)
	}
	eventually(t, func() error {
		standby.mu.Lock()
		defer standby.mu.Unlock()
		active.mu.Lock()
		defer active.mu.Unlock()
		if !slices.Equal(standby.heard, []string{"yours"}) || !slices.Equal(active.heard, []string{"mine"}) {
			return fmt.Errorf("the standby has heard %q, want yours; the active replica %q, want mine", standby.heard,
				active.heard)
		}
		return nil
	})
	s := active.Status()
	if len(s.Followers) != 1 || s.Source != nil {
		t.Fatalf("the active replica has the streams %+v, want one follower and no source", s)
	}
	f, from := s.Followers[0], standby.Status().Source
	if f.Pod != "b" || f.NoFullCopy || f.LastCopy == nil || f.CopyReason != "first" ||
		f.Entries != len(table(active.e)) || f.Differs != "" || math.Abs(f.ClockAhead) > 1 {
		t.Errorf("the follower is %+v, want b with a first full copy of all entries", f)
	}
	if from == nil || from.Pod != "a" || from.NoFullCopy || from.Entries != f.Entries || s.Copies["first"] != 1 {
		t.Errorf("the source is %+v with copies %v, want a, the same entries and one first copy", from, s.Copies)
	}
	// The table of another source replaces the copy of the first one.
	third := newPod(t, "c", key, 10_000)
	third.Lead()
	talk(t, third.e, 5000, 10)
	standby.Follow(third.at)
	eventually(t, func() error {
		if n := len(table(standby.e)); n != 10 {
			return fmt.Errorf("%d connections, want the other source's 10", n)
		}
		return nil
	})
	equal(t, standby.e, third.e)
	led := make(chan struct{})
	go func() {
		defer close(led)
		standby.Lead()
	}()
	select {
	case <-led:
	case <-within(t).Done():
		t.Fatal("Lead does not return")
	}
	if standby.Status().Source != nil {
		t.Error("it leads and still has a source")
	}
	equal(t, standby.e, third.e)
}

// Connections that do not come from a replica of this gateway are closed and counted by reason, and
// do not disturb the others.
func TestForeignClients(t *testing.T) {
	key := wgkey.NewPrivate()
	active, standby := newPod(t, "a", key, 1000), newPod(t, "b", key, 1000)
	active.Lead()
	standby.Follow(active.at)
	need.NoError(t, standby.Whole(within(t)))
	closed := func(t *testing.T, c net.Conn) {
		t.Helper()
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Fatal("it is not closed")
		}
	}
	dial := func(t *testing.T) net.Conn {
		c, err := net.Dial("tcp", active.at.String())
		need.NoError(t, err)
		return c
	}
	own, others := newIdentities(key), newIdentities(wgkey.NewPrivate())
	for reason, speak := range map[string]func(net.Conn) net.Conn{
		"not-tls": func(c net.Conn) net.Conn { io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); return c },
		"slow":    func(c net.Conn) net.Conn { return c },
		"key": func(c net.Conn) net.Conn { // it knows the name but not the key
			config := others.client()
			config.ServerName = own.name
			config.VerifyConnection = nil
			s := tls.Client(c, config)
			s.Handshake()
			return s
		},
		"protocol": func(c net.Conn) net.Conn {
			s := tls.Client(c, own.client())
			(&wire{conn: s}).send(kindMark, make([]byte, 8))
			return s
		},
	} {
		t.Run(reason, func(t *testing.T) {
			before := active.Status().Refused[reason]
			closed(t, speak(dial(t)))
			eventually(t, func() error {
				if n := active.Status().Refused[reason]; n != before+1 {
					return fmt.Errorf("%d refused with reason %s, want 1: %v", n-before, reason,
						active.Status().Refused)
				}
				return nil
			})
		})
	}
	t.Run("another name costs no signature", func(t *testing.T) {
		s := tls.Client(dial(t), others.client())
		if err := s.Handshake(); err == nil || !strings.Contains(err.Error(), "internal error") {
			t.Errorf("%v, want an alert before any key is used", err)
		}
		s.Close()
	})
	t.Run("endless", func(t *testing.T) {
		c := dial(t)
		c.Write([]byte{22, 3, 1, 0x40, 0}) // the beginning of a record of 16 KiB
		go func() {
			b := make([]byte, 1<<16)
			rand.Read(b)
			for err := error(nil); err == nil; _, err = c.Write(b) {
			}
		}()
		closed(t, c)
	})
	talk(t, active.e, 0, 5)
	need.NoError(t, active.Flush(within(t)))
	equal(t, standby.e, active.e)
}

// A replica that has no table, or that follows another one, serves no follower: a follower would
// lose its own connections.
func TestNoTable(t *testing.T) {
	key := wgkey.NewPrivate()
	active, standby, fresh, other := newPod(t, "a", key, 1000), newPod(t, "b", key, 1000), newPod(t, "c", key, 1000),
		newPod(t, "d", key, 1000)
	active.Lead()
	active.Follow(standby.at)
	standby.Follow(active.at)
	need.NoError(t, standby.Whole(within(t)))
	talk(t, other.e, 0, 5)
	for _, source := range []*pod{standby, fresh} {
		other.Follow(source.at)
		eventually(t, func() error {
			if source.Status().Refused["no-table"] == 0 {
				return fmt.Errorf("refused are %v, want no-table", source.Status().Refused)
			}
			return nil
		})
	}
	if err := other.Whole(within(t)); !errors.Is(err, ErrNoTable) {
		t.Errorf("a copy of a replica without a table: %v, want %v", err, ErrNoTable)
	}
	if n := len(table(other.e)); n != 5 || active.Status().Source != nil {
		t.Errorf("%d connections, want 5; the active one follows %v", n, active.Status().Source)
	}
}

// TestOlder: the table of a replica that does not lead is as old as the end of its stream. A
// replica that starts with a newer table, as from its state folder, does not copy it.
func TestOlder(t *testing.T) {
	key := wgkey.NewPrivate()
	active, standby := newPod(t, "a", key, 1000), newPod(t, "b", key, 1000)
	active.Lead()
	talk(t, active.e, 0, 5)
	standby.Follow(active.at)
	need.NoError(t, standby.Whole(within(t)))
	before := time.Now()
	active.Close()
	eventually(t, func() error {
		if standby.Status().Source != nil {
			return errors.New("the stream has not ended")
		}
		return nil
	})
	if at := standby.AsOf(); at.Before(before.Add(-stallTime)) || time.Since(at) < 0 {
		t.Errorf("the standby's table is %v old, want the time since its stream ended", time.Since(at))
	}
	after := time.Now()
	newer := newPod(t, "a", key, 1000, func(o *Options) { o.Restored = func() time.Time { return after } })
	talk(t, newer.e, 0, 9)
	newer.Follow(standby.at)
	if err := newer.Whole(within(t)); !errors.Is(err, ErrOlder) {
		t.Errorf("a copy of an older table: %v, want %v", err, ErrOlder)
	}
	if n := len(table(newer.e)); n != 9 {
		t.Errorf("%d connections, want all 9", n)
	}
	older := newPod(t, "a", key, 1000, func(o *Options) {
		o.Restored = func() time.Time {
			return before.Add(-time.Minute)
		}
	})
	older.Follow(standby.at)
	if err := older.Whole(within(t)); err != nil {
		t.Error(err)
	}
	standby.Lead()
	newer.Follow(netip.AddrPort{})
	newer.Follow(standby.at)
	if err := newer.Whole(within(t)); err != nil {
		t.Errorf("a copy of the table of a replica that leads: %v", err)
	}
	equal(t, newer.e, standby.e)
}

// TestEndedAttempt: a later call of Follow ends an attempt. What the source said to that attempt
// does not count for the later call, even if the address is the same.
func TestEndedAttempt(t *testing.T) {
	type ended struct{}
	key := wgkey.NewPrivate()
	fresh := newPod(t, "a", key, 1000)
	p := newPod(t, "b", key, 1000, func(o *Options) {
		o.Dial = func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
			if ctx.Value(ended{}) == nil {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return dialTCP(ctx, at)
		}
	})
	p.Follow(fresh.at)
	if _, err := p.followAt(context.WithValue(within(t), ended{}, true), fresh.at, make(chan struct{})); !errors.Is(err,
		ErrNoTable) {
		t.Fatalf("the ended attempt: %v, want %v", err, ErrNoTable)
	}
	p.Replica.mu.Lock()
	defer p.Replica.mu.Unlock()
	if p.bare != nil {
		t.Errorf("the attempt that goes on: %v", p.bare)
	}
}

// TestSourceStartsAgain: a pod whose process has restarted gets its table back from its standby,
// although the standby's stream from the former process is still open.
func TestSourceStartsAgain(t *testing.T) {
	key := wgkey.NewPrivate()
	dials := 0
	standby := newPod(t, "b", key, 1000, func(o *Options) {
		o.Dial = func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
			if dials++; dials > 1 {
				return nil, errors.New("the machine is gone")
			}
			return dialTCP(ctx, at)
		}
	})
	active := newPod(t, "a", key, 1000)
	active.Lead()
	talk(t, active.e, 0, 5)
	standby.Follow(active.at)
	need.NoError(t, standby.Whole(within(t)))
	again := newPod(t, "a", key, 1000)
	again.Follow(standby.at)
	need.NoError(t, again.Whole(within(t)))
	equal(t, again.e, standby.e)
}

// A replica that visits another one delivers a notice and copies nothing. A replica that no longer
// forwards then follows the visitor.
func TestVisit(t *testing.T) {
	key := wgkey.NewPrivate()
	heard := make(chan string, 1)
	guest := newPod(t, "b", key, 1000)
	host := newPodAt(t, "a", key, 1000, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), guest.at.Port()),
		func(o *Options) { o.Heard = func(message []byte) { heard <- string(message) } })
	for _, p := range []*pod{host, guest} { // both forward
		p.Lead()
	}
	need.NoError(t, guest.Visit(within(t), host.at, []byte("mine")))
	if got := <-heard; got != "mine" {
		t.Errorf("the notice %q is heard, want \"mine\"", got)
	}
	if s := host.Status(); len(s.Followers) > 0 || len(s.Refused) > 0 {
		t.Errorf("the visitor counts as a follower or as refused: %+v", s)
	}
	if err := newPod(t, "c", wgkey.NewPrivate(), 1000).Visit(within(t), host.at, nil); err == nil {
		t.Error("a visitor with another key is accepted")
	}
	host.Rest()
	need.NoError(t, guest.Visit(within(t), host.at, []byte("mine")))
	talk(t, guest.e, 0, 5)
	eventually(t, func() error {
		if n := len(table(host.e)); n != 5 {
			return fmt.Errorf("%d connections of the visitor are copied, want 5", n)
		}
		return nil
	})
}

// A replica does not copy from one that has another key.
func TestOtherKey(t *testing.T) {
	active, standby := newPod(t, "a", wgkey.NewPrivate(), 1000), newPod(t, "b", wgkey.NewPrivate(), 1000)
	active.Lead()
	talk(t, active.e, 0, 5)
	standby.Follow(active.at)
	eventually(t, func() error {
		if active.Status().Refused["key"] == 0 {
			return fmt.Errorf("refused are %v, want one by its key", active.Status().Refused)
		}
		return nil
	})
	if len(table(standby.e)) > 0 || standby.Status().Source != nil {
		t.Errorf("%d connections are copied, want none; source %+v", len(table(standby.e)), standby.Status().Source)
	}
}

// A follower that stops reading loses its place in the changes. When it reads again, it gets a full
// copy.
func TestStoppedFollower(t *testing.T) {
	key := wgkey.NewPrivate()
	stop := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(stop) })
	active := newPod(t, "a", key, 1<<17)
	active.Lead()
	standby := newPod(t, "b", key, 1<<17, func(o *Options) {
		o.Took = func([]byte) { <-stop }
	})
	t.Cleanup(goOn) // Close waits for Took
	standby.e.Freeze()
	standby.Follow(active.at)
	eventually(t, func() error {
		if len(active.Status().Followers) == 0 {
			return errors.New("no follower")
		}
		return nil
	})
	for i := range 4 { // more ended connections than a feed holds
		talk(t, active.e, i<<14, 1<<14)
		for at, more := nat.Cursor(0), true; more; {
			_, at, more = active.e.DeleteConnections(at, &nat.ConnFilter{}, now())
		}
	}
	talk(t, active.e, 1<<17, 100)
	goOn()
	eventually(t, func() error {
		if s := standby.Status().Source; s == nil || s.NoFullCopy || len(table(standby.e)) != 100 {
			return fmt.Errorf("source %+v with %d connections, want a full copy of 100", standby.Status().Source,
				len(table(standby.e)))
		}
		return nil
	})
	equal(t, standby.e, active.e)
}

// Another version or configuration is reported. The standby takes what it understands, and counts
// the rest.
func TestOtherVersion(t *testing.T) {
	key := wgkey.NewPrivate()
	active := newPod(t, "a", key, 1000, func(o *Options) { o.LinkName = func(nat.Link) string { return "rome-9" } })
	active.Lead()
	var config atomic.Value
	config.Store("another")
	standby := newPod(t, "b", key, 1000, func(o *Options) {
		o.Version, o.Config = "v2", func() string { return config.Load().(string) }
	})
	standby.e.Freeze()
	talk(t, active.e, 0, 7)
	standby.Follow(active.at)
	need.NoError(t, standby.Whole(within(t)))
	for _, l := range active.links {
		l.wire.send(200, []byte("of a newer version"))
	}
	eventually(t, func() error {
		s, f := standby.Status().Source, active.Status().Followers[0]
		if s.Differs != "version" || f.Differs != "version and configuration" || f.NotTaken["unknown-link"] != 7 ||
			f.NotTaken["message"] != 1 {
			return fmt.Errorf("source %+v\nfollower %+v\nwant both to differ in the version, the follower in its configuration, 7 unknown links and 1 unknown message", s, f)
		}
		return nil
	})
	config.Store(active.Config())
	eventually(t, func() error {
		if f := active.Status().Followers[0]; f.Differs != "version" {
			return fmt.Errorf("the follower has the same configuration now, and differs in %q", f.Differs)
		}
		return nil
	})
}

// Records that the standby could not take are counted until the next full copy. It asks for one
// when its configuration changes, or when the count is old.
func TestNotTakenAgain(t *testing.T) {
	key := wgkey.NewPrivate()
	var known atomic.Bool
	active := newPod(t, "a", key, 1000)
	active.Lead()
	standby := newPod(t, "b", key, 1000, func(o *Options) {
		o.Link = func(name string) (nat.Link, bool) {
			l, ok := handovertest.Link(name)
			return l, ok && known.Load()
		}
	})
	standby.e.Freeze()
	talk(t, active.e, 0, 7)
	standby.Follow(active.at)
	refuses := func(want uint64) {
		t.Helper()
		eventually(t, func() error {
			if all := active.Status().Followers; len(all) != 1 || all[0].NoFullCopy ||
				all[0].NotTaken["unknown-link"] != want {
				return fmt.Errorf("followers %+v, want one with a full copy and %d unknown links", all, want)
			}
			return nil
		})
	}
	refuses(7)
	talk(t, active.e, 100, 2)
	refuses(9) // of the copy, and later ones
	known.Store(true)
	standby.Replica.mu.Lock()
	f := standby.source
	standby.Replica.mu.Unlock()
	f.mu.Lock()
	old := time.Now().Add(-staleTime)
	f.is.LastCopy = &old
	f.mu.Unlock()
	refuses(0)
	equal(t, standby.e, active.e)
	if n := active.Status().Copies["asked"]; n != 1 {
		t.Errorf("the standby has asked for %d copies, want 1", n)
	}
}

// FuzzMessages has both ends read anything. Neither panics, nor takes more memory than a message
// has.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{2, 0, 0, 3, 'a', 'b', 'c'}, true)
	f.Add(append([]byte{4, 0, 0, 8}, make([]byte, 8)...), true)
	f.Add(append([]byte{5, 0, 0, 11}, []byte(`{"mark":12}`)...), false)
	f.Add([]byte{6, 0, 0, 1, 'x', 7, 255, 255, 255}, false)
	e := handovertest.NewEngine(f, 100)
	block := make([]byte, nat.RecordBlock)
	feed := e.Feed(handovertest.LinkName)
	talk(f, e, 0, 3)
	block, _ = feed.Next(block[:0], now(), func() {})
	feed.Close()
	f.Add(append([]byte{3, 0, 16, 0}, block...), true)
	f.Fuzz(func(t *testing.T, b []byte, follower bool) {
		log := logrus.New()
		log.SetOutput(io.Discard)
		r := &Replica{Options: Options{Log: logrus.NewEntry(log), Engine: handovertest.NewEngine(t, 100), Now: now,
			LinkName: handovertest.LinkName, Link: handovertest.Link,
			Config: func() string { return "" }, Took: func([]byte) {}, Heard: func([]byte) {}}}
		w := &wire{conn: said{bytes.NewReader(b)}}
		if follower {
			f := &following{r: r, wire: w, mirror: r.Engine.Mirror(handovertest.Link), whole: make(chan struct{}),
				unknown: map[string]uint64{}}
			f.receive()
			f.describe()
		} else {
			l := &link{r: r, wire: w, acked: make(chan struct{})}
			l.marks = []marked{{1, 0}, {2, 1}}
			l.listen()
			l.describe(now())
		}
		if cap(w.body) > maxFacts {
			t.Errorf("a message needs %d bytes, want at most %d", cap(w.body), maxFacts)
		}
	})
}

// said is a connection from which something is read.
type said struct{ io.Reader }

func (said) Write(b []byte) (int, error)      { return len(b), nil }
func (said) Close() error                     { return nil }
func (said) LocalAddr() net.Addr              { return nil }
func (said) RemoteAddr() net.Addr             { return nil }
func (said) SetDeadline(time.Time) error      { return nil }
func (said) SetReadDeadline(time.Time) error  { return nil }
func (said) SetWriteDeadline(time.Time) error { return nil }
