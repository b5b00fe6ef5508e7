package nat

import (
	"encoding/binary"
	"hash/crc32"
	"math"
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
		r := Records{links: make([]Link, 200)}
		r.links = append(r.links, x.first.Link, x.answer.Link)
		if n := len(r.appendConnection(nil, &x)); n > test.most {
			t.Errorf("IPv6 %t: %d bytes, want at most %d", test.ipv6, n, test.most)
		}
	}
}
