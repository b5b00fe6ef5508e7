package replica

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// A mortal is a network on which a process dies: after some bytes that a follower has received, nothing passes any more.
type mortal struct {
	left atomic.Int64
	dead chan struct{}
}

func dyingAfter(bytes int64) *mortal {
	m := &mortal{dead: make(chan struct{})}
	m.left.Store(bytes)
	return m
}

func (m *mortal) dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	c, err := dialTCP(ctx, at)
	if err != nil {
		return nil, err
	}
	return &mortalConn{Conn: c, m: m}, nil
}

type mortalConn struct {
	net.Conn
	m *mortal
}

func (c *mortalConn) Read(b []byte) (int, error) {
	left := c.m.left.Load()
	if left <= 0 {
		c.Conn.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
	if c.m.left.Add(int64(-n)) == 0 {
		close(c.m.dead)
	}
	return n, err
}

const (
	many      = 40_000  // connections
	diesAfter = 500_000 // bytes of a copy of them, which is longer
)

// requireCopied requires that all connections of e are those of the original table, and that their answers are translated by them.
func requireCopied(t *testing.T, e *nat.Engine, original []string) {
	t.Helper()
	own := table(e)
	for _, c := range own {
		if _, ok := slices.BinarySearch(original, c); !ok {
			t.Fatalf("%s is none of the connections that were copied", c)
		}
	}
	e.Thaw(now())
	var list []nat.ConnInfo
	for at, more := nat.Cursor(0), true; more; {
		list, at, more = e.Connections(at, &nat.ConnFilter{}, now(), list)
	}
	created := e.Stats().Created
	for i := range list {
		r := list[i].Reply
		answer := nattest.IP{Source: r.Source().String(), Destination: r.Destination().String(),
			Body: nattest.UDP{SourcePort: r.SourcePort(), DestinationPort: r.DestinationPort(), NoChecksum: true}}.Bytes()
		var p packet.Packet
		p.Parse(answer)
		if v := e.Process(&p, nat.Tunnel, now()); v.Action != nat.Forward || v.Untracked {
			t.Fatalf("an answer in %v: %v %v", list[i], v.Action, v.Reason)
		}
	}
	if n := e.Stats().Created - created; n != 0 {
		t.Errorf("%d connections were made anew", n)
	}
}

// cutInCopy returns two replicas with a key, whose stream was cut within a full copy.
func cutInCopy(t *testing.T) (active, standby *pod, key wgkey.Key) {
	t.Helper()
	key = wgkey.NewPrivate()
	active = newPod(t, "a", key, 4*many)
	active.Lead()
	talk(t, active.e, 0, many)
	death := dyingAfter(diesAfter)
	standby = newPod(t, "b", key, 4*many, func(o *Options) { o.Dial = death.dial })
	standby.e.Freeze()
	standby.Follow(active.at)
	<-death.dead
	return active, standby, key
}

// TestStandbyKilledInCopy: when the standby dies in a full copy, nothing happens to the active replica, and another standby has all.
func TestStandbyKilledInCopy(t *testing.T) {
	active, standby, key := cutInCopy(t)
	standby.Close()
	if n := len(table(standby.e)); n == 0 || n == many {
		t.Fatalf("it died with %d connections, which is not within a copy", n)
	}
	talk(t, active.e, many, 1000)
	eventually(t, func() error {
		if f := active.Status().Followers; len(f) > 0 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	if n := len(table(active.e)); n != many+1000 {
		t.Errorf("%d connections, want %d", n, many+1000)
	}
	next := newPod(t, "b", key, 4*many)
	next.e.Freeze()
	next.Follow(active.at)
	need.NoError(t, next.Whole(within(t)))
	equal(t, next.e, active.e)
}

// TestActiveKilledInCopy: when the active replica dies in a full copy, each connection that was copied survives, with its ports, and it is known that
// the copy is not whole.
func TestActiveKilledInCopy(t *testing.T) {
	active, standby, _ := cutInCopy(t)
	active.Close()
	if s := standby.Status().Source; s != nil && !s.NoFullCopy {
		t.Errorf("it says that the copy is whole: %+v", s)
	}
	standby.Lead()
	if n := standby.e.Stats().Connections; n == 0 || n >= many {
		t.Errorf("%d of %d connections were copied, which is not within a copy", n, many)
	}
	requireCopied(t, standby.e, table(active.e))
}

// TestActiveKilledAfterTakeover: a replica that has taken over dies while a third one gets its first copy from it. What the third one had from the
// first one survives, beside what is new of the second one's.
func TestActiveKilledAfterTakeover(t *testing.T) {
	key := wgkey.NewPrivate()
	first, second := newPod(t, "a", key, 4*many), newPod(t, "b", key, 4*many)
	death := dyingAfter(1 << 40)
	third := newPod(t, "c", key, 4*many, func(o *Options) { o.Dial = death.dial })
	first.Lead()
	talk(t, first.e, 0, many)
	for _, p := range []*pod{second, third} {
		p.e.Freeze()
		p.Follow(first.at)
		need.NoError(t, p.Whole(within(t)))
	}
	first.Close()
	second.Lead()
	second.e.Thaw(now())
	talk(t, second.e, many, 1000)
	death.left.Store(diesAfter)
	third.Follow(second.at)
	<-death.dead
	second.Close()
	third.Lead()
	original := table(second.e)
	if n := third.e.Stats().Connections; n < many {
		t.Errorf("%d connections survive, want the %d that were copied before", n, many)
	}
	requireCopied(t, third.e, original)
}
