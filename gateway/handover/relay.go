package handover

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"culvert/geneve/udp"
)

// A Relay carries WireGuard's messages between two processes, and decrypted packets from the old
// one to the new one. It drops what does not fit, like a network.
type Relay struct {
	conn    net.Conn // preserves message boundaries
	inbox   chan message
	packets chan []byte
	outbox  chan []byte
	ended   chan struct{}
	once    sync.Once
	tasks   sync.WaitGroup

	lost, returned atomic.Uint64
	spoke          atomic.Int64
	reader         atomic.Pointer[udp.Conn] // nil, or the socket whose reader checks the inbox too
}

// message is a WireGuard message.
type message struct {
	source netip.AddrPort
	data   []byte
}

// fill copies the message into to.
func (m message) fill(to *udp.Message) {
	to.Data = to.Buffer[:copy(to.Buffer, m.data)]
	to.Source, to.Destination, to.SegmentSize, to.TOS = m.source, netip.Addr{}, 0, 0
}

// The kinds of messages on a Relay.
const (
	relayMessage = 'm' // source address, port, message
	relayPacket  = 'p' // packet
)

const (
	relayQueue = 1024
	relayHead  = 1 + 16 + 2
	relaySize  = 64 << 10
)

// NewRelay returns a Relay over conn, which must preserve message boundaries.
func NewRelay(conn net.Conn) *Relay {
	r := &Relay{conn: conn, inbox: make(chan message, relayQueue), packets: make(chan []byte, relayQueue),
		outbox: make(chan []byte, relayQueue),
		ended:  make(chan struct{})}
	r.tasks.Go(r.read)
	r.tasks.Go(r.write)
	return r
}

// Close ends the Relay and waits for its goroutines.
func (r *Relay) Close() {
	r.once.Do(func() { close(r.ended) })
	r.conn.Close()
	r.tasks.Wait()
}

// Empty reports whether nothing is queued in this process, in either direction.
func (r *Relay) Empty() bool { return len(r.inbox)+len(r.outbox) == 0 }

// Packets returns the packets that the other process has decrypted. The channel is closed when the
// other process has closed its Relay.
func (r *Relay) Packets() <-chan []byte { return r.packets }

// Return sends a decrypted packet to the new process.
func (r *Relay) Return(packet []byte) {
	r.returned.Add(1)
	r.send(append([]byte{relayPacket}, packet...))
}

// Spoke returns when this process last sent a handshake message, as Monotonic; 0 = not since there
// has been a Relay.
func (r *Relay) Spoke() int64 { return r.spoke.Load() }

// Totals returns how many packets were returned, and how many packets and messages were dropped for
// lack of room.
func (r *Relay) Totals() (returned, lost uint64) { return r.returned.Load(), r.lost.Load() }

// pass sends a message to the other process.
func (r *Relay) pass(source netip.AddrPort, b []byte) {
	out := make([]byte, 0, relayHead+len(b))
	address := source.Addr().As16()
	out = append(append(out, relayMessage), address[:]...)
	out = binary.BigEndian.AppendUint16(out, source.Port())
	r.send(append(out, b...))
}

// wakes makes a reader blocked on a socket return when there is a message.
func (r *Relay) wakes(socket udp.Conn) { r.reader.Store(&socket) }

// receive queues a message.
func (r *Relay) receive(m message) {
	select {
	case r.inbox <- m:
	default:
		r.lost.Add(1)
	}
	if socket := r.reader.Load(); socket != nil {
		(*socket).Wake()
	}
}

func (r *Relay) send(b []byte) {
	select {
	case r.outbox <- b:
	default:
		r.lost.Add(1)
	}
}

func (r *Relay) write() {
	for {
		select {
		case b := <-r.outbox:
			if _, err := r.conn.Write(b); err != nil {
				r.lost.Add(1)
			}
		case <-r.ended:
			return
		}
	}
}

// read ends with the connection. It ignores everything that is not one of the two kinds.
func (r *Relay) read() {
	defer close(r.packets)
	buffer := make([]byte, relaySize)
	for {
		n, err := r.conn.Read(buffer)
		if err != nil {
			return
		}
		b := append([]byte(nil), buffer[:n]...)
		switch {
		case n > relayHead && b[0] == relayMessage:
			source := netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[1:])).Unmap(), binary.BigEndian.Uint16(b[17:]))
			r.receive(message{source, b[relayHead:]})
		case n > 1 && b[0] == relayPacket:
			select {
			case r.packets <- b[1:]:
			default:
				r.lost.Add(1)
			}
		}
	}
}
