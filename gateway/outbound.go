package gateway

import (
	"errors"
	"net"
	"os"
	"sync"

	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
)

// outbound carries packets of the local cluster to the remote one: receive from
// the Geneve socket, decide and translate, fill wireguard-go's buffers, in packet
// order. All of it runs on the goroutine that calls read; only the queue is
// shared.
type outbound struct {
	counters
	endpoint *geneve.Endpoint
	receiver *geneve.Receiver
	replies  *geneve.Sender // ICMP errors back to nodes
	engine   *nat.Engine
	host     *nic      // the gateway's own internal address
	other    *counters // of inbound, whose way errors and answers go
	queue    queue

	packet  nat.Packet // the packet under way
	cutter  nat.Cutter // and what is left of it
	cutting bool
	scratch []byte // for ICMP errors
}

// read implements tun.Device.Read.
func (o *outbound) read(bufs [][]byte, sizes []int, offset int) (int, error) {
	for {
		n := o.fill(bufs, sizes, offset)
		o.replies.Flush()
		if n > 0 {
			return n, nil
		}
		// Fill clears a wake-up before it blocks, and what is queued after that wakes
		// it again: nothing is slept over.
		switch err := o.receiver.Fill(); {
		case err == nil, errors.Is(err, udp.ErrWoken):
		case errors.Is(err, net.ErrClosed):
			return 0, os.ErrClosed
		}
	}
}

// fill moves packets that are already here into bufs.
func (o *outbound) fill(bufs [][]byte, sizes []int, offset int) (n int) {
	now := clock()
	n = o.queue.drain(bufs, sizes, offset)
	for n < len(bufs) {
		if o.cutting {
			size := o.cutter.Next(bufs[n][offset:])
			if size > 0 {
				sizes[n] = size
				n++
				continue
			}
			o.cutting = false
		}
		frame, ok := o.receiver.Next()
		if !ok {
			break
		}
		o.cutting = o.decide(frame, now)
	}
	return n
}

// decide reports whether frame goes on to the tunnel; the cutter then holds it.
func (o *outbound) decide(frame geneve.Packet, now nat.Time) bool {
	p, from := &o.packet, nat.Port(frame.Tunnel)
	if reason := p.Parse(frame.Data); reason != nat.ReasonNone {
		o.engine.Refuse(from, reason)
		return false
	}
	p.SegmentSize = frame.SegmentSize
	v := o.engine.Process(p, from, now)
	switch v.Action {
	case nat.Forward:
		o.cutter.Start(p, v)
		return true
	case nat.Deliver:
		o.deliver(p, from, now)
	case nat.Drop:
		o.refuse(p, from, v, now)
	}
	return false
}

// refuse tells the sender of p why it was dropped, where that is due.
func (o *outbound) refuse(p *nat.Packet, to nat.Port, v nat.Verdict, now nat.Time) {
	o.scratch = o.engine.AppendError(o.scratch[:0], p, to, v, now)
	if len(o.scratch) > 0 {
		o.reply(to, o.scratch)
	}
}

func (o *outbound) reply(to nat.Port, packet []byte) {
	o.other.generated.Add(1)
	o.replies.Send(uint16(to), packet)
}

// deliver hands p to the gateway's own address.
func (o *outbound) deliver(p *nat.Packet, from nat.Port, now nat.Time) {
	if !answerable(p) {
		o.drops[DropNoService].Add(1)
		o.refuse(p, from, portUnreachable, now)
		return
	}
	for _, answer := range o.host.ask(p.Bytes()) {
		o.reply(from, answer)
	}
}

// queueLength bounds what the gateway itself has to say to the tunnel at one
// time: errors are rate limited and echo replies are never more than requests.
const queueLength = 256

// queue holds packets made by the gateway itself until read takes them.
type queue struct {
	wake func() // wakes a blocked Fill

	mu      sync.Mutex
	packets [][]byte // +checklocks:mu
	free    [][]byte // +checklocks:mu
}

// push copies packet into the queue; false if it is full.
func (q *queue) push(packet []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.packets) == queueLength {
		return false
	}
	var b []byte
	if n := len(q.free); n > 0 {
		b, q.free = q.free[n-1], q.free[:n-1]
	}
	q.packets = append(q.packets, append(b[:0], packet...))
	if len(q.packets) == 1 {
		q.wake()
	}
	return true
}

// drain moves queued packets into bufs, oldest first.
func (q *queue) drain(bufs [][]byte, sizes []int, offset int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.packets), len(bufs))
	for i, packet := range q.packets[:n] {
		sizes[i] = copy(bufs[i][offset:], packet)
		q.free = append(q.free, packet)
	}
	q.packets = append(q.packets[:0], q.packets[n:]...)
	return n
}
