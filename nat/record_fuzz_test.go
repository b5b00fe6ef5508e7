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
		var b []byte
		for some := range slices.Chunk(items, nat.RecordBlock-16) {
			block := make([]byte, nat.RecordBlock)
			block[4] = 1
			binary.LittleEndian.PutUint16(block[6:], uint16(copy(block[16:], some)))
			nat.SumRecords(block)
			b = append(b, block...)
		}
		got := restore(e, start, b)
		ledger(t, e)
		if st := e.Stats(); st.Connections > most || st.Connections > got.Connections || st.Clients != got.Clients {
			t.Fatalf("%d connections and %d clients, %+v", st.Connections, st.Clients, got)
		}
		again := restore(other, start, records(e, 0, start))
		if !again.Whole || again.Expired+again.UnknownLink+again.Unbound+again.NoRoom > 0 || again.Clients != e.Stats().Clients {
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
