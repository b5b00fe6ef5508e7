package nat

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/nat/packet"
)

// SumRecords gives a block of records the checksum of its bytes.
func SumRecords(b []byte) { binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], recordSum)) }

// LongEnv is longEnv for tests from outside.
const LongEnv = longEnv

// The largest record of an IPv4 connection takes 128 bytes at most.
func TestRecordSize(t *testing.T) {
	for _, test := range []struct {
		ipv6 bool
		most int
	}{{false, 128}, {true, 176}} {
		x := connRecord{idle: 120 * time.Hour, mark: math.MaxUint32, state: stateEstablished}
		x.first = packet.Tuple{Protocol: packet.TCP, Link: 1 << 14, IPv6: test.ipv6}
		x.answer = packet.Tuple{Protocol: packet.TCP, Link: Tunnel, IPv6: test.ipv6}
		for d := range x.packets {
			x.packets[d], x.bytes[d] = math.MaxUint64, math.MaxUint64
		}
		r := blockWriter{links: make([]Link, 200)}
		r.links = append(r.links, x.first.Link, x.answer.Link)
		if n := len(r.appendConnection(nil, &x)); n > test.most {
			t.Errorf("IPv6 %t: %d bytes, want at most %d", test.ipv6, n, test.most)
		}
	}
}

// Needed returns what Records would save of connections and clients, as far as it does not change
// with each packet, in the order of the text. With expired, it also returns the tuples of expired
// connections that are still in the table.
func Needed(e *Engine, now Time, expired bool) (all []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := uint32(1); n < e.table.high; n++ {
		c := e.table.at(n)
		if !c.live() || !expired && !e.alive(c, now) {
			continue
		}
		if x, ok := e.record(c, n, now); ok {
			all = append(all, fmt.Sprintf("%s %s | %v mark %d facts %x header %+v ports %t", x.first.String(),
				x.answer.String(), x.state, x.mark, x.facts, x.prologue, c.has(flagPort)))
		}
	}
	for n := uint32(1); n < e.clients.high; n++ {
		if x, ok := e.clients.record(n, now); ok {
			all = append(all, fmt.Sprintf("client %+v %x | %x", x.service, x.address, x.backend))
		}
	}
	if slices.Sort(all); expired {
		for i := range all {
			all[i], _, _ = strings.Cut(all[i], "|")
		}
	}
	return all
}

// Room makes a Feed's room for ended connections smaller. It must be called before any has ended.
func (f *Feed) Room(n int) { f.gone = make([]gone, n) }
