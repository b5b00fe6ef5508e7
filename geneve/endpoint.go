package geneve

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"culvert/geneve/share"
	"culvert/geneve/udp"
)

// Options of Listen.
type Options struct {
	// Listen is the underlay address and port to receive on and to send from. Its family is that of
	// the underlay; without an address the endpoint listens on all addresses, of both families if
	// the machine has both.
	Listen netip.AddrPort
	// RemotePort is the destination port of all tunnels (0: the port of Listen). The port that
	// nodes send from does not matter.
	RemotePort uint16
	// UDP are the options of the socket.
	UDP udp.Options
	// Aside has requests to ends that were not heard come from other ports: see neighbours.aside.
	Aside bool
	// Now is a monotonic clock (nil: the system's).
	Now func() time.Duration
}

// Endpoint is one end of all tunnels that share a UDP port.
type Endpoint struct {
	socket     udp.Conn
	remotePort uint16
	now        func() time.Duration
	neighbours neighbours
	table      atomic.Pointer[table]

	applyMu sync.Mutex // one Apply at a time
	tap     atomic.Pointer[func(*Datagram)]

	drops                [NumReasons]atomic.Uint64
	signs                [NumReasons]atomic.Pointer[Sign]
	arpReceived, arpSent atomic.Uint64
	ndReceived, ndSent   atomic.Uint64
	doubted              atomic.Uint64
}

// table is a snapshot of the tunnels. It is immutable.
type table struct {
	ids   []*tunnel // by ID; nil where there is none
	outer map[outerKey]*tunnel
}

// outerKey identifies the tunnel of a received datagram.
type outerKey struct {
	source netip.Addr
	vni    VNI
}

func (t *table) find(vni VNI, source netip.Addr) *tunnel { return t.outer[outerKey{source, vni}] }

func (t *table) byID(id uint16) *tunnel {
	if int(id) >= len(t.ids) {
		return nil
	}
	return t.ids[id]
}

// Listen opens the socket. There are no tunnels before Apply. Errors are those of udp.Open.
func Listen(o Options) (*Endpoint, error) {
	network, at := "udp", o.Listen.Addr().Unmap()
	switch {
	case at.Is4():
		network = "udp4"
	case at.Is6():
		network = "udp6"
	}
	// RFC 8200, Section 8.1, and RFC 8926, Section 3.3: a tunnel over IPv6 may omit the checksum.
	// Only configured pairs of VNI and source pass, and the addresses and lengths of inner packets
	// are checked (RFC 6936, Section 5).
	o.UDP.ZeroChecksums = true
	socket, err := udp.Open(network, netip.AddrPortFrom(at, o.Listen.Port()), o.UDP)
	if err != nil {
		return nil, fmt.Errorf("geneve: %w", err)
	}
	e := &Endpoint{socket: socket, remotePort: o.RemotePort, now: o.Now}
	if e.remotePort == 0 {
		e.remotePort = socket.LocalAddr().Port()
	}
	if e.now == nil {
		start := time.Now()
		e.now = func() time.Duration { return time.Since(start) }
	}
	e.neighbours.e, e.neighbours.sender, e.neighbours.shares = e, socket.NewSender(), share.New[*tunnel](maxHeldBytes)
	if o.Aside {
		few := udp.Options{ReceiveBuffer: asideBuffer, SendBuffer: asideBuffer, NoGRO: true, ZeroChecksums: true}
		e.neighbours.open = func() (udp.Conn, error) { return udp.Open(network, netip.AddrPortFrom(at, 0), few) }
	}
	e.table.Store(&table{})
	return e, nil
}

// Reaches reports whether the socket is of a's family.
func (e *Endpoint) Reaches(a netip.Addr) bool {
	local := e.socket.LocalAddr().Addr()
	return local.Is6() == a.Unmap().Is6() || local == netip.IPv6Unspecified()
}

// Check returns all faults of a set of tunnels.
func Check(tunnels []Tunnel) error {
	var errs []error
	ids, outer := make(map[uint16]bool, len(tunnels)), make(map[outerKey]uint16, len(tunnels))
	for i := range tunnels {
		t := &tunnels[i]
		if err := t.validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		if ids[t.ID] {
			errs = append(errs, fmt.Errorf("geneve: tunnel %d: ID used twice", t.ID))
		}
		key := outerKey{t.Remote.Unmap(), t.VNI}
		if other, ok := outer[key]; ok {
			errs = append(errs, fmt.Errorf("geneve: tunnel %d: VNI %d and remote address %v are those of tunnel %d",
				t.ID, t.VNI, key.source, other))
		}
		ids[t.ID], outer[key] = true, t.ID
	}
	return errors.Join(errs...)
}

// Prepared is a valid set of tunnels.
type Prepared struct{ table *table }

// Prepare makes tunnels ready for Commit or returns all their faults. It changes nothing. Between
// Prepare and Commit, the caller must keep others from committing.
func (e *Endpoint) Prepare(tunnels []Tunnel) (*Prepared, error) {
	if err := Check(tunnels); err != nil {
		return nil, err
	}
	old := e.table.Load()
	next := &table{outer: make(map[outerKey]*tunnel, len(tunnels))}
	for _, c := range tunnels {
		c.Remote = c.Remote.Unmap()
		if !e.Reaches(c.Remote) {
			return nil, fmt.Errorf("geneve: tunnel %d: remote address %v not of the socket's family", c.ID, c.Remote)
		}
		if c.Inner == IP {
			c.Encap = Geneve
		}
		t := old.byID(c.ID)
		switch {
		case t == nil:
			t = newTunnel(c, e.remotePort, &tunnelState{})
		case t.Tunnel != c:
			was := t
			t = newTunnel(c, e.remotePort, was.tunnelState)
			// Towards another remote the kernel chooses: a gateway knows a node by the source of
			// the node's route to it.
			if t.Remote == was.Remote {
				t.local.Store(was.local.Load())
			}
		}
		for int(c.ID) >= len(next.ids) {
			next.ids = append(next.ids, nil)
		}
		next.ids[c.ID], next.outer[outerKey{c.Remote, c.VNI}] = t, t
	}
	return &Prepared{next}, nil
}

