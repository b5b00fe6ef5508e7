package nat_test

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

var recordNames = map[nat.Link]string{nat.Tunnel: "tunnel", node1: "rome-1", node2: "rome-2"}

func recordName(l nat.Link) string { return recordNames[l] }

func recordLink(name string) (nat.Link, bool) {
	for l, n := range recordNames {
		if n == name {
			return l, true
		}
	}
	return 0, false
}

func write(f *nat.Feed, now nat.Time) (b []byte) {
	for more := true; more; {
		b, more = f.Next(b, now, func() {})
	}
	return b
}

func read(r *nat.Restore, b []byte) nat.Restored {
	r.Write(b)
	return r.End()
}

// records returns what e writes.
func records(e *nat.Engine, since, now nat.Time) []byte {
	return write(e.Records(since, recordName), now)
}

func restore(e *nat.Engine, now nat.Time, b []byte) nat.Restored {
	return read(e.Restore(recordLink, now), b)
}

// keeping is rome with everything that makes connections need records.
func keeping(c *nat.Config) {
	dual(c)
	c.Addresses = []rules.AddressMapping{{External: address("10.70.0.9"), Internal: address("192.0.2.10"), Via: node2}}
	s := service(rules.Backend{Address: address("10.200.1.5"), Port: 8080},
		rules.Backend{Address: address("10.200.2.5"), Port: 8080})
	s.Affinity = rules.AffinityClientIP
	c.Services = []rules.Service{s}
}

// kept has connections that need records, and one between pods that needs none.
func kept(t testing.TB) *nat.Engine {
	e := engine(t, keeping)
	handshake(t, e, node1, "203.0.113.9", 2000, start)
	handshake(t, e, node2, "203.0.113.10", 2000, start) // U's port 2000 is in use
	for _, body := range nattest.Bodies(false) {
		process(t, e, node1, nattest.IP{Source: "203.0.113.11", Destination: "10.71.3.9", Body: body}.Bytes(), start)
	}
	for range 2 { // a stream
		forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", 5000, 53).Bytes(), start)
		forwarded(t, e, nat.Tunnel, udp("10.200.3.9", "10.70.0.0", 53, 5000).Bytes(), start)
	}
	forwarded(t, e, node2, udp("fd80::3", remote6, 5000, 53).Bytes(), start)
	forwarded(t, e, nat.Tunnel, tcp("10.200.3.9", "10.70.0.9", 40000, 80, nattest.SYN, "").Bytes(), start)
	forwarded(t, e, nat.Tunnel, tcp("10.200.3.9", "10.70.0.20", 40000, 80, nattest.SYN, "").Bytes(), start)
	forwarded(t, e, node1, udp("10.200.1.5", "10.71.3.9", 5000, 53).Bytes(), start)
	return e
}

// listed returns the connections of e, as far as records describe them, ordered by their tuples.
func listed(e *nat.Engine, now nat.Time) (all []string) {
	var list []nat.ConnInfo
	for at, more := nat.Cursor(0), true; more; {
		list, at, more = e.Connections(at, &nat.ConnFilter{}, now, list)
	}
	for i := range list {
		c := &list[i]
		all = append(all, fmt.Sprint(c.Original.String(), " ", c.Reply.String(), " ", c.Out[0], c.State, c.Replied,
			c.Service, c.Mark, c.Idle, c.Left, c.Packets, c.Bytes))
	}
	slices.Sort(all)
	return all
}

