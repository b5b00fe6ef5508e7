package nat

import "culvert/nat/packet"

const (
	// MaxLoad is how many packets Load handles.
	MaxLoad = 32
	// loadFrom is about how many connections fit into a processor's own cache. With fewer, there is
	// nothing to preload.
	loadFrom = 1 << 12
)

// Load prefetches what Process will need of the connections of at most MaxLoad packets that arrive
// by in or by other links of its side. In a large table a packet waits for memory twice, for its
// slot and then for its entry; a batch overlaps these waits. Load returns how many packets have a
// connection, or 0 if the table is small enough to skip the work, and leaves hints for Process. It
// decides and changes nothing.
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
	// A processor overlaps loads only within a few hundred instructions, so these loops do nothing
	// else.
	var hashes, numbers, generations [MaxLoad]uint32
	var slots [MaxLoad]uint64
	for i := range packets {
		if p := &packets[i]; p.Fault() == packet.NoFault {
			var t packet.Tuple
			p.Tuple(&t, in)
			hashes[i] = tb.directory.hash(&t)
		}
	}
	for i, hash := range hashes[:len(packets)] {
		slots[i] = tb.directory.segment(hash)[hash%segmentSlots]
	}
	for i, hash := range hashes[:len(packets)] {
		slot := slots[i]
		for at := hash + 1; slot != 0 && uint32(slot>>32) != hash; at++ {
			slot = tb.directory.segment(hash)[at%segmentSlots]
		}
		numbers[i] = reference(slot).number()
		packets[i].Hint = uint32(slot)
	}
	for i, number := range numbers[:len(packets)] {
		c := tb.at(number)
		generations[i] = c.generation + uint32(c.state) // reads both cache lines
	}
	for i, number := range numbers[:len(packets)] {
		// An entry that was found has a generation; an IPv6 one has addresses.
		c := tb.at(number)
		if generations[i] != 0 && (!c.keys[original].ipv6 || tb.wideOf(c)[original] != [4]uint64{}) {
			known++
		}
	}
	return known
}

// loaded returns the connection of tuple t that Load found, if it is still there and alive.
func (e *Engine) loaded(r reference, t *packet.Tuple, now Time) (hit, bool) {
	tb := &e.table
	if r == 0 || r.number() >= tb.high || !tb.matches(r, t) {
		return hit{}, false
	}
	c := tb.at(r.number())
	return hit{c, r.number(), r.direction()}, c.live() && e.alive(c, now)
}
