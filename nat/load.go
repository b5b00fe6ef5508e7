package nat

import "culvert/nat/packet"

const (
	// MaxLoad is how many packets Load looks at.
	MaxLoad = 32
	// loadFrom is how many connections a processor's own cache holds, about. As long as there are no more, nothing is to be loaded.
	loadFrom = 1 << 12
)

// Load reads what Process will need of the connections of packets, at most MaxLoad, which come in at in or at other links of its side. In
// a large table a packet waits for memory twice, for its slot and then for its entry; the waits of a batch overlap. Load returns how many
// packets have a connection, 0 if the table is so small that it does not look. It decides and changes nothing.
func (e *Engine) Load(packets []packet.Packet, in Link) (known int) {
	if len(packets) < 2 {
		return 0
	}
	packets = packets[:min(len(packets), MaxLoad)]
	e.mu.Lock()
	defer e.mu.Unlock()
	tb := &e.table
	if tb.used < loadFrom {
		return 0
	}
	var hashes [MaxLoad]uint32
	var slots [MaxLoad]uint64
	for i := range packets {
		if p := &packets[i]; p.Fault() == packet.NoFault {
			var t packet.Tuple
			p.Tuple(&t, in)
			hashes[i] = tb.directory.hash(&t)
			slots[i] = tb.directory.segment(hashes[i])[hashes[i]%segmentSlots]
		}
	}
	for i := range packets {
		hash, slot := hashes[i], slots[i]
		for at := hash + 1; slot != 0 && uint32(slot>>32) != hash; at++ {
			slot = tb.directory.segment(hash)[at%segmentSlots]
		}
		if slot != 0 && tb.touch(reference(slot).number()) {
			known++
		}
	}
	return known
}

// touch reads from each cache line that packets of a connection need. It is true for every connection, which the compiler does not know.
func (tb *table) touch(number uint32) bool {
	c := tb.at(number)
	k := &c.keys[original]
	return c.state < states && (!k.ipv6 || tb.wide.at(k.addresses)[original] != [4]uint64{})
}