// An Engine that gets the records of another has its connections, except those that the next packet
// would recreate; its own records are the same.
func TestRecords(t *testing.T) {
	e := kept(t)
	now := start.Add(7 * time.Second)
	saved := records(e, 0, now)
	other := engine(t, keeping)
	const later = 99 * nat.Time(time.Hour) // by another clock
	got := restore(other, later, saved)
	want := slices.DeleteFunc(listed(e, now), func(s string) bool {
		return strings.HasPrefix(s, "17 10.200.1.5:5000>")
	})
	if got != (nat.Restored{Connections: len(want), Clients: 1, Whole: true}) {
		t.Errorf("%+v, want all %d connections and a client", got, len(want))
	}
	if got := listed(other, later); !slices.Equal(got, want) {
		t.Errorf("restored\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if st := other.Stats(); st.Ports != e.Stats().Ports || st.Unreplied != e.Stats().Unreplied-1 {
		t.Errorf("%d ports and %d unreplied, want %d and %d", st.Ports, st.Unreplied, e.Stats().Ports,
			e.Stats().Unreplied-1)
	}
	if again := records(other, 0, later); !bytes.Equal(again[16:], saved[16:]) {
		t.Error("the records of what was restored are others")
	}
	ledger(t, other)
	// Packets of either direction find their connections.
	_, v, _ := forwarded(t, other, nat.Tunnel, udp("10.200.3.9", "10.70.0.0", 53, 5000).Bytes(), later)
	expect(t, v, "10.71.3.9", "203.0.113.9")
	_, old, _ := forwarded(t, e, node2, tcp("203.0.113.10", "10.71.3.9", 2000, 80, nattest.ACK, "").Bytes(), now)
	if _, v, _ = forwarded(t, other, node2, tcp("203.0.113.10", "10.71.3.9", 2000, 80, nattest.ACK, "").Bytes(),
		later); v.SourcePort != old.SourcePort || v.SourcePort == 2000 {
		t.Errorf("port %d, was %d", v.SourcePort, old.SourcePort)
	}
	back := tcp("10.200.3.9", "10.70.0.0", 80, v.SourcePort, nattest.ACK, "")
	if out, v, _ := forwarded(t, other, nat.Tunnel, back.Bytes(), later); out.Out != node2 ||
		v.DestinationPort != 2000 {
		t.Errorf("to port %d at link %d", v.DestinationPort, out.Out)
	}
	ledger(t, other)
}

// While records are written, packets get their turn, even if a large table has little to write.
func TestRecordsPause(t *testing.T) {
	const n = 8 << 10
	e := engine(t, func(c *nat.Config) { c.MaxConnections = 4 * n })
	for i := range n {
		forwarded(t, e, node1, udp("10.200.1.5", "10.71.3.9", uint16(1024+i), 53).Bytes(), start)
	}
	for _, test := range []struct {
		name        string
		since       nat.Time
		least, most int // pauses
	}{{"pods", 0, n>>10 - 1, n >> 10}, {"none since", start + 1, 0, 1}} {
		pauses := 0
		need.NoError(t, e.Records(test.since, recordName).Write(io.Discard, start, func() { pauses++ }))
		if pauses < test.least || pauses > test.most {
			t.Errorf("%s: %d pauses, want %d to %d", test.name, pauses, test.least, test.most)
		}
	}
}

// It is unknown what given rules would decide about the next packet, and their marks may affect
// filters too.
func TestRecordsOfMarks(t *testing.T) {
	for mark := range uint32(2) {
		change := func(c *nat.Config) {
			given(c)
			c.Firewall = append(c.Firewall, rules.Table{Name: "mark", Family: rules.FamilyIPv4, Chains: []rules.Chain{{
				Name: "c", Type: rules.ChainFilter, Hook: rules.HookPrerouting, Priority: rules.PriorityMangle,
				Rules: []rules.Rule{{Name: "m", Action: rules.ActionCTMark, Value: mark}},
			}}})
		}
		e, other := engine(t, change), engine(t, change)
		forwarded(t, e, node1, udp("10.200.1.5", "192.0.2.9", 1, 2).Bytes(), start)
		restore(other, start, records(e, 0, start))
		list, _, _ := other.Connections(0, &nat.ConnFilter{}, start, nil)
		if len(list) != 1 || list[0].Mark != mark {
			t.Errorf("mark %d: %+v", mark, list)
		}
	}
}

// Records restored into another configuration.
func TestRestoreElsewhere(t *testing.T) {
	saved := records(kept(t), 0, start.Add(2*time.Second))
	all := restore(engine(t, keeping), start, saved).Connections
	for _, test := range []struct {
		name   string
		change func(*nat.Config)
		want   nat.Restored // Connections: how many less than all; Clients: less than 1
	}{
		{"the same", func(*nat.Config) {}, nat.Restored{}},
		{"another U", func(c *nat.Config) { c.UnknownSource.V6 = address("fd00:70::7") }, nat.Restored{Connections: 1,
			Unbound: 1}},
		{"no mapping", func(c *nat.Config) { c.Addresses = nil }, nat.Restored{Connections: 1, Unbound: 1}},
		{"no service", func(c *nat.Config) { c.Services = nil }, nat.Restored{}},
		{"other backends", func(c *nat.Config) { c.Services[0].Backends = c.Services[0].Backends[:1] }, nat.Restored{}},
		{"a node less", func(c *nat.Config) {
			c.Nodes, c.Addresses, c.Routes = c.Nodes[:1], nil, slices.DeleteFunc(c.Routes, func(r rules.Route) bool {
				return r.Link == node2
			})
		}, nat.Restored{Connections: 3, Unbound: 1, UnknownLink: 2}},
		{"less time", func(c *nat.Config) { c.Timeouts.UDPStream = time.Second }, nat.Restored{Connections: 1,
			Expired: 1}},
		{"less room", func(c *nat.Config) { c.MaxConnections = 4 }, nat.Restored{Connections: all - 4,
			NoRoom: all - 4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, keeping, test.change)
			got := restore(e, start.Add(time.Minute), saved)
			test.want.Connections, test.want.Clients, test.want.Whole = all-test.want.Connections, 1, true
			if got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
			ledger(t, e)
		})
	}
}

