package nat

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"culvert/nat/packet"
)

// RecordBlock is the size of a block of records in bytes.
const RecordBlock = 4096

// A block begins with the checksum of the rest, and ends with bytes that mean nothing:
//
//	0  CRC-32C of all that follows
//	4  version
//	6  length of all items, in bytes
//	8  how often an entry of the table was used, at most: ids go on from there
//	16 items, each a byte that tells its kind and then its fields, most of them as uvarints
//
// Links and services stand in a block before they are first used there, and count from 1. So no block needs another.
const (
	recordVersion = 1
	recordHeader  = 16
	// maxRecordName is the longest name of a link or service that is recorded.
	maxRecordName = 512
)

var recordSum = crc32.MakeTable(crc32.Castagnoli)

// The kinds of items.
const (
	itemLink       = iota + 1 // length, name
	itemConnection            // a connRecord
	itemService               // length, name, port, protocol
	itemClient                // service, address, backend, time left in milliseconds
	itemEnd                   // how many connections and clients there were
)

// What is known of a connection.
const (
	recordIPv6 = 1 << iota
	recordReplied
	recordService
	recordPort
	recordOwnMark // the mark is the number of the node that it comes from
)

var recordFlags = [...]struct {
	fact uint8
	flag connFlags
}{{recordReplied, flagReplied}, {recordService, flagService}, {recordPort, flagPort}}

// A connRecord is a connection to be recorded, or one that was.
type connRecord struct {
	first, answer  packet.Tuple
	idle           time.Duration
	mark           uint32
	facts          uint8
	state          state
	packets, bytes [2]uint64
	tcp            tcpState
}

// A clientRecord is a client of a service with affinity.
type clientRecord struct {
	service serviceIdentity
	address [2]uint64
	backend uint64
	left    time.Duration
}

// Records writes down what an Engine knows and packets could not tell another one that takes over: connections whose translation needs
// state or whose mark decides where they go, and clients of services with affinity. What is between pods
// is missing; its next packet makes it again. So are fragments, path MTUs, rate limits, counters of rules, and what rules and routes
// say, which the next packet of a connection asks anew.
//
// Times are ages: those who restore records go on where the connections were, however long ago that was. No clock that survives a restart
// could be trusted with more, and what is restored too late costs a place in the table, until it expires.
type Records struct {
	e     *Engine
	since Time
	now   Time
	name  func(Link) string

	at       uint32 // the entry that was read last
	clientAt uint32
	services map[uint32]serviceIdentity // of affinityKey.list; nil before the connections are done
	ready    []connRecord               // read, not yet written
	room     [listBudget]connRecord     // for ready
	known    []clientRecord             // read, not yet written, after all connections
	all      [2]uint64                  // written: connections and clients
	// Of the block.
	links []Link
	named []serviceIdentity
}

// Records begins to write down what is worth it at now. name names a Link; what is of links with the name "" is left out. If since is not
// 0, only connections are written down that have had a packet at since or later: a second round, after one of all, then takes the time
// of what has changed.
func (e *Engine) Records(since, now Time, name func(Link) string) *Records {
	return &Records{e: e, since: since, now: now, name: name}
}

// Next appends the next block to dst; more is false after the last one. Packets wait for it as long as for the reading of listBudget
// entries of the table at a time.
func (r *Records) Next(dst []byte) (all []byte, more bool) {
	begin := len(dst)
	all = append(dst, make([]byte, recordHeader)...)
	r.links, r.named = r.links[:0], r.named[:0]
	limit := begin + RecordBlock
	for r.read() {
		n, links, named := len(all), len(r.links), len(r.named)
		switch {
		case len(r.ready) > 0:
			all = r.appendConnection(all, &r.ready[0])
		default:
			all = r.appendClient(all, &r.known[0])
		}
		if len(all) > limit {
			all, r.links, r.named = all[:n], r.links[:links], r.named[:named]
			more = true
			break
		}
		r.wrote(len(all) > n)
	}
	if !more {
		n := len(all)
		all = append(all, itemEnd)
		all = binary.AppendUvarint(binary.AppendUvarint(all, r.all[0]), r.all[1])
		if len(all) > limit {
			all, more = all[:n], true
		}
	}
	used := len(all) - begin - recordHeader
	all = append(all, make([]byte, limit-len(all))...)
	b := all[begin:]
	binary.LittleEndian.PutUint16(b[4:], recordVersion)
	binary.LittleEndian.PutUint16(b[6:], uint16(used))
	binary.LittleEndian.PutUint64(b[8:], r.e.rounds())
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], recordSum))
	return all, more
}

