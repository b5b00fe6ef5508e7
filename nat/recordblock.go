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
// Links and services are defined in a block before they are first used there, and count from 1. So no block needs another.
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
)

// Bits of what is known about a connection.
const (
	recordIPv6 = 1 << iota
	recordReplied
	recordService
	recordPort
	recordOwnMark // the mark is the number of the node of origin
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
	if pr := &x.prologue; pr.stage > 0 {
		stage := pr.stage
		if pr.seen {
			stage |= proxySeen
		}
		b = binary.LittleEndian.AppendUint32(append(b, itemProxy, stage), pr.first)
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

// appendLink returns the number of a link in the block and defines it if necessary; 0 if the link has no name.
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

// item reads one item and stores its fields.
func (r *Restore) item(in *fields) {
	switch in.byte() {
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
		r.since = [2]int{}
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
	if in.short = in.short || from == 0 || !x.state.suits(protocol) || x.prologue.stage > 0 && protocol != packet.TCP; in.short {
		return
	}
	r.since[0]++
	origin, answers := r.links[from-1], restoredLink{anyNode, true}
	if way > 0 {
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