// Connections with an answer stay when a smaller table cannot hold all.
func TestRestoreLessRoom(t *testing.T) {
	e := engine(t)
	for i := range 20 {
		source := fmt.Sprintf("203.0.113.%d", i)
		if i%2 == 0 || i < 6 {
			forwarded(t, e, node1, udp(source, "10.71.3.9", 2000, 53).Bytes(), start)
		} else {
			handshake(t, e, node1, source, 2000, start)
		}
	}
	other := engine(t, func(c *nat.Config) { c.MaxConnections = 10 })
	got := restore(other, start, records(e, 0, start))
	if st := other.Stats(); st.Connections != 10 || st.Unreplied != 3 || st.EarlyDropped != 2 || got.NoRoom == 0 {
		t.Errorf("%d connections, %d unreplied, %d dropped; %+v", st.Connections, st.Unreplied, st.EarlyDropped, got)
	}
	ledger(t, other)
}

// A flood that filled a larger table leaves room in a smaller one for others.
func TestRestoredFlood(t *testing.T) {
	e := engine(t)
	for port := range uint16(100) {
		forwarded(t, e, node1, udp("203.0.113.1", "10.71.3.9", 2000+port, 53).Bytes(), start)
	}
	other := engine(t, func(c *nat.Config) { c.MaxConnections = 20 })
	if got := restore(other, start, records(e, 0, start)); got.Connections != 10 || got.NoRoom != 90 {
		t.Errorf("%+v, want 10 of 100", got)
	}
	forwarded(t, other, node2, udp("203.0.113.2", "10.71.3.9", 2000, 53).Bytes(), start)
	ledger(t, other)
}

