package geneve

import "time"

// held is a packet that waits for a MAC address: space for the tunnel's headers, then the packet.
type held struct {
	buffer    []byte
	etherType uint16
	ecn       uint8
}

// room is how much of the limit the packet uses.
func (h *held) room() int { return max(len(h.buffer), minHeldBytes) }

// hold keeps a packet until the neighbour of t is known, and asks for it. If the neighbour became
// known meanwhile, to is not 0, and the packet is not kept and can be sent.
func (n *neighbours) hold(t *tunnel, packet []byte) (r Reason, to speaker) {
	now := n.e.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	nb := &t.neighbour
	if to := nb.load(); to.mac() != 0 {
		return Accepted, to
	}
	if nb.removed || n.closed {
		return UnknownTunnel, 0
	}
	room := max(t.templateLen+len(packet), minHeldBytes)
	if len(nb.held) == maxHeldPerTunnel || !n.makeRoom(t, room) {
		n.ask(t, now)
		return HoldFull, 0
	}
	h := held{buffer: make([]byte, t.templateLen+len(packet)), etherType: etherTypeOf(packet), ecn: ecnOf(packet)}
	copy(h.buffer[t.templateLen:], packet)
	if len(nb.held) == 0 {
		nb.heldSince = now
		n.waiting = append(n.waiting, t)
		if len(n.waiting) == 1 {
			n.arm()
		}
	}
	nb.held = append(nb.held, h)
	n.shares.Take(room, t)
	n.held++
	n.ask(t, now)
	return Accepted, 0
}

// makeRoom makes room for a packet of t and reports whether it succeeded. Tunnels share the room in
// equal parts, so neighbours that never answer cannot block packets for others.
//
// Preconditions: n.mu is held.
func (n *neighbours) makeRoom(t *tunnel, room int) bool {
	for {
		victim, free, ok := n.shares.EqualPart(t, room)
		if free || !ok {
			return ok
		}
		n.discardNewest(victim)
	}
}

// discardNewest drops the newest packet that waits for the neighbour of t.
//
// Preconditions: n.mu is held.
func (n *neighbours) discardNewest(t *tunnel) {
	nb := &t.neighbour
	last := len(nb.held) - 1
	n.e.drop(HoldFull, 1)
	n.e.showRefused(t, nb.held[last].buffer[t.templateLen:], HoldFull)
	n.shares.Give(nb.held[last].room(), t)
	nb.held[last] = held{}
	nb.held = nb.held[:last]
	n.held--
	if last == 0 {
		n.forget(t)
	}
}

// arm starts the timer that repeats requests and drops packets that have waited too long.
func (n *neighbours) arm() {
	if n.timer == nil {
		n.timer = time.AfterFunc(holdTick, n.tick)
	} else {
		n.timer.Reset(holdTick)
	}
}

// tick does the timer's work.
func (n *neighbours) tick() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.e.now()
	for i := len(n.waiting) - 1; i >= 0; i-- { // backwards, because discard removes the tunnel from the list
		if t := n.waiting[i]; now-t.neighbour.heldSince >= holdTime {
			n.discard(t, Unresolved)
		} else {
			n.ask(t, now)
		}
	}
	if len(n.waiting) > 0 {
		n.arm()
	}
}

// release sends the packets that waited for the neighbour of t.
//
// Preconditions: n.mu is held.
func (n *neighbours) release(t *tunnel, to speaker) {
	nb := &t.neighbour
	if len(nb.held) == 0 {
		return
	}
	n.trains = n.trains[:0]
	for i, h := range nb.held {
		t.encap(h.buffer, to, h.etherType)
		n.trains = append(n.trains, t.train(append(n.parts(i), h.buffer)))
		n.trains[i].TOS = h.ecn
	}
	n.flush(len(n.trains))
	for i := range n.trains {
		train := &n.trains[i]
		t.sentPackets.Add(uint64(train.Sent))
		t.sentBytes.Add(uint64(train.Sent * (len(train.Parts[0]) - t.templateLen)))
		clear(train.Parts) // frees the buffers
	}
	n.forget(t)
}

// discard drops the packets that wait for the neighbour of t.
//
// Preconditions: n.mu is held.
func (n *neighbours) discard(t *tunnel, r Reason) {
	if len(t.neighbour.held) > 0 {
		n.e.drop(r, uint64(len(t.neighbour.held)))
		for i := range t.neighbour.held {
			n.e.showRefused(t, t.neighbour.held[i].buffer[t.templateLen:], r)
		}
		n.forget(t)
	}
}

// forget takes t off the waiting list and frees its packets.
func (n *neighbours) forget(t *tunnel) {
	nb := &t.neighbour
	n.held -= len(nb.held)
	nb.held = nil
	n.shares.Give(n.shares.Held(t), t)
	for i, w := range n.waiting {
		if w == t {
			last := len(n.waiting) - 1
			n.waiting[i], n.waiting[last] = n.waiting[last], nil
			n.waiting = n.waiting[:last]
			break
		}
	}
	if len(n.waiting) == 0 {
		n.timer.Stop()
	}
}

// remove discards the waiting packets of a tunnel that is no longer configured. Senders that still
// know it can hold no more.
func (n *neighbours) remove(t *tunnel) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t.neighbour.removed = true
	n.discard(t, UnknownTunnel)
}

// close discards all waiting packets.
func (n *neighbours) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for len(n.waiting) > 0 {
		n.discard(n.waiting[0], Unresolved)
	}
}
