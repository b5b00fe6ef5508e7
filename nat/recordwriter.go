package nat

import (
	"encoding/binary"
	"hash/crc32"

	"culvert/nat/packet"
)

// A blockWriter makes blocks of records.
type blockWriter struct {
	name func(Link) string
	// The current block.
	all   []byte // ends with it
	start int    // where it begins in all
	links []Link
	named []serviceIdentity
}

// begin begins a block behind dst.
func (w *blockWriter) begin(dst []byte) {
	w.start = len(dst)
	w.all = append(dst, make([]byte, recordHeader)...)
	w.links, w.named = w.links[:0], w.named[:0]
}

// add appends an item to the block. fits is false if the block has no room for it; written is false
// if there is nothing to write.
func (w *blockWriter) add(item func([]byte) []byte) (written, fits bool) {
	n, links, named := len(w.all), len(w.links), len(w.named)
	w.all = item(w.all)
	written, fits = len(w.all) > n, len(w.all) <= w.start+RecordBlock
	if !fits {
		w.all = w.all[:n]
	}
	if !fits || !written {
		w.links, w.named = w.links[:links], w.named[:named] // undo the names: the record was not written
	}
	return written, fits
}

// finish completes the block, and returns all. rounds is an upper bound for how often a table entry
// was used.
func (w *blockWriter) finish(rounds uint64) (all []byte) {
	used := len(w.all) - w.start - recordHeader
	all = append(w.all, make([]byte, w.start+RecordBlock-len(w.all))...)
	w.all = nil // the caller's
	b := all[w.start:]
	binary.LittleEndian.PutUint16(b[4:], recordVersion)
	binary.LittleEndian.PutUint16(b[6:], uint16(used))
	binary.LittleEndian.PutUint64(b[8:], rounds)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], recordSum))
	return all
}

// appendEnd says how many connections and clients were written.
func appendEnd(b []byte, written [2]uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(append(b, itemEnd), written[0]), written[1])
}

func (w *blockWriter) appendConnection(b []byte, x *connRecord) []byte {
	n := len(b)
	b, from := w.appendLink(b, x.first.Link)
	way := uint64(0)
	if x.answer.Link.Outside() {
		b, way = w.appendLink(b, x.answer.Link)
	} else if x.facts&recordHome != 0 {
		b, way = w.appendLink(b, x.home)
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
		for _, word := range t.Words[:words(t.IPv6)] {
			b = binary.LittleEndian.AppendUint64(b, word)
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

// appendLink returns the number of a link in the block and defines it if necessary; 0 if the link
// has no name.
func (w *blockWriter) appendLink(b []byte, l Link) ([]byte, uint64) {
	for i, o := range w.links {
		if o == l {
			return b, uint64(i + 1)
		}
	}
	name := w.name(l)
	if name == "" || len(name) > maxRecordName {
		return b, 0
	}
	w.links = append(w.links, l)
	return appendName(append(b, itemLink), name), uint64(len(w.links))
}

func appendName(b []byte, name string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(name))), name...)
}

func (w *blockWriter) appendClient(b []byte, x *clientRecord) []byte {
	b, number := w.appendService(b, x.service)
	if number == 0 {
		return b
	}
	b = binary.AppendUvarint(append(b, itemClient), number)
	for _, word := range [...]uint64{x.address[0], x.address[1], x.backend} {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return binary.AppendUvarint(b, uint64(x.left.Milliseconds()))
}

// appendService returns the number of a service in the block and defines it if necessary; 0 if its
// name is too long.
func (w *blockWriter) appendService(b []byte, s serviceIdentity) ([]byte, uint64) {
	for i, o := range w.named {
		if o == s {
			return b, uint64(i + 1)
		}
	}
	if len(s.name) > maxRecordName {
		return b, 0
	}
	w.named = append(w.named, s)
	b = appendName(append(b, itemService), s.name)
	return append(binary.LittleEndian.AppendUint16(b, s.port), s.protocol), uint64(len(w.named))
}