// Records of existing connections count once, whoever has created those, and records that find no
// room again count as dropped.
func TestRestoreCounts(t *testing.T) {
	e := engine(t)
	const n = 20
	for i := range n {
		forwarded(t, e, node1, udp(fmt.Sprintf("203.0.%d.9", i), "10.71.3.9", 2000, 53).Bytes(), start)
	}
	saved := records(e, 0, start)
	restore(e, start, saved)
	if st := e.Stats(); st.Connections != n || st.Created != n || st.Restored != 0 {
		t.Errorf("%d connections, %d made, %d restored; want %[2]d, %[2]d, 0", st.Connections, st.Created, st.Restored)
	}
	ledger(t, e)
	less := rome()
	less.MaxConnections = n / 2
	need.NoError(t, e.Apply(less))
	restore(e, start, saved)
	if st := e.Stats(); st.Restored != 0 || st.EarlyDropped == 0 || st.EarlyDropped != uint64(n-st.Connections) {
		t.Errorf("%d restored, %d dropped, %d connections", st.Restored, st.EarlyDropped, st.Connections)
	}
	ledger(t, e)
	other := engine(t)
	restore(other, start, saved)
	if restore(other, start, saved); other.Stats().Restored != n {
		t.Errorf("%d restored in two rounds, want %d", other.Stats().Restored, n)
	}
	ledger(t, other)
}

// The connection with the oldest last packet is evicted first, wherever its record was.
func TestRestoredOrder(t *testing.T) {
	small := func(c *nat.Config) { c.MaxConnections = 10 }
	e, other, now := engine(t, small), engine(t, small), start
	open := func(e *nat.Engine, source string) {
		now = now.Add(time.Second)
		forwarded(t, e, node1, udp(source, "10.71.3.9", 2000, 53).Bytes(), now)
	}
	for i := range 5 {
		if open(e, fmt.Sprintf("203.0.%d.9", i)); i == 2 {
			e.DeleteConnections(0, &nat.ConnFilter{Addresses: []netip.Prefix{prefix("203.0.0.9/32")}}, now)
		}
	}
	open(e, "203.0.5.9")
	restore(other, now, records(e, 0, now))
	if open(other, "203.0.6.9"); other.Stats().EarlyDropped != 1 {
		t.Fatalf("%+v", other.Stats())
	}
	for i, want := range []bool{false, false, true, true, true, true, true} {
		list, _, _ := other.Connections(0,
			&nat.ConnFilter{Addresses: []netip.Prefix{prefix(fmt.Sprintf("203.0.%d.9/32", i))}}, now, nil)
		if len(list) > 0 != want {
			t.Errorf("203.0.%d.9: %t", i, !want)
		}
	}
}

// many has enough nodes to fill a block of records with their names.
func many(c *nat.Config) {
	for l := nat.Link(20); l < 30; l++ {
		c.Nodes = append(c.Nodes, rules.Node{Link: l, Name: fmt.Sprint("n", l),
			Address: rules.PairOf(netip.AddrFrom4([4]byte{10, 80, 1, byte(l)}))})
	}
}

func longName(l nat.Link) string { return fmt.Sprintf("%0500d", l) }

func longLink(name string) (nat.Link, bool) {
	l, err := strconv.ParseUint(name, 10, 16)
	return nat.Link(l), err == nil
}

// small returns two blocks of records and the number of connections in each.
func small(t testing.TB) (saved []byte, in [2]int) {
	e := engine(t, many)
	for l := nat.Link(20); l < 30; l++ {
		forwarded(t, e, l, udp(fmt.Sprintf("203.0.113.%d", l), "10.71.3.9", 2000, 53).Bytes(), start)
		if saved = write(e.Records(0, longName), start); len(saved) == nat.RecordBlock {
			in[0]++
		} else {
			in[1]++
		}
	}
	if in[0] < 3 || in[1] < 3 || len(saved) != 2*nat.RecordBlock {
		t.Fatalf("%d bytes, %d connections", len(saved), in)
	}
	return saved, in
}

