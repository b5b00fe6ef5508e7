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

// A cutNetwork is a network that fails after a follower has received some bytes, as when a process
// is killed.
type cutNetwork struct {
	left atomic.Int64
	dead chan struct{}
}

func cutAfter(bytes int64) *cutNetwork {
	m := &cutNetwork{dead: make(chan struct{})}
	m.left.Store(bytes)
	return m
}

func (m *cutNetwork) dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	c, err := dialTCP(ctx, at)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: c, m: m}, nil
}

type cutConn struct {
	net.Conn
	m *cutNetwork
}

func (c *cutConn) Read(b []byte) (int, error) {
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
	many     = 40_000  // connections
	cutBytes = 500_000 // bytes of a copy of them, which is longer
)

// requireCopied requires that all connections of e are those of the original table, and that their
// answers are translated by them.
func requireCopied(t *testing.T, e *nat.Engine, original []string) {
	t.Helper()
	own := table(e)
	for _, c := range own {
		if _, ok := slices.BinarySearch(original, c); !ok {
			t.Fatalf("%s is not one of the original connections", c)
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
			Body: nattest.UDP{SourcePort: r.SourcePort(), DestinationPort: r.DestinationPort(),
				NoChecksum: true}}.Bytes()
		var p packet.Packet
		p.Parse(answer)
		if v := e.Process(&p, nat.Tunnel, now()); v.Action != nat.Forward || v.Untracked {
			t.Fatalf("an answer of %v: %v %v, want it forwarded by the copied connection", list[i], v.Action, v.Reason)
		}
	}
	if n := e.Stats().Created - created; n != 0 {
		t.Errorf("answers created %d connections, want none", n)
	}
}

// cutInCopy returns two replicas of a gateway, whose stream was cut during a full copy.
func cutInCopy(t *testing.T) (active, standby *pod, key wgkey.Key) {
	t.Helper()
	key = wgkey.NewPrivate()
	active = newPod(t, "a", key, 4*many)
	active.Lead()
	talk(t, active.e, 0, many)
	network := cutAfter(cutBytes)
	standby = newPod(t, "b", key, 4*many, func(o *Options) { o.Dial = network.dial })
	standby.e.Freeze()
	standby.Follow(active.at)
	<-network.dead
	return active, standby, key
}

// TestStandbyKilledInCopy: a standby that is killed during a full copy does not affect the active
// replica. The next standby gets a full copy.
func TestStandbyKilledInCopy(t *testing.T) {
	active, standby, key := cutInCopy(t)
	standby.Close()
	if n := len(table(standby.e)); n == 0 || n == many {
		t.Fatalf("it was killed with %d connections, want more than none and less than %d", n, many)
	}
	talk(t, active.e, many, 1000)
	eventually(t, func() error {
		if f := active.Status().Followers; len(f) > 0 {
			return fmt.Errorf("followers %+v, want none", f)
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

// TestActiveKilledInCopy: when the active replica is killed during a full copy, each connection
// that was copied survives with its ports, and the standby reports that its copy is not whole.
func TestActiveKilledInCopy(t *testing.T) {
	active, standby, _ := cutInCopy(t)
	active.Close()
	if s := standby.Status().Source; s != nil && !s.NoFullCopy {
		t.Errorf("the standby reports a whole copy: %+v", s)
	}
	standby.Lead()
	if n := standby.e.Stats().Connections; n == 0 || n >= many {
		t.Errorf("%d of %d connections were copied, want some and not all", n, many)
	}
	requireCopied(t, standby.e, table(active.e))
}

// TestActiveKilledAfterTakeover: a replica that has taken over is killed while a third one gets its
// first copy from it. The third one keeps the connections of its former copy, and what it has
// received since.
func TestActiveKilledAfterTakeover(t *testing.T) {
	key := wgkey.NewPrivate()
	first, second := newPod(t, "a", key, 4*many), newPod(t, "b", key, 4*many)
	network := cutAfter(1 << 40)
	third := newPod(t, "c", key, 4*many, func(o *Options) { o.Dial = network.dial })
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
	network.left.Store(cutBytes)
	third.Follow(second.at)
	<-network.dead
	second.Close()
	third.Lead()
	original := table(second.e)
	if n := third.e.Stats().Connections; n < many {
		t.Errorf("%d connections survive, want the %d that were copied before", n, many)
	}
	requireCopied(t, third.e, original)
}
