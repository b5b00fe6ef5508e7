package nat

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"

	"culvert/nat/packet"
)

// RecordBlock is the size of a block of records in bytes.
const RecordBlock = 4096

// A block begins with a checksum of the rest and ends with padding:
//
//	0  CRC-32C of all that follows
//	4  version
//	6  length of all items, in bytes
//	8  an upper bound for how often a table entry was used; ids continue from there
//	16 items, each a byte for its kind and then its fields, most of them uvarints
//
// Links and services are defined in a block before they are first used there, and count from 1. So
// no block needs another.
const (
	recordVersion = 1
	recordHeader  = 16
	// maxRecordName is the longest name of a link or service in a record.
	maxRecordName = 512
	// maxRecordTime is the longest time in a record, in milliseconds: 30 years.
	maxRecordTime = 1 << 40
)

var recordSum = crc32.MakeTable(crc32.Castagnoli)

// The kinds of items.
const (
	itemLink       = iota + 1 // length, name
	itemConnection            // a connRecord
	itemService               // length, name, port, protocol
	itemClient                // service, address, backend, time left in milliseconds
	itemEnd                   // how many connections and clients were written
	itemProxy                 // stage and first of the connection that follows
	// Of a Feed only.
	itemCopy       // the number of a copy, which begins; itemEnd ends it
	itemGone       // family, protocol, link, addresses and ports of the original tuple of a connection that has ended
	itemGoneClient // service and address of a client that is forgotten
)

// Bits of what is known about a connection.
const (
	recordIPv6 = 1 << iota
	recordReplied
	recordService
	recordPort
	recordOwnMark // the mark is the number of the node of origin
	// its answers come from inside, and it stays with the node by which it leaves, whose link is in
	// their place
	recordHome
	recordEnds // it ends with its service
)

var recordFlags = [...]struct {
	fact uint8
	flag connFlags
}{{recordReplied, flagReplied}, {recordService, flagService}, {recordPort, flagPort}}

// A proxyRecord is the saved form of a proxyStream; the zero proxyRecord is none.
type proxyRecord struct {
	stage uint8 // headerStage + 1
	seen  bool
	first uint32
}

// proxySeen is added to the stage of a proxyRecord.
const proxySeen = 0x80

// A connRecord is the saved form of a connection.
type connRecord struct {
	prologue       proxyRecord
	first, answer  packet.Tuple
	home           Link // for recordHome
	idle           time.Duration
	mark           uint32
	facts          uint8
	state          state
	packets, bytes [2]uint64
	tcp            tcpState
}

// A clientRecord is the saved form of a service's client.
type clientRecord struct {
	service serviceIdentity
	address [2]uint64
	backend uint64
	left    time.Duration
}

// item reads one item and stores its fields.
func (r *Restore) item(in *fields) {
	switch kind := in.byte(); kind {
	case itemLink:
		l, ok := r.link(in.name())
		r.links = append(r.links, restoredLink{l, ok})
	case itemConnection:
		r.connection(in)
	case itemProxy:
		stage := in.byte()
		pr := proxyRecord{stage &^ proxySeen, stage&proxySeen != 0, in.uint32()}
		if in.short = in.short || pr.stage == 0 || headerStage(pr.stage-1) > headerFar; !in.short {
			r.prologue = pr
		}
	case itemService:
		r.services = append(r.services, serviceIdentity{in.name(), in.uint16(), in.byte()})
	case itemClient:
		number := in.uvarint(uint64(len(r.services)))
		c := clientRecord{address: [2]uint64{in.uint64(), in.uint64()}, backend: in.uint64(), left: in.time()}
		if in.short || number == 0 {
			in.short = true
			return
		}
		if r.since[1]++; len(r.clients) < r.most {
			c.service = r.services[number-1]
			r.clients = append(r.clients, c)
		}
	case itemEnd:
		of := [2]int{int(in.uvarint(math.MaxUint32)), int(in.uvarint(math.MaxUint32))}
		r.result.Whole = !in.short && of == r.since && r.result.Damaged+r.result.Foreign == 0
		if r.mirror != nil && !in.short {
			r.put()
			r.mirror.putClients()
			r.mirror.ends(of == r.since)
		}
		r.since = [2]int{}
	default:
		if in.short = in.short || r.mirror == nil; !in.short {
			r.change(kind, in)
		}
	}
}