// A wrong byte costs its block, and the result reports it.
func TestRestoreDamaged(t *testing.T) {
	saved, in := small(t)
	e := engine(t, many)
	for i := range saved {
		b := bytes.Clone(saved)
		b[i] ^= byte(1 + i%255)
		got := read(e.Restore(longLink, start), b)
		if want := (nat.Restored{Connections: in[1-i/nat.RecordBlock], Damaged: 1}); got != want {
			t.Fatalf("byte %d: %+v, want %+v", i, got, want)
		}
		empty(t, e)
	}
	// Whatever a byte is instead.
	block := saved[:nat.RecordBlock]
	for i := range block {
		for flip := 1; flip < 256; flip++ {
			block[i] ^= byte(flip)
			if got := read(e.Restore(longLink, start), block); got != (nat.Restored{Damaged: 1}) {
				t.Fatalf("byte %d is %#x: %+v", i, block[i], got)
			}
			block[i] ^= byte(flip)
		}
	}
	ledger(t, e)
}

// A truncated part is missing, and the result reports it.
func TestRestoreTruncated(t *testing.T) {
	saved, in := small(t)
	e := engine(t, many)
	for n := range saved {
		got, want := read(e.Restore(longLink, start), saved[:n]), nat.Restored{}
		if n >= nat.RecordBlock {
			want.Connections = in[0]
		}
		if n%nat.RecordBlock > 0 {
			want.Damaged = 1
		}
		if got != want {
			t.Fatalf("%d bytes: %+v, want %+v", n, got, want)
		}
		empty(t, e)
	}
	// Pieces of any size give the same result.
	r := e.Restore(longLink, start)
	for piece := range slices.Chunk(saved, 1000) {
		r.Write(piece)
	}
	if got := r.End(); got != (nat.Restored{Connections: in[0] + in[1], Whole: true}) {
		t.Errorf("%+v", got)
	}
	ledger(t, e)
}

// Copies of records are restored once, and count once.
func TestRestoreCopies(t *testing.T) {
	saved, in := small(t)
	e := engine(t, many)
	r := e.Restore(longLink, start)
	for range 100 {
		r.Write(saved)
	}
	all := in[0] + in[1]
	if got := r.End(); got != (nat.Restored{Connections: all, Whole: true}) {
		t.Errorf("%+v, want %d connections", got, all)
	}
	if n := e.Stats().Restored; n != uint64(all) {
		t.Errorf("%d connections are counted, want %d", n, all)
	}
	ledger(t, e)
}

// Records of a link without a name are skipped, without harm to another link of the same
// connection.
func TestRecordsOfNamelessLinks(t *testing.T) {
	e := engine(t, given)
	forwarded(t, e, node1, udp("203.0.113.9", "192.0.2.9", 1, 2).Bytes(), start)
	forwarded(t, e, node2, udp("10.200.2.5", "10.200.1.5", 1, 2).Bytes(), start)
	saved := write(e.Records(0, func(l nat.Link) string {
		if l == nat.Tunnel {
			return ""
		}
		return recordName(l)
	}), start)
	if got := restore(engine(t, given), start, saved); got != (nat.Restored{Connections: 1, Whole: true}) {
		t.Errorf("%+v, want the connection between nodes", got)
	}
}

func TestRestoreForeign(t *testing.T) {
	saved, in := small(t)
	for _, version := range []byte{0, 2, 255} {
		b := bytes.Clone(saved)
		b[4] = version
		nat.SumRecords(b[:nat.RecordBlock])
		if got := read(engine(t, many).Restore(longLink, start), b); got != (nat.Restored{Connections: in[1],
			Foreign: 1}) {
			t.Errorf("version %d: %+v", version, got)
		}
	}
	for name, b := range map[string][]byte{
		"empty": nil, "text": bytes.Repeat([]byte("connections: none\n"), 1000), "zeros": make([]byte, 1<<20),
	} {
		e := engine(t)
		if got, blocks := restore(e, start, b), (len(b)+nat.RecordBlock-1)/nat.RecordBlock; got !=
			(nat.Restored{Damaged: blocks}) {
			t.Errorf("%s: %+v, want %d damaged blocks", name, got, blocks)
		}
	}
}

