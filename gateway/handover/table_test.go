package handover

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

const node = nat.Link(1)

// newEngine returns an Engine in which all sources outside the pod CIDR share an address.
func newEngine(t *testing.T) *nat.Engine {
	t.Helper()
	p := netip.MustParsePrefix
	e, err := nat.New([16]byte{1, 2, 3}, &nat.Config{MTU: 1340, MaxConnections: 1 << 13, Config: rules.Config{
		Nodes: []rules.Node{{Link: node, Name: "rome-1",
			Address: rules.PairOf(netip.MustParseAddr("10.80.0.2"))}},
		LocalPodCIDRs:      []netip.Prefix{p("10.200.0.0/16")},
		LocalExternalCIDRs: []netip.Prefix{p("10.70.0.0/16")},
		Remote:             []rules.RemoteCIDR{{Real: p("10.0.0.0/8"), Remapped: p("100.0.0.0/8")}},
		Routes:             []rules.Route{{Prefix: p("10.200.1.0/24"), Link: node}},
		UnknownSource:      rules.PairOf(netip.MustParseAddr("10.70.0.0")),
	}})
	need.NoError(t, err)
	return e
}

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
	lines, old, next := newLines(t), newEngine(t), newEngine(t)
	wire := &countedWire{Wire: lines[0].conn}
	lines[0].conn = wire
	now := nat.Time(time.Hour)
	open := func(i int, at nat.Time) {
		var p packet.Packet
		p.Parse(nattest.IP{Source: "192.0.2.1", Destination: fmt.Sprintf("100.9.%d.%d", i>>8, i&0xff),
			Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53}}.Bytes())
		if v := old.Process(&p, node, at); v.Action != nat.Forward || v.Untracked {
			t.Errorf("connection %d: %v %v, want a tracked connection", i, v.Action, v.Reason)
		}
	}
	for i := range all {
		open(i, now)
	}
	now = now.Add(time.Second)
	handed, first := make(chan error, 1), 0
	go func() {
		names := map[nat.Link]string{nat.Tunnel: "tunnel", node: "rome-1"}
		table := &Table{Engine: old, Now: func() nat.Time { return now }, Batch: batch,
			Name: func(l nat.Link) string { return names[l] }}
		err := lines[0].SendAll(table)
		first = wire.written
		if now = now.Add(time.Second); err == nil {
			open(all, now)
			err = lines[0].CutOver(table, func() error {
				open(all+1, now.Add(-batch/2))
				return nil
			}, func() *Cut { return &Cut{Stopped: 7} })
		}
		handed <- err
	}()
	table := &Table{Engine: next, Now: func() nat.Time { return 99 * nat.Time(time.Hour) },
		Link: func(name string) (nat.Link, bool) {
			return map[string]nat.Link{"tunnel": nat.Tunnel, "rome-1": node}[name], true
		}}
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