// change reads an item of a Feed.
func (r *Restore) change(kind byte, in *fields) {
	r.put() // in order
	r.mirror.putClients()
	switch kind {
	case itemCopy:
		if in.uvarint(math.MaxUint64); !in.short {
			r.mirror.begins()
		}
	case itemGone:
		r.mirror.gone(in)
	case itemGoneClient:
		r.mirror.goneClient(in)
	default:
		in.short = true
	}
}

// connection reads a connRecord.
func (r *Restore) connection(in *fields) {
	x := connRecord{prologue: r.prologue, facts: in.byte()}
	r.prologue = proxyRecord{}
	protocol := in.byte()
	x.state = state(in.byte())
	from, way := in.uvarint(uint64(len(r.links))), in.uvarint(uint64(len(r.links)))
	for _, t := range [...]*packet.Tuple{&x.first, &x.answer} {
		t.Protocol, t.IPv6 = protocol, x.facts&recordIPv6 != 0
		for i := range t.Words[:words(t.IPv6)] {
			t.Words[i] = in.uint64()
		}
		t.Ports = in.uint32()
	}
	x.idle = in.time()
	if x.facts&recordOwnMark == 0 {
		x.mark = uint32(in.uvarint(math.MaxUint32))
	}
	for d := range x.packets {
		x.packets[d], x.bytes[d] = in.uvarint(math.MaxUint64), in.uvarint(math.MaxUint64)
	}
	if remembers(protocol) {
		t := &x.tcp
		for d := range t.end {
			t.end[d], t.ack[d] = in.uint32(), in.uint32()
			t.window[d], t.mss[d] = in.uint16(), in.uint16()
			t.shift[d], t.flags[d] = min(in.byte(), packet.MaxWindowShift), tcpFlags(in.byte())&(tcpStray-1)
		}
	}
	if in.short = in.short || from == 0 || !x.state.suits(protocol) || x.prologue.stage > 0 &&
		protocol != packet.TCP; in.short {
		return
	}
	r.since[0]++
	origin, answers := r.links[from-1], restoredLink{anyNode, true}
	switch {
	case way == 0:
	case x.facts&recordHome != 0: // of a node that is not here, it leaves by another
		x.home = r.links[way-1].link
	default:
		answers = r.links[way-1]
		answers.ok = answers.ok && answers.link.Outside()
	}
	if !origin.ok || !answers.ok {
		r.result.UnknownLink++
		return
	}
	x.first.Link, x.answer.Link = origin.link, answers.link
	if x.facts&recordOwnMark != 0 {
		x.mark = uint32(origin.link)
	}
	r.ready = append(r.ready, x)
}

// suits reports whether connections of a protocol can have this state.
func (s state) suits(protocol uint8) bool {
	switch {
	case protocol == packet.TCP:
		return s <= stateClosed
	case protocol == packet.UDP || protocol == packet.UDPLite:
		return s == stateUDP || s == stateUDPStream
	case packet.IsICMP(protocol):
		return s == stateICMP
	case protocol == packet.SCTP:
		return s >= stateSCTPOpening && s <= stateSCTPClosing
	}
	return s == stateOther
}

// fields reads the fields of items. Past the end it reads zeros.
type fields struct {
	b     []byte
	short bool // a field was missing or out of range
}

func (f *fields) take(n int) []byte {
	if f.short = f.short || n > len(f.b); f.short {
		return make([]byte, n)
	}
	b := f.b[:n]
	f.b = f.b[n:]
	return b
}

func (f *fields) byte() byte     { return f.take(1)[0] }
func (f *fields) uint16() uint16 { return binary.LittleEndian.Uint16(f.take(2)) }
func (f *fields) uint32() uint32 { return binary.LittleEndian.Uint32(f.take(4)) }
func (f *fields) uint64() uint64 { return binary.LittleEndian.Uint64(f.take(8)) }

// uvarint reads a number of at most most.
func (f *fields) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(f.b)
	if f.short = f.short || n <= 0 || v > most; f.short {
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) time() time.Duration {
	return time.Duration(f.uvarint(maxRecordTime)) * time.Millisecond
}

func (f *fields) name() string { return string(f.take(int(f.uvarint(maxRecordName)))) }
