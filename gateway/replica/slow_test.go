package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/nat"
)

// pipes is a network in virtual time, between one source and one follower.
type pipes struct {
	called chan net.Conn
	closed chan struct{}
	fails  atomic.Int32  // of the next calls of Accept
	delay  time.Duration // of each read by the follower
}

func newPipes() *pipes { return &pipes{called: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	if p.fails.Add(-1) >= 0 {
		return nil, syscall.EMFILE
	}
	select {
	case c := <-p.called:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 51841} }

func (p *pipes) dial(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.called <- far:
		return &slowConn{near, p.delay}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type slowConn struct {
	net.Conn
	delay time.Duration
}

func (c *slowConn) Read(b []byte) (int, error) {
	time.Sleep(c.delay) // in virtual time: see inBubble
	return c.Conn.Read(b)
}

// inBubble runs a test with an active pod and its standby, both in virtual time.
func inBubble(t *testing.T, p *pipes, test func(t *testing.T, active, standby *pod), change ...func(*Options)) {
	need.Bubble(t, func(t *testing.T) {
		before := started
		started = time.Now().Add(-time.Hour)
		t.Cleanup(func() { started = before })
		key := wgkey.NewPrivate()
		p.called, p.closed = make(chan net.Conn), make(chan struct{})
		active := newPodOn(t, "a", key, 1<<17, p, change...)
		standby := newPodOn(t, "b", key, 1<<17, newPipes(),
			append([]func(*Options){func(o *Options) { o.Dial = p.dial }}, change...)...)
		active.Lead()
		standby.e.Freeze()
		test(t, active, standby)
	})
}

// requireOneStream fails if the standby has connected more than once.
func requireOneStream(t *testing.T, active *pod) {
	t.Helper()
	if n := active.Status().Copies[copyFirst]; n != 1 {
		t.Errorf("the standby has connected %d times, want once", n)
	}
}

// TestLongCopy: a full copy may take longer than either end waits to hear the other.
func TestLongCopy(t *testing.T) {
	p := newPipes()
	p.delay = 200 * time.Millisecond
	inBubble(t, p, func(t *testing.T, active, standby *pod) {
		talk(t, active.e, 0, 20_000)
		began := time.Now()
		standby.Follow(standby.at)
		need.Eventually(t, 5*time.Minute, "the source knows that the copy is whole", func() error {
			if all := active.Status().Followers; len(all) != 1 || all[0].NoFullCopy {
				return fmt.Errorf("followers %+v", all)
			}
			return nil
		})
		if took := time.Since(began); took < 2*stallTime {
			t.Errorf("the copy took %v, want at least %v", took, 2*stallTime)
		}
		requireOneStream(t, active)
		equal(t, standby.e, active.e)
	})
}

// TestManyCopies: a standby that loses its place again and again stays connected.
func TestManyCopies(t *testing.T) {
	inBubble(t, newPipes(), func(t *testing.T, active, standby *pod) {
		standby.Follow(standby.at)
		need.NoError(t, standby.Whole(within(t)))
		for i := range uint64(6) {
			talk(t, active.e, 0, 1<<15+1<<10) // more than a Feed has room for when they end
			time.Sleep(passTime)
			need.NoError(t, active.Flush(within(t)))
			time.Sleep(time.Millisecond / 10) // no pass begins meanwhile
			for at, more := nat.Cursor(0), true; more; {
				_, at, more = active.e.DeleteConnections(at, &nat.ConnFilter{}, now())
			}
			eventually(t, func() error {
				s := active.Status()
				if n := s.Copies[copyOverflow]; n != i+1 || len(s.Followers) != 1 || s.Followers[0].NoFullCopy {
					return fmt.Errorf("%d copies by overflow, want %d; followers %+v", n, i+1, s.Followers)
				}
				return nil
			})
		}
		requireOneStream(t, active)
	})
}

// TestManyNodes: what a standby has to know of 10,000 nodes is longer than other messages.
func TestManyNodes(t *testing.T) {
	facts := bytes.Repeat([]byte("100 bytes of a node"), 50_000)
	inBubble(t, newPipes(), func(t *testing.T, active, standby *pod) {
		standby.Follow(standby.at)
		need.NoError(t, standby.Whole(within(t)))
		if standby.took != string(facts) {
			t.Errorf("the standby gets %d bytes of facts, want %d", len(standby.took), len(facts))
		}
	}, func(o *Options) { o.Facts = func() []byte { return facts } })
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from netip.Addr
}

func (c *addressed) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.from, 9))
}

// TestSlowStrangers: connections of many networks that send nothing, or half a request, do not keep
// a standby out.
func TestSlowStrangers(t *testing.T) {
	p := newPipes()
	inBubble(t, p, func(t *testing.T, _, standby *pod) {
		for i := range 64 {
			near, far := net.Pipe()
			defer near.Close()
			p.called <- &addressed{far, netip.AddrFrom4([4]byte{10, 0, byte(i % 40), byte(i)})}
			if i%2 == 0 {
				go near.Write([]byte{22, 3, 1}) // how a ClientHello begins
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		standby.Follow(standby.at)
		need.NoError(t, standby.Whole(ctx))
	}, func(o *Options) {
		o.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			near, far := net.Pipe()
			select {
			case p.called <- &addressed{far, netip.MustParseAddr("10.99.0.9")}:
				return near, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
}

// TestAcceptFails: a process that has no free descriptor for a while has a standby afterwards.
func TestAcceptFails(t *testing.T) {
	p := newPipes()
	p.fails.Store(3)
	inBubble(t, p, func(t *testing.T, _, standby *pod) {
		standby.Follow(standby.at)
		need.NoError(t, standby.Whole(within(t)))
	})
}

// TestFewWarnings: a standby that cannot connect says so at once, and then once a minute.
func TestFewWarnings(t *testing.T) {
	log, hook := logtest.NewNullLogger()
	inBubble(t, newPipes(), func(t *testing.T, _, standby *pod) {
		standby.Follow(standby.at)
		time.Sleep(time.Second)
		if n := len(hook.AllEntries()); n != 1 {
			t.Errorf("%d lines in the first second, want 1", n)
		}
		time.Sleep(10 * warnTime)
		if n := len(hook.AllEntries()); n < 10 || n > 11 {
			t.Errorf("%d lines in ten minutes, want 10", n)
		}
	}, func(o *Options) {
		o.Log = logrus.NewEntry(log)
		o.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, errors.New("nobody listens") }
	})
}
