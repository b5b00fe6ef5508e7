package nat_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// connections returns all connections that f selects.
func connections(e *nat.Engine, f nat.ConnFilter, now nat.Time) (all []nat.ConnInfo) {
	for at, more := nat.Cursor(0), true; more; {
		all, at, more = e.Connections(at, &f, now, all)
	}
	return all
}

// Connections of several kinds are found by their addresses and ports before and after translation,
// and by no others.
func TestConnectionFilters(t *testing.T) {
	e := engine(t)
	handshake(t, e, node1, "203.0.113.9", 2000, start) // gets U
	// a pod, to a remap
	forwarded(t, e, node2, udp("10.200.2.5", "10.72.48.7", 4000, 53).Bytes(), start)
	// from the peer
	forwarded(t, e, nat.Tunnel, udp("10.200.3.9", "10.200.1.5", 7, 9).Bytes(), start)
	forwarded(t, e, node1, udp("fd00:200:0:1::5", "fd00:71:0:4000::7", 1, 2).Bytes(), start.Add(time.Second)) // IPv6
	forwarded(t, e, node1, nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Body: nattest.ICMP{Type: 8,
		Rest: 77 << 16}}.Bytes(), start)
	port := func(p nat.Link) *nat.Link { return &p }
	for _, tt := range []struct {
		name   string
		filter nat.ConnFilter
		want   int
	}{
		{"all", nat.ConnFilter{}, 5},
		{"source", nat.ConnFilter{Addresses: []netip.Prefix{prefix("203.0.113.9/32")}}, 1},
		{"translated source", nat.ConnFilter{Addresses: []netip.Prefix{prefix("10.70.0.0/32")}}, 1},
		{"destination as seen", nat.ConnFilter{Addresses: []netip.Prefix{prefix("10.72.0.0/16")}}, 1},
		{"translated destination", nat.ConnFilter{Addresses: []netip.Prefix{prefix("10.64.0.0/20")}}, 1},
		{"both ends", nat.ConnFilter{Addresses: []netip.Prefix{prefix("10.200.2.5/32"), prefix("10.72.48.7/32")}}, 1},
		{"ends of two connections", nat.ConnFilter{Addresses: []netip.Prefix{prefix("203.0.113.9/32"),
			prefix("10.72.48.7/32")}}, 0},
		{"IPv6", nat.ConnFilter{Addresses: []netip.Prefix{prefix("fd00::/16")}}, 1},
		{"port", nat.ConnFilter{Ports: []uint16{53}}, 1},
		{"two ports", nat.ConnFilter{Ports: []uint16{80, 2000}}, 1},
		{"identifier", nat.ConnFilter{Ports: []uint16{77}}, 1},
		{"protocol", nat.ConnFilter{Protocol: 17}, 3},
		{"node of origin or destination", nat.ConnFilter{Link: port(node1)}, 4},
		{"tunnel", nat.ConnFilter{Link: port(nat.Tunnel)}, 5},
		{"other node", nat.ConnFilter{Link: port(node2)}, 1},
		{"state", nat.ConnFilter{State: "established"}, 1},
		{"no such state", nat.ConnFilter{State: "closed"}, 0},
	} {
		got := connections(e, tt.filter, start)
		for _, c := range got {
			if !tt.filter.Selects(&c) {
				t.Errorf("%s: selects %+v only in the table", tt.name, c)
			}
		}
		if len(got) != tt.want {
			t.Errorf("%s: %d connections, want %d: %+v", tt.name, len(got), tt.want, got)
		}
	}
	c := connections(e, nat.ConnFilter{State: "established"}, start.Add(time.Minute))[0]
	if c.Original.String() != "6 203.0.113.9:2000>10.71.3.9:80@1" || c.Reply.Source() != address("10.200.3.9") ||
		c.Reply.Destination() != address("10.70.0.0") ||
		!c.Replied || c.Idle != time.Minute || c.Left != 120*time.Hour-time.Minute || c.Packets != [2]uint64{2, 1} ||
		c.Bytes[0] == 0 || c.Out != [2]nat.Link{nat.Tunnel, node1} {
		t.Errorf("%+v", c)
	}
	if found, ok := e.FindConnection(&c.Reply, start.Add(time.Minute)); !ok || found != c {
		t.Errorf("by its reply: %v, %+v", ok, found)
	}
}

// While others come and go, each connection that stays is listed exactly once.
func TestConnectionsWhileTheyChange(t *testing.T) {
	e := engine(t)
	const stay = 1000
	open := func(prefix string, i int) {
		forwarded(t, e, node1, udp(fmt.Sprintf("203.0.%s.%d", prefix, 1+i%250), "10.71.3.9", uint16(2000+i),
			53).Bytes(), start)
	}
	for i := range stay {
		open("113", i)
		open("114", i)
	}
	passing := nat.ConnFilter{Addresses: []netip.Prefix{prefix("203.0.114.0/24")}}
	seen := map[uint16]int{}
	var list []nat.ConnInfo
	calls := 0
	for at, more := nat.Cursor(0), true; more; calls++ {
		list, at, more = e.Connections(at, &nat.ConnFilter{Addresses: []netip.Prefix{prefix("203.0.113.0/24")}},
			start, list[:0])
		for _, c := range list {
			seen[c.Original.SourcePort()]++
		}
		for from, more := nat.Cursor(0), true; more && calls%3 == 0; {
			_, from, more = e.DeleteConnections(from, &passing, start)
		}
		open("114", calls)
	}
	if len(seen) != stay || calls < 2*stay/64 {
		t.Errorf("%d connections in %d calls", len(seen), calls)
	}
	for port, n := range seen {
		if n != 1 {
			t.Errorf("port %d: listed %d times", port, n)
		}
	}
	ledger(t, e)
}