// wrote goes on to the next record. counts: the last one was worth it.
func (r *Records) wrote(counts bool) {
	kind := 0
	if len(r.ready) > 0 {
		r.ready = r.ready[1:]
	} else {
		r.known, kind = r.known[1:], 1
	}
	if counts {
		r.all[kind]++
	}
}

// read sees to it that there is a record to be written. It returns false at the end.
func (r *Records) read() bool {
	for len(r.ready)+len(r.known) == 0 {
		if r.services == nil {
			r.readConnections()
		} else if !r.readClients() {
			return false
		}
	}
	return true
}

// readConnections reads those of the next entries that are to be recorded.
func (r *Records) readConnections() {
	e := r.e
	r.ready = r.room[:0]
	next, more := e.some(Cursor(r.at), func(c *conn, _ uint32) {
		if r.since != 0 && c.lastSeen < r.since || !e.alive(c, r.now) {
			return
		}
		x := connRecord{
			first: e.table.tuple(c, original), answer: e.table.tuple(c, reply), idle: time.Duration(max(r.now-c.lastSeen, 0)), mark: c.mark,
			state: c.state, packets: c.packets, bytes: c.bytes, tcp: c.tcp,
		}
		if e.tellsItself(c, &x.first, &x.answer) {
			return
		}
		if x.first.IPv6 {
			x.facts |= recordIPv6
		}
		if e.snapshot.rules.Generated() && x.mark == uint32(x.first.Link) {
			x.facts |= recordOwnMark
		}
		for _, f := range recordFlags {
			if c.has(f.flag) {
				x.facts |= f.fact
			}
		}
		r.ready = append(r.ready, x)
	})
	if r.at = uint32(next); !more {
		r.services = r.e.affinities()
	}
}

// tellsItself reports whether the next packet of a connection, of either direction, would make it again: its translation is that of
// the clusters' CIDRs, and a mark, which given rules may ask for, is only that of its node, to which the answers go without it.
func (e *Engine) tellsItself(c *conn, first, answer *packet.Tuple) bool {
	s := e.snapshot
	if c.has(flagService|flagPort) || first.Link.Outside() == answer.Link.Outside() {
		return false
	}
	to := first.Reply(0)
	source, destination := first.Source(), first.Destination()
	if first.Link.Outside() {
		if c.mark != 0 {
			return false
		}
		if r, ok := s.real.Lookup(source); ok {
			to.SetDestination(r.apply(source))
		}
		return to.Words == answer.Words && to.Ports == answer.Ports
	}
	if r, ok := s.seen.Lookup(destination); ok {
		to.SetSource(r.apply(destination))
	}
	if to.Words != answer.Words || to.Ports != answer.Ports {
		return false
	}
	if c.mark != 0 && !s.rules.Generated() {
		return false
	}
	home, ok := s.rules.Route(answer.Link, 0, to.Source(), source)
	marked, _ := s.rules.Route(answer.Link, c.mark, to.Source(), source)
	return ok && home == marked
}

// affinities returns the services that have clients.
func (e *Engine) affinities() map[uint32]serviceIdentity {
	e.mu.Lock()
	defer e.mu.Unlock()
	services := make(map[uint32]serviceIdentity, len(e.clients.lists))
	for identity, l := range e.clients.lists {
		services[l.id] = identity
	}
	return services
}

