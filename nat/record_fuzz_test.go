package nat_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// items returns those of the first block.
func items(b []byte) []byte { return b[16:][:binary.LittleEndian.Uint16(b[6:])] }

// blocks returns items in blocks.
func blocks(items []byte) (b []byte) {
	for some := range slices.Chunk(items, nat.RecordBlock-16) {
		block := make([]byte, nat.RecordBlock)
		block[4] = 1
		binary.LittleEndian.PutUint16(block[6:], uint16(copy(block[16:], some)))
		nat.SumRecords(block)
		b = append(b, block...)
	}
	return b
}

// told4 has a connection whose server has its header.
func told4(t testing.TB) *nat.Engine {
	p := pathTo(t, engine(t, proxied), "service")
	p.open()
	p.fromClient(nattest.TCP{Seq: 1001, Ack: 9001, Flags: ack})
	return p.e
}

// FuzzRestore restores any items in blocks with a valid checksum. Afterwards the table is sound:
// packets can use it, its counters add up, and another engine gets all of it.
func FuzzRestore(f *testing.F) {
	f.Add(items(records(kept(f), 0, start)), false)
	f.Add(items(records(kept(f), 0, start))[:300], true)
	f.Add(items(records(told4(f), 0, start)), false)
	f.Add(append([]byte{3, 1, 'w', 80, 0, 6, 4, 1}, make([]byte, 25)...), false) // an expired client
	f.Fuzz(func(t *testing.T, items []byte, few bool) {
		most := 1000
		if few {
			most = 5
		}
		change := func(c *nat.Config) { keeping(c); c.MaxConnections = most }
		e, other := engine(t, change), engine(t, change)
		got := restore(e, start, blocks(items))
		ledger(t, e)
		if st := e.Stats(); st.Connections > most || st.Connections > got.Connections || st.Clients != got.Clients {
			t.Fatalf("%d connections and %d clients, %+v", st.Connections, st.Clients, got)
		}
		again := restore(other, start, records(e, 0, start))
		if !again.Whole || again.Expired+again.UnknownLink+again.Unbound+again.NoRoom > 0 ||
			again.Clients != e.Stats().Clients {
			t.Fatalf("%+v, then %+v", got, again)
		}
		for _, b := range examples() {
			process(t, e, node1, b, start)
			process(t, e, nat.Tunnel, b, start)
		}
		for !e.Sweep(start.Add(time.Minute)) {
		}
		ledger(t, e)
	})
}

// FuzzMirror has a Mirror, whose Engine has a connection, read any items twice. Afterwards the
// table is sound.
func FuzzMirror(f *testing.F) {
	fed := func(e *nat.Engine) []byte {
		feed := e.Feed(recordName)
		defer feed.Close()
		b, _ := feed.Next(nil, start, func() {})
		return items(b)
	}
	f.Add(fed(kept(f)), false)
	f.Add(fed(told4(f)), true)
	f.Add([]byte{5, 0, 0}, false)       // the end of a copy that never began
	f.Add([]byte{7, 1, 5, 0, 0}, false) // a copy of nothing
	f.Fuzz(func(t *testing.T, items []byte, few bool) {
		most := 1000
		if few {
			most = 5
		}
		e := engine(t, func(c *nat.Config) { keeping(c); c.MaxConnections = most })
		forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", 999, 53).Bytes(), start)
		e.Freeze()
		m := e.Mirror(recordLink)
		for range 2 {
			m.Write(blocks(items), start)
		}
		ledger(t, e)
		if st := e.Stats(); st.Connections > most {
			t.Fatalf("%d connections, %+v", st.Connections, m.State())
		}
		m.Close()
		e.Thaw(start)
		for _, b := range examples() {
			process(t, e, node1, b, start)
			process(t, e, nat.Tunnel, b, start)
		}
		for !e.Sweep(start.Add(time.Minute)) {
		}
		ledger(t, e)
	})
}