// empty removes all connections.
func empty(t testing.TB, e *nat.Engine) {
	t.Helper()
	for at, more := nat.Cursor(0), true; more; {
		_, at, more = e.DeleteConnections(at, &nat.ConnFilter{}, start)
	}
	if n := e.Stats().Connections; n != 0 {
		t.Fatalf("%d connections", n)
	}
}

// A second round writes what has changed since the first.
func TestRecordsOfChanges(t *testing.T) {
	e, other, now := kept(t), engine(t, keeping), start.Add(time.Second)
	var first []byte
	for _, c := range []struct {
		in     nat.Link
		source string
	}{{node2, "203.0.113.8"}, {node1, "203.0.113.7"}} {
		if c.in == node1 { // the ports of a connection that has ended
			e.DeleteConnections(0, &nat.ConnFilter{Ports: []uint16{6000}}, now)
		}
		_, v, _ := forwarded(t, e, c.in, udp(c.source, "10.71.3.9", 6000, 53).Bytes(), now)
		if v.SourcePort != 6000 {
			t.Fatalf("port %d", v.SourcePort)
		}
		if c.in == node2 {
			first = records(e, 0, start)
		}
	}
	forwarded(t, e, nat.Tunnel, udp("10.200.3.9", "10.70.0.0", 53, 5000).Bytes(), now)
	second := records(e, now, now)
	if len(second) != nat.RecordBlock {
		t.Errorf("%d bytes", len(second))
	}
	restore(other, start, first)
	got := restore(other, now, second)
	want := slices.DeleteFunc(listed(e, now), func(s string) bool {
		return strings.HasPrefix(s, "17 10.200.1.5:5000>")
	})
	if all := listed(other, now); !slices.Equal(all, want) {
		t.Errorf("restored\n%s\nwant\n%s", strings.Join(all, "\n"), strings.Join(want, "\n"))
	}
	if got != (nat.Restored{Connections: 2, Whole: true}) {
		t.Errorf("%+v", got)
	}
	ledger(t, other)
}

// No connection gets the ID of another, however often the gateway restarts.
func TestRestoredIDs(t *testing.T) {
	e, seen := kept(t), map[uint64]bool{}
	for round := range 6 {
		saved := records(e, 0, start)
		if round%2 == 1 { // sometimes with a gateway in between that creates no connection
			idle := engine(t, keeping)
			restore(idle, start, records(e, start.Add(1), start))
			saved = records(idle, 0, start)
		}
		empty(t, e)
		for i := range 3 {
			forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", uint16(2000+i), 53).Bytes(), start)
		}
		list, _, _ := e.Connections(0, &nat.ConnFilter{}, start, nil)
		e = engine(t, keeping)
		restore(e, start, saved)
		list, _, _ = e.Connections(0, &nat.ConnFilter{}, start, list)
		for i, c := range list {
			if seen[c.ID] {
				t.Fatalf("%d once more", c.ID)
			}
			seen[c.ID] = true
			if _, ok := e.Connection(c.ID, start); ok != (i >= 3) {
				t.Fatalf("%d found %t", c.ID, ok)
			}
		}
	}
}

// A restored connection lives as long as it had left.
func TestRestoredTimes(t *testing.T) {
	e := engine(t)
	forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", 2000, 53).Bytes(), start)
	saved := records(e, 0, start.Add(100*time.Second))
	for _, test := range []struct {
		after time.Duration
		want  int
	}{{19 * time.Second, 1}, {23 * time.Second, 0}} {
		e, now := engine(t), nat.Time(time.Second) // its clock has just started
		restore(e, now, saved)
		for !e.Sweep(now.Add(test.after)) {
		}
		if n := e.Stats().Connections; n != test.want {
			t.Errorf("%d connections after %v, want %d", n, test.after, test.want)
		}
	}
	// Even after two restarts, a connection is not older than the gateway, and its idle time before
	// counts.
	young, younger := engine(t), engine(t)
	restore(young, 0, saved)
	restore(younger, 0, records(young, 0, nat.Time(time.Second)))
	if got := listed(younger, 0); len(got) != 1 || !strings.Contains(got[0], " 1m41s 19s ") {
		t.Errorf("after two restarts: %q", got)
	}
	if got := restore(engine(t), start, records(e, 0, start.Add(120*time.Second))); got != (nat.Restored{Whole: true}) {
		t.Errorf("%+v of what is over", got)
	}
}