// A deleted connection is gone and counted, and its next packet creates another. Others stay.
func TestDeleteConnections(t *testing.T) {
	e := engine(t)
	handshake(t, e, node1, "203.0.113.9", 2000, start)
	handshake(t, e, node1, "203.0.113.8", 2000, start)
	f := nat.ConnFilter{Addresses: []netip.Prefix{prefix("203.0.113.9/32")}}
	if n, _, more := e.DeleteConnections(0, &f, start); n != 1 || more {
		t.Fatalf("%d deleted, more %v", n, more)
	}
	if st := e.Stats(); st.Deleted != 1 || st.Connections != 1 {
		t.Errorf("%+v", st)
	}
	if left := connections(e, nat.ConnFilter{}, start); len(left) != 1 ||
		left[0].Original.Source() != address("203.0.113.8") {
		t.Errorf("%+v is left", left)
	}
	handshake(t, e, node1, "203.0.113.9", 2000, start)
	ledger(t, e)
}

// A watch reports each begin and end that its filter selects, in order and with the reason. It
// loses what it has no room for and says how much; the table is the same with and without it.
func TestWatch(t *testing.T) {
	e := engine(t, func(c *nat.Config) { c.MaxConnections = 100 })
	w := e.Watch(nat.ConnFilter{Protocol: 17}, 3)
	send := func(port uint16, now nat.Time) {
		forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", port, 53).Bytes(), now)
	}
	handshake(t, e, node1, "203.0.113.9", 2000, start)
	send(1, start)
	send(1, start)
	send(2, start)
	first := nat.ConnFilter{Ports: []uint16{1}}
	e.DeleteConnections(0, &first, start)
	var got []string
	take := func() (lost uint64) {
		t.Helper()
		events, lost := w.Take(nil)
		for _, ev := range events {
			got = append(got, fmt.Sprintf("%s %d %d", ev.Ended, ev.Original.SourcePort(), ev.Packets[0]))
		}
		return lost
	}
	if lost := take(); lost != 0 || !slices.Equal(got, []string{" 1 0", " 2 0", "deleted 1 2"}) {
		t.Fatalf("%q, %d lost", got, lost)
	}
	got = nil
	later := start.Add(10 * time.Minute)
	for !e.Sweep(later) {
	}
	for port := range uint16(5) {
		send(10+port, later)
	}
	if lost := take(); lost != 3 || !slices.Equal(got, []string{"expired 2 1", " 10 0", " 11 0"}) {
		t.Fatalf("%q, %d lost", got, lost)
	}
	w.Close()
	send(20, later)
	if events, lost := w.Take(nil); len(events) != 0 || lost != 0 {
		t.Errorf("closed: %v, %d lost", events, lost)
	}
	ledger(t, e)
}

// No two connections have one ID, however often their places in the table are reused. An ID leads
// to its connection while that lives, and to none later.
func TestConnectionIDs(t *testing.T) {
	e := engine(t)
	w := e.Watch(nat.ConnFilter{}, 1000)
	defer w.Close()
	seen := map[uint64]string{}
	const rounds, each = 20, 10
	now := start
	for round := range rounds {
		var all []nat.ConnInfo
		for i := range each {
			forwarded(t, e, node1, udp(fmt.Sprintf("203.0.113.%d", 1+i), "10.71.3.9", uint16(round), 53).Bytes(), now)
			forwarded(t, e, node1, udp(fmt.Sprintf("fd00:200:0:1::%d", 1+i), "fd00:71:0:4000::7", uint16(round),
				53).Bytes(), now)
		}
		all = connections(e, nat.ConnFilter{}, now)
		if len(all) != 2*each {
			t.Fatalf("round %d: %d connections", round, len(all))
		}
		for _, c := range all {
			name := c.Original.String()
			if was, taken := seen[c.ID]; taken || c.ID == 0 {
				t.Fatalf("round %d: %s has ID %d, which %s had", round, name, c.ID, was)
			}
			seen[c.ID] = name
			if got, ok := e.Connection(c.ID, now); !ok || got != c {
				t.Fatalf("ID %d leads to %+v, %v, want %+v", c.ID, got, ok, c)
			}
		}
		if round%2 == 0 {
			e.DeleteConnections(0, &nat.ConnFilter{}, now)
		} else {
			now = now.Add(10 * time.Minute)
			if _, ok := e.Connection(all[0].ID, now); ok {
				t.Fatalf("ID %d leads to a connection whose time is over", all[0].ID)
			}
			for !e.Sweep(now) {
			}
		}
		for id := range seen {
			if got, ok := e.Connection(id, now); ok {
				t.Fatalf("ID %d of %s, which has ended, leads to %+v", id, seen[id], got)
			}
		}
		events, _ := w.Take(nil)
		for ; len(events) > 0; events, _ = w.Take(nil) {
			for _, ev := range events {
				if seen[ev.ID] != ev.Original.String() {
					t.Fatalf("an event about %s has ID %d, of %q", ev.Original.String(), ev.ID, seen[ev.ID])
				}
			}
		}
	}
	if len(seen) != rounds*2*each {
		t.Errorf("%d IDs", len(seen))
	}
	for _, id := range []uint64{0, 1 << 20, 1 << 63, 1<<64 - 1} {
		if got, ok := e.Connection(id, now); ok {
			t.Errorf("ID %d leads to %+v", id, got)
		}
	}
}