// Commit makes p, the last one prepared, the set of tunnels. Unchanged tunnels keep their neighbour
// and waiting packets; changed ones keep their counters.
func (e *Endpoint) Commit(p *Prepared) {
	old := e.table.Swap(p.table)
	for _, t := range old.ids {
		if t != nil && p.table.byID(t.ID) != t {
			e.neighbours.remove(t)
		}
	}
}

// Apply is Prepare and then Commit.
func (e *Endpoint) Apply(tunnels []Tunnel) error {
	e.applyMu.Lock()
	defer e.applyMu.Unlock()
	p, err := e.Prepare(tunnels)
	if err != nil {
		return err
	}
	e.Commit(p)
	return nil
}

// Wake makes Fill return udp.ErrWoken; see package udp for how not to lose a wake-up.
func (e *Endpoint) Wake() { e.socket.Wake() }

// Poll wakes a Fill that is blocked although data has arrived; see udp.Socket.Poll.
func (e *Endpoint) Poll() { e.socket.Poll() }

// Close closes the socket and drops waiting packets. Fill and Flush return net.ErrClosed.
func (e *Endpoint) Close() error {
	err := e.socket.Close()
	e.neighbours.close()
	return err
}

// LocalAddr returns the underlay address and port of the endpoint.
func (e *Endpoint) LocalAddr() netip.AddrPort { return e.socket.LocalAddr() }

// drop counts dropped packets, and returns the reason. Accepted counts nothing.
func (e *Endpoint) drop(r Reason, packets uint64) Reason {
	if r != Accepted && packets > 0 {
		e.drops[r].Add(packets)
	}
	return r
}

// Stats is a snapshot of an Endpoint's counters.
type Stats struct {
	Drops                [NumReasons]uint64 // packets by Reason; merged datagrams count one by one
	ARPReceived, ARPSent uint64             // messages of the neighbours to us, and ours
	NDReceived, NDSent   uint64             // the same of IPv6 neighbour discovery
	Held                 int                // packets waiting for a neighbour
	// neighbours forgotten because they were silent while the send buffer was full
	Doubted uint64
	Socket  udp.Stats
}

// Drops returns how many packets were dropped, by Reason.
func (e *Endpoint) Drops() (drops [NumReasons]uint64) {
	for i := range drops {
		drops[i] = e.drops[i].Load()
	}
	return drops
}

// Stats returns the counters. They are read one by one, not at one instant.
func (e *Endpoint) Stats() Stats {
	n := &e.neighbours
	n.mu.Lock()
	held := n.held
	n.mu.Unlock()
	return Stats{
		Drops:       e.Drops(),
		ARPReceived: e.arpReceived.Load(), ARPSent: e.arpSent.Load(), NDReceived: e.ndReceived.Load(),
		NDSent: e.ndSent.Load(),
		Held:   held, Doubted: e.doubted.Load(), Socket: e.socket.Stats(),
	}
}

// TunnelStats is a snapshot of one tunnel's counters. Packets and bytes are inner ones; a
// super-frame is one packet.
type TunnelStats struct {
	ReceivedPackets, ReceivedBytes uint64
	SentPackets, SentBytes         uint64
	Encap                          Encap  // of the other end; Auto: not known yet
	EncapChanges                   uint64 // how often the other end has changed it
	RefusedTrains                  uint64 // trains that our kernel refused
	LostTrains                     uint64 // how often ProbeTrains found that trains are lost
	// trains are in use: the socket has UDP_SEGMENT, and neither a probe nor a refusal speaks
	// against them
	Train bool
	Held  int              // packets waiting for the neighbour
	MAC   net.HardwareAddr // of the neighbour; nil when unknown
	// since the neighbour was last heard, to the second; meaningless without MAC
	Silence time.Duration
}

// TunnelStats returns the counters of one tunnel; ok is false when there is none.
func (e *Endpoint) TunnelStats(id uint16) (s TunnelStats, ok bool) {
	t := e.table.Load().byID(id)
	if t == nil {
		return TunnelStats{}, false
	}
	n, now := &e.neighbours, e.now()
	n.mu.Lock()
	held := len(t.neighbour.held)
	n.mu.Unlock()
	return TunnelStats{
		ReceivedPackets: t.receivedPackets.Load(), ReceivedBytes: t.receivedBytes.Load(),
		SentPackets: t.sentPackets.Load(), SentBytes: t.sentBytes.Load(),
		Encap:         t.spoken(),
		EncapChanges:  t.encapChanges.Load(),
		RefusedTrains: t.refusedTrains.Load(),
		LostTrains:    t.lostTrains.Load(),
		Train:         e.socket.GSO(t.Remote) && t.trains(now),
		Held:          held,
		MAC:           t.neighbour.load().mac().address(),
		Silence:       now - time.Duration(t.neighbour.lastHeard.Load()),
	}, true
}