// While the gateway was down, a connection has advanced by more than any window. It is followed
// from its next segments on, and its end is noticed.
func TestRestoredTCP(t *testing.T) {
	for _, test := range []struct {
		name        string
		sent, heard uint32 // bytes that have passed
	}{
		{"nothing", 0, 0}, {"up", 3e9, 0}, {"down", 0, 3e9}, {"both ways", 3e9, 1e9}, {"a little", 70000, 70000},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t)
			handshake(t, e, node1, "203.0.113.9", 2000, start)
			other := engine(t)
			restore(other, start, records(e, 0, start))
			seq := [2]uint32{1001 + test.sent, 5001 + test.heard}
			send := func(flags uint8, payload string, back bool) {
				t.Helper()
				b := nattest.TCP{SourcePort: 2000, DestinationPort: 80, Seq: seq[0], Ack: seq[1],
					Flags: nattest.ACK | flags, Window: 1000, Payload: []byte(payload)}
				p, in := nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: b}, node1
				if back {
					b.SourcePort, b.DestinationPort, b.Seq, b.Ack = 80, 2000, seq[1], seq[0]
					p, in = nattest.IP{Source: "10.200.3.9", Destination: "10.70.0.0", Body: b}, nat.Tunnel
				}
				forwarded(t, other, in, p.Bytes(), start)
				n := uint32(len(payload))
				if flags&nattest.FIN != 0 {
					n++
				}
				if back {
					seq[1] += n
				} else {
					seq[0] += n
				}
			}
			if test.heard > 0 {
				send(0, "down", true)
			}
			if test.sent > 0 {
				send(0, "up", false)
			}
			send(0, "", true)
			send(nattest.FIN, "", false)
			send(nattest.FIN, "", true)
			send(0, "", false)
			list, _, _ := other.Connections(0, &nat.ConnFilter{}, start, nil)
			if len(list) != 1 || list[0].State != "time-wait" {
				t.Errorf("%+v", list)
			}
		})
	}
}

// A client of a service keeps its backend, although its connections have ended and a new choice
// would be another backend.
func TestRestoredAffinity(t *testing.T) {
	e, other := engine(t, keeping), engine(t, keeping)
	syn := func(source string, port uint16) []byte {
		return tcp(source, "10.70.0.20", port, 80, nattest.SYN, "").Bytes()
	}
	was := map[string]string{}
	for i := range 40 {
		source := fmt.Sprintf("10.200.3.%d", i)
		_, v, _ := forwarded(t, e, nat.Tunnel, syn(source, 40000), start)
		was[source] = v.Destination.String()
	}
	empty(t, e)
	if got := restore(other, start, records(e, 0, start.Add(time.Hour))); got != (nat.Restored{Clients: 40,
		Whole: true}) {
		t.Errorf("%+v", got)
	}
	same, chosen := 0, 0
	for source, backend := range was {
		if _, v, _ := forwarded(t, other, nat.Tunnel, syn(source, 50000), start); v.Destination.String() == backend {
			same++
		}
		if _, v, _ := forwarded(t, engine(t, keeping), nat.Tunnel, syn(source, 50000),
			start); v.Destination.String() == backend {
			chosen++
		}
	}
	if same != 40 || chosen == 40 {
		t.Errorf("%d of 40 keep their backends, %d would have got them anyway", same, chosen)
	}
	// They are forgotten when their three hours are over.
	for !other.Sweep(start.Add(2*time.Hour + time.Second)) {
	}
	if n := other.Stats().Clients; n != 40 {
		t.Errorf("%d clients, want those that were seen again", n)
	}
}