// readClients reads some of the clients. It returns false if there are no more.
func (r *Records) readClients() bool {
	e, t := r.e, &r.e.clients
	if r.since > 0 {
		return false // what a client has got since then, the keyed choice gives it again
	}
	r.known = r.known[:0]
	e.mu.Lock()
	defer e.mu.Unlock()
	first := r.clientAt + 1
	end := min(first+listBudget, t.high)
	for n := first; n < end; n++ {
		a := t.at(n)
		if service, ok := r.services[a.key.list]; ok && a.expires > r.now {
			r.known = append(r.known, clientRecord{service, a.key.client, a.backend, time.Duration(a.expires - r.now)})
		}
		r.clientAt = n
	}
	return end > first
}

// rounds returns how often an entry of the table was used, at most.
func (e *Engine) rounds() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table.lastID / idStep
}

func (r *Records) appendConnection(b []byte, x *connRecord) []byte {
	n := len(b)
	b, from := r.appendLink(b, x.first.Link)
	way := uint64(0)
	if x.answer.Link.Outside() {
		b, way = r.appendLink(b, x.answer.Link)
	}
	if from == 0 || way == 0 && x.answer.Link.Outside() {
		return b[:n]
	}
	b = append(b, itemConnection, x.facts, x.first.Protocol, byte(x.state))
	b = binary.AppendUvarint(binary.AppendUvarint(b, from), way)
	for _, t := range [...]*packet.Tuple{&x.first, &x.answer} {
		for _, w := range t.Words[:words(t.IPv6)] {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		b = binary.LittleEndian.AppendUint32(b, t.Ports)
	}
	b = binary.AppendUvarint(b, uint64(x.idle.Milliseconds()))
	if x.facts&recordOwnMark == 0 {
		b = binary.AppendUvarint(b, uint64(x.mark))
	}
	for d := range x.packets {
		b = binary.AppendUvarint(binary.AppendUvarint(b, x.packets[d]), x.bytes[d])
	}
	if !remembers(x.first.Protocol) {
		return b
	}
	for d := range x.tcp.end {
		t := &x.tcp
		b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, t.end[d]), t.ack[d])
		b = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, t.window[d]), t.mss[d])
		b = append(b, t.shift[d], byte(t.flags[d]&(tcpStray-1)))
	}
	return b
}

// words returns how many words the addresses of a tuple take.
func words(ipv6 bool) int {
	if ipv6 {
		return 4
	}
	return 1
}

// remembers reports whether connections of a protocol have a tcpState.
func remembers(protocol uint8) bool { return protocol == packet.TCP || protocol == packet.SCTP }

// appendLink returns the number of a link in the block, which it gets now if it has none; 0 if it has no name.
func (r *Records) appendLink(b []byte, l Link) ([]byte, uint64) {
	for i, o := range r.links {
		if o == l {
			return b, uint64(i + 1)
		}
	}
	name := r.name(l)
	if name == "" || len(name) > maxRecordName {
		return b, 0
	}
	r.links = append(r.links, l)
	return appendName(append(b, itemLink), name), uint64(len(r.links))
}

func appendName(b []byte, name string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(name))), name...)
}

func (r *Records) appendClient(b []byte, x *clientRecord) []byte {
	if len(x.service.name) > maxRecordName {
		return b
	}
	number := uint64(0)
	for i, o := range r.named {
		if o == x.service {
			number = uint64(i + 1)
		}
	}
	if number == 0 {
		r.named = append(r.named, x.service)
		number = uint64(len(r.named))
		b = appendName(append(b, itemService), x.service.name)
		b = append(binary.LittleEndian.AppendUint16(b, x.service.port), x.service.protocol)
	}
	b = binary.AppendUvarint(append(b, itemClient), number)
	for _, w := range [...]uint64{x.address[0], x.address[1], x.backend} {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return binary.AppendUvarint(b, uint64(x.left.Milliseconds()))
}
