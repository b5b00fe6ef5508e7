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

const maxDatagram = 1 << 16 // bytes, one more than the maximum

// Buffers for answers: needed only while there is one to read, not by each of thousands of flows.
var buffers = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// A flow is the packets between a client and an endpoint over UDP.
type flow struct {
	socket          *listenSocket
	client, backend netip.AddrPort
	conn            *net.UDPConn
	progress
}

// source is the address it counts against.
func (f *flow) source() netip.Addr { return plain(f.client).Addr() }

// receive receives clients' packets until the socket is closed.
func (d *listenSocket) receive() {
	var b [maxDatagram]byte
	for {
		n, client, err := d.udp.ReadFromUDPAddrPort(b[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an answer
		}
		if f := d.flow(client); f != nil {
			f.send(b[:n])
		}
	}
}

// flow returns a client's flow, or nil if there is no endpoint or no room. One goroutine calls it.
func (d *listenSocket) flow(client netip.AddrPort) *flow {
	d.flowing.Lock()
	f, shut := d.flows[client], d.shut
	d.flowing.Unlock()
	if f != nil || shut {
		return f
	}
	f, reason := d.begin(client)
	if reason != nat.ReasonNone {
		d.stats.refusedOf(unix.IPPROTO_UDP).of(reason).Add(1)
	}
	return f
}

// begin makes a flow for a client, or says why not. It returns nil if the socket is closed.
func (d *listenSocket) begin(client netip.AddrPort) (*flow, nat.Reason) {
	f := &flow{socket: d, client: client}
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
		// no route, or no descriptor
		if f.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(backend)); err != nil {
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
	d.stats.createdOf(unix.IPPROTO_UDP).Add(1)
	d.beside.Go(f.answer)
	return f, nat.ReasonNone
}

// judge ends flows that may not continue.
func (d *listenSocket) judge() {
	if d.udp != nil {
		d.end(func(f *flow) bool { return !d.engine.Keeps(plain(f.client), d.at, packet.UDP, f.backend) })
	}
}

// end ends the flows that are due.
func (d *listenSocket) end(due func(*flow) bool) {
	d.flowing.Lock()
	defer d.flowing.Unlock()
	for _, f := range d.flows {
		if due(f) {
			d.forget(f)
		}
	}
}

// end ends a flow, and reports whether it was still open.
func (f *flow) end() bool {
	d := f.socket
	d.flowing.Lock()
	defer d.flowing.Unlock()
	if d.flows[f.client] != f {
		return false
	}
	d.forget(f)
	return true
}

// forget releases a flow's share and place.
//
// +checklocks:d.flowing
func (d *listenSocket) forget(f *flow) {
	delete(d.flows, f.client)
	f.conn.Close()
	d.all.remove(f)
}

// send sends the client's packet to the endpoint. An error caused by an earlier packet does not
// stop a later one.
func (f *flow) send(b []byte) {
	now := time.Since(f.socket.began)
	f.ask(now)
	_, err := f.conn.Write(b)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		f.countFailure(err)
		_, err = f.conn.Write(b)
	}
	if err != nil {
		f.socket.stats.lost.Add(1)
		return
	}
	if f.pass(now) {
		f.socket.all.makeStream(f)
	}
}

// countFailure counts an ICMP error about an earlier packet. Such an error never ends a flow: ICMP
// is not trusted that much, and the kernel handles path MTUs.
func (f *flow) countFailure(err error) {
	if errors.Is(err, unix.ECONNREFUSED) {
		f.socket.stats.failures.Add(1)
	}
}

// answer sends the endpoint's packets to the client, until the flow is idle for too long or ended.
func (f *flow) answer() {
	defer f.end()
	raw, err := f.conn.SyscallConn()
	if err != nil {
		return
	}
	for wait := f.socket.idle.udp; wait > 0; wait = f.socket.idle.udp - (time.Since(f.socket.began) - f.last()) {
		f.conn.SetReadDeadline(time.Now().Add(wait))
		for err = nil; err == nil; {
			err = f.relay(raw.Read)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// relay waits for one answer and sends it to the client.
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
			f.countFailure(err)
			return true
		}
		if f.reply(time.Since(f.socket.began)) {
			f.socket.all.makeStream(f)
		}
		if _, err := f.socket.udp.WriteToUDPAddrPort(b[:n], f.client); err != nil {
			f.socket.stats.lost.Add(1)
		}
		return true
	})
}
