package handover

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/handover/handovertest"
	"culvert/integration/need"
	"culvert/nat"
)

// countedWire counts the bytes that are written without a head.
type countedWire struct {
	Wire
	written int
}

func (c *countedWire) Write(b []byte) (int, error) {
	c.written += len(b)
	return c.Wire.Write(b)
}

// TestTable: the new process gets all connections, those too that begin while others are sent and
// while packets stop, and whose packets were stamped before; but what has not changed only once.
func TestTable(t *testing.T) {
	const all, batch = 2000, 200 * time.Millisecond
	lines := newLines(t, unix.SOCK_SEQPACKET)
	old, next := handovertest.NewEngine(t, 1<<13), handovertest.NewEngine(t, 1<<13)
	wire := &countedWire{Wire: lines[0].conn}
	lines[0].conn = wire
	now := nat.Time(time.Hour)
	open := func(i, n int, at nat.Time) { handovertest.Open(t, old, i, n, func() nat.Time { return at }) }
	open(0, all, now)
	now = now.Add(time.Second)
	handed, first := make(chan error, 1), 0
	go func() {
		table := &Table{Engine: old, Now: func() nat.Time { return now }, Batch: batch, Name: handovertest.LinkName}
		err := lines[0].SendAll(table)
		first = wire.written
		if now = now.Add(time.Second); err == nil {
			open(all, 1, now)
			err = lines[0].CutOver(table, func() error {
				open(all+1, 1, now.Add(-batch/2))
				return nil
			}, func() *Cut { return &Cut{Stopped: 7} })
		}
		handed <- err
	}()
	table := &Table{Engine: next, Now: func() nat.Time { return 99 * nat.Time(time.Hour) },
		Link: handovertest.Link}
	const within = 20 * time.Second
	_, took, err := lines[1].Restore(table, KindStanding, within)
	if need.NoError(t, err); took != (nat.Restored{Connections: all, Whole: true}) {
		t.Errorf("at first %+v, want %d connections", took, all)
	}
	need.NoError(t, lines[1].Send(KindReady, nil, within))
	body, _, err := lines[1].Restore(table, KindCut, within)
	need.NoError(t, err)
	var cut Cut
	if need.NoError(t, Decode(body, &cut)); cut.Stopped != 7 {
		t.Errorf("cut %+v", cut)
	}
	need.NoError(t, lines[1].Send(KindForwarding, nil, within))
	need.NoError(t, <-handed)
	if n := next.Stats().Connections; n != all+2 {
		t.Errorf("%d connections, want %d", n, all+2)
	}
	if changes := wire.written - first; changes > first/4 {
		t.Errorf("%d bytes of changes after %d bytes", changes, first)
	}
}
