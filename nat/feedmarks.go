package nat

import (
	"math/bits"

	"culvert/nat/packet"
)

// markedEntries are sets of table entries.
type markedEntries struct {
	changed, told []uint64 // a bit for each entry: it must be sent; the other process may have it
	waiting       int      // how many bits of changed are set
	at            int      // words of changed that this pass has read
}

// grow makes room for another chunk of entries.
func (m *markedEntries) grow() {
	var chunk [chunkEntries / 64]uint64
	m.changed, m.told = append(m.changed, chunk[:]...), append(m.told, chunk[:]...)
}

func (m *markedEntries) change(number uint32) {
	if word, bit := &m.changed[number/64], uint64(1)<<(number%64); *word&bit == 0 {
		*word |= bit
		m.waiting++
	}
}

// end takes an entry out, and reports whether the other process may have it.
func (m *markedEntries) end(number uint32) bool {
	i, bit := number/64, uint64(1)<<(number%64)
	if m.changed[i]&bit != 0 {
		m.changed[i] &^= bit
		m.waiting--
	}
	told := m.told[i]&bit != 0
	m.told[i] &^= bit
	return told
}

// all marks every entry as changed and as not told.
func (m *markedEntries) all() {
	clear(m.told)
	for i := range m.changed {
		m.changed[i] = ^uint64(0)
	}
	m.waiting, m.at = 64*len(m.changed), 0
}

// feedWords is how many words of a set are read at a time, while packets wait.
const feedWords = 1024

// some calls visit for some of the changed entries, at most listBudget, from where the last call
// ended. It returns false at the end of the set, where the next call begins again.
func (m *markedEntries) some(visit func(number uint32) (told bool)) (more bool) {
	if m.waiting == 0 {
		m.at = 0
		return false
	}
	left := listBudget
	for end := min(m.at+feedWords, len(m.changed)); m.at < end; m.at++ {
		for word := &m.changed[m.at]; *word != 0; left-- {
			if left == 0 {
				return true
			}
			bit := *word & -*word
			*word &^= bit
			m.waiting--
			if visit(uint32(64*m.at + bits.TrailingZeros64(bit))) {
				m.told[m.at] |= bit
			}
		}
	}
	if m.at < len(m.changed) {
		return true
	}
	m.at = 0
	return false
}

// changed tells feeds that a connection has started or changed.
func (tb *table) changed(number uint32) {
	for _, f := range tb.feeds {
		f.connections.change(number)
	}
}

// ended tells feeds that a connection, which is still in the table, ends.
func (tb *table) ended(c *conn, number uint32) {
	for _, f := range tb.feeds {
		if f.connections.end(number) {
			f.end(&gone{tuple: tb.tuple(c, original)})
		}
	}
}

// changed tells feeds that a client is new or was seen again.
func (t *affinityTable) changed(number uint32) {
	for _, f := range t.feeds {
		f.clients.change(number)
	}
}

// ended tells feeds that a client, which is still in the table, is forgotten.
func (t *affinityTable) ended(a *affinity, number uint32) {
	for _, f := range t.feeds {
		if f.clients.end(number) {
			f.end(&gone{tuple: packet.Tuple{Words: [4]uint64{a.key.client[0], a.key.client[1]}},
				service: t.services[a.key.list], client: true})
		}
	}
}
