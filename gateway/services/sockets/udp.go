package sockets

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"culvert/nat"
	"culvert/nat/packet"
)

const maxDatagram = 1 << 16 // bytes, and one more than there can be

// Buffers of answers: they are needed while there is one to read, and not by each of thousands of flows.
var buffers = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// A flow is what passes between a client and an endpoint over UDP.
type flow struct {
	door            *door
	client, backend netip.AddrPort
	conn            *net.UDPConn
	progress
}

// source is who it counts for.
func (f *flow) source() netip.Addr { return plain(f.client).Addr() }

// receive takes packets of clients until the door is closed.
func (d *door) receive() {
	var b [maxDatagram]byte
	for {
		n, client, err := d.socket.ReadFromUDPAddrPort(b[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an error of the network about an answer
		}
		if f := d.flow(client); f != nil {
			f.send(b[:n])
		}
	}
}

// flow returns a client's, or nil if there is no endpoint or no place for him. It is called by one goroutine.
func (d *door) flow(client netip.AddrPort) *flow {
	d.flowing.Lock()
	f, shut := d.flows[client], d.shut
	d.flowing.Unlock()
	if f != nil || shut {
		return f
	}
	f, reason := d.begin(client)
	if reason != nat.ReasonNone {
		d.stats.refused[unix.IPPROTO_UDP].add(reason)
	}
	return f
}

// begin makes a flow for a client, or says why not. It returns nil for a door that has been closed.
func (d *door) begin(client netip.AddrPort) (*flow, nat.Reason) {
	f := &flow{door: d, client: client}
	f.start(time.Since(d.began))
	if reason := d.admit(f); reason != nat.ReasonNone {
		return nil, reason
	}
	d.flowing.Lock() // until judge may see it
	defer d.flowing.Unlock()
	if d.shut {
		d.all.remove(f)
		return nil, nat.ReasonNone
	}
	backend, reason := d.engine.Choose(plain(client), d.at, packet.UDP, nil, d.now())
	if reason == nat.ReasonNone {
		var err error
		if f.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(backend)); err != nil { // no route, or no descriptor
			d.stats.failures.Add(1)
			reason = nat.ReasonNoBackend
		}
	}
	if reason != nat.ReasonNone {
		d.all.remove(f)
		return nil, reason
	}
	f.backend = backend
	d.flows[client] = f
	d.stats.created[unix.IPPROTO_UDP].Add(1)
	d.beside.Go(f.answer)
	return f, nat.ReasonNone
}

// judge ends flows that may not go on.
func (d *door) judge() {
	if d.socket != nil {
		d.end(func(f *flow) bool { return !d.engine.Keeps(plain(f.client), d.at, packet.UDP, f.backend) })
	}
}

// end ends the flows that are to.
func (d *door) end(due func(*flow) bool) {
	d.flowing.Lock()
	defer d.flowing.Unlock()
	for _, f := range d.flows {
		if due(f) {
			d.forget(f)
		}
	}
}

// end ends a flow, and reports whether it had not ended.
func (f *flow) end() bool {
	d := f.door
	d.flowing.Lock()
	defer d.flowing.Unlock()
	if d.flows[f.client] != f {
		return false
	}
	d.forget(f)
	return true
}

// forget gives back what a flow has.
//
// +checklocks:d.flowing
func (d *door) forget(f *flow) {
	delete(d.flows, f.client)
	f.conn.Close()
	d.all.remove(f)
}

// send gives the endpoint what the client sends. An error that comes back for an earlier packet keeps no later one.
func (f *flow) send(b []byte) {
	now := time.Since(f.door.began)
	f.ask(now)
	_, err := f.conn.Write(b)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		f.note(err)
		_, err = f.conn.Write(b)
	}
	if err != nil {
		f.door.stats.lost.Add(1)
		return
	}
	if f.pass(now) {
		f.door.all.settle(f)
	}
}

// note counts what has come back for an earlier packet. No such error ends a flow: ICMP is not to be believed that much, and the kernel heeds
// what is said of the path's MTU.
func (f *flow) note(err error) {
	if errors.Is(err, unix.ECONNREFUSED) {
		f.door.stats.failures.Add(1)
	}
}

// answer gives the client what the endpoint sends, until nothing passes for too long or the flow is ended.
func (f *flow) answer() {
	defer f.end()
	raw, err := f.conn.SyscallConn()
	if err != nil {
		return
	}
	for wait := f.door.idle.udp; wait > 0; wait = f.door.idle.udp - (time.Since(f.door.began) - f.last()) {
		f.conn.SetReadDeadline(time.Now().Add(wait))
		for err = nil; err == nil; {
			err = f.relay(raw.Read)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// relay waits for one answer and gives it to the client.
func (f *flow) relay(read func(func(fd uintptr) bool) error) error {
	return read(func(fd uintptr) bool {
		b := buffers.Get().(*[maxDatagram]byte)
		defer buffers.Put(b)
		n, err := unix.Read(int(fd), b[:])
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Read(int(fd), b[:])
		}
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			f.note(err)
			return true
		}
		if f.reply(time.Since(f.door.began)) {
			f.door.all.settle(f)
		}
		if _, err := f.door.socket.WriteToUDPAddrPort(b[:n], f.client); err != nil {
			f.door.stats.lost.Add(1)
		}
		return true
	})
}
