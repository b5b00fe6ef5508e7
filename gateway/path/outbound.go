package path

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"culvert/gateway/latency"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
	"culvert/nat/packet"
)

// outbound carries packets from the local cluster to the remote one, in order: it receives them
// from the Geneve socket, asks the engine to decide and translate, and fills wireguard-go's
// buffers. All of it runs on the goroutine that calls read; only the queue is shared.
type outbound struct {
	*Path
	Counters
	receiver *geneve.Receiver
	replies  *geneve.Sender // ICMP errors back to nodes
	pollAt   nat.Time       // when to poll the device
	queue    *queue

	arrivals arrivals
	packet   packet.Packet // a fragment that has waited
	from     nat.Link      // link of the packet that is being cut
	cutter   packet.Cutter // and its rest
	cutting  bool
	sample   latency.Sampler
	held     int // fragments that waited for packet
	sight    sight
	local    linkCounts
	fragment fragmentRoom
	scratch  []byte // for ICMP errors
	piece    []byte // of MTU bytes, for answers of the gateway's own address
}

// arrivals are packets from nodes. Those from next to end are undecided. Their bytes stay valid
// until the receiver is filled again, which happens only when none is left.
type arrivals struct {
	frames    [nat.MaxLoad]geneve.Packet
	packets   [nat.MaxLoad]packet.Packet // parsed
	next, end int
}

// pollInterval is how often the goroutine of a busy direction makes the other one check its socket
// (udp.Socket.Poll). It bounds how long a packet waits for traffic in the other direction. A
// shorter interval would split acknowledgements into batches of one.
const pollInterval = 400 * time.Microsecond

// receiveBackoff is the pause after an error of the Geneve socket.
const receiveBackoff = 100 * time.Millisecond

// fragmentRoom is room for a fragment that the engine has held back.
type fragmentRoom [2048]byte

// read is Read of the Path.
func (o *outbound) read(bufs [][]byte, sizes []int, offset int) (int, error) {
	for {
		now := Now()
		if now >= o.pollAt {
			o.pollAt = now.Add(pollInterval)
			o.WG.Poll()
		}
		n := o.fill(bufs, sizes, offset, now)
		if n > 0 && o.sample.Picks(n) {
			o.decided.Observe(time.Duration(Now() - now))
		}
		o.replies.Flush()
		if n > 0 {
			return n, nil
		}
		// Fill clears a wake-up before it blocks. A packet queued later wakes it again,
		// so no wake-up is lost.
		switch err := o.receiver.Fill(); {
		case err == nil, errors.Is(err, udp.ErrWoken):
		case errors.Is(err, net.ErrClosed):
			return 0, os.ErrClosed
		default:
			// Any error except ErrClosed would end the WireGuard device. Errors of the kernel are
			// temporary here, but a loop must not spin on them.
			time.Sleep(receiveBackoff)
		}
	}
}

// fill moves packets that have already arrived into bufs.
func (o *outbound) fill(bufs [][]byte, sizes []int, offset int, now nat.Time) int {
	n := o.queue.drain(bufs, sizes, offset)
	for n < len(bufs) {
		if o.cutting {
			if size := o.cutter.Next(bufs[n][offset:]); size > 0 {
				sizes[n] = size
				n++
				continue
			}
			o.cutting = false
		}
		if !o.next(now) {
			break
		}
	}
	return n
}

// next decides about the next packet: a fragment that waited for the previous packet, or a packet
// from a node. It returns false if there is none.
func (o *outbound) next(now nat.Time) bool {
	if o.held > 0 {
		p := &o.packet
		o.held--
		if v, ok := o.Engine.Release(p, o.fragment[:], o.from, now); ok {
			if o.sight.tap != nil {
				o.sight.released(p, &v)
			}
			o.act(p, v, now)
			return true
		}
	}
	a := &o.arrivals
	if a.next == a.end && !o.gather() {
		return false
	}
	p, frame := &a.packets[a.next], &a.frames[a.next]
	a.next++
	o.from = nat.Link(frame.Tunnel)
	if o.sight.tap = o.tap.Load(); o.sight.tap != nil {
		o.sight.arrive(o.Engine, p, frame.Data, o.from, now)
	}
	v := o.Engine.Process(p, o.from, now)
	if o.sight.tap != nil {
		o.sight.decided(p, &v)
	}
	o.held = v.Held
	o.act(p, v, now)
	return true
}

// gather parses the packets that have arrived, and makes the engine load what it needs for them. It
// returns false if none has arrived.
func (o *outbound) gather() bool {
	a := &o.arrivals
	for a.next, a.end = 0, 0; a.end < len(a.frames); a.end++ {
		frame, ok := o.receiver.Next()
		if !ok {
			break
		}
		a.frames[a.end] = frame
		p := &a.packets[a.end]
		p.Parse(frame.Data) // Process drops what is malformed
		p.SegmentSize = frame.SegmentSize
	}
	o.Engine.Load(a.packets[:a.end], nat.Link(a.frames[0].Tunnel))
	return a.end > 0
}

// send queues a packet of the gateway's own for the peer.
func (o *outbound) send(packet []byte) {
	o.generated.Add(1)
	if !o.Engine.LetsOut(packet, nat.Tunnel) {
		o.dropMade(&o.Counters, DropOutput, packet, nat.Tunnel)
		return
	}
	if !o.queue.push(netip.Addr{}, packet) {
		o.dropMade(&o.Counters, DropLocalQueueFull, packet, nat.Tunnel)
	}
}

// act carries out verdict v for p.
func (o *outbound) act(p *packet.Packet, v nat.Verdict, now nat.Time) {
	switch v.Action {
	case nat.Forward:
		if v.Out == nat.Tunnel {
			o.cutter.Start(p, v.SegmentSize, v.MTU)
			o.cutting = true
			return
		}
		forward(o.replies, &o.cutter, p, v, &o.sight) // to another node, or back to this one
	case nat.Deliver:
		o.deliver(p, o.from, now)
	case nat.Drop:
		o.see(p, o.from, v.Reason)
		o.refuse(p, o.from, v, now)
	}
}

// refuse sends an ICMP error to the sender of p if the verdict asks for one.
func (o *outbound) refuse(p *packet.Packet, to nat.Link, v nat.Verdict, now nat.Time) {
	if answer := o.Engine.AppendError(o.scratch[:0], p, to, v, now); answer != nil {
		o.SendTo(o.replies, to, answer)
		o.scratch = answer // grown once, and kept
	}
}

// deliver hands p to the gateway's own address.
func (o *outbound) deliver(p *packet.Packet, from nat.Link, now nat.Time) {
	if o.Local.Answered(from, p.Bytes()) {
		return
	}
	o.local.add(from)
	if !AnswerEcho(p, len(o.piece)) {
		o.sight.lost(DropNoService.String(), nil)
		o.drops[DropNoService].Add(1)
		o.refuse(p, from, NoService(p), now)
		return
	}
	o.cutter.Start(p, 0, len(o.piece))
	for n := o.cutter.Next(o.piece); n > 0; n = o.cutter.Next(o.piece) {
		o.SendTo(o.replies, from, o.piece[:n])
	}
}

// linkCounts counts packets by link. They are rare enough for a lock.
type linkCounts struct {
	mu      sync.Mutex
	packets map[nat.Link]uint64 // +checklocks:mu
}

func (c *linkCounts) add(link nat.Link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.packets == nil {
		c.packets = make(map[nat.Link]uint64)
	}
	c.packets[link]++
}

func (c *linkCounts) of(link nat.Link) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets[link]
}
