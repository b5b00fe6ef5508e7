// Package capture records packets at stages of their path through a gateway, and writes them as
// pcapng: an interface for each stage, and for each packet a comment with its outcome.
//
// A Session copies packets into blocks of fixed size, under its own lock; Write takes the blocks
// and writes them. Packets that do not fit are counted and lost: forwarding never waits for a
// capture.
package capture

import (
	"sync"
	"time"
)

// Stage is a point on a packet's path.
type Stage uint8

// The stages. Geneve and WireGuard are the tunnels' datagrams, with outer headers reconstructed
// from their addresses; Pre and Post are inner packets before and after the gateway has decided,
// which may be super-frames.
const (
	Geneve Stage = iota
	Pre
	Post
	WireGuard
	NumStages
)

var stageNames = [NumStages]string{"geneve", "pre", "post", "wireguard"}

func (s Stage) String() string { return stageNames[s] }

var stageTexts = [NumStages]string{
	"Geneve or VXLAN datagrams from and to nodes",
	"inner packets as they come in",
	"inner packets as they go out",
	"WireGuard messages from and to the peer",
}

// Stages returns the names of the stages.
func Stages() []string { return stageNames[:] }

const (
	// A block has room for blockBytes of packets, at most blockRecords. There are two: one is
	// filled while the other is written.
	blockBytes   = 2 << 20
	blockRecords = 1 << 13
)

// A Session is one capture.
type Session struct {
	stages  [NumStages]bool
	drops   bool
	snaplen int

	mu      sync.Mutex
	filling *block            // +checklocks:mu
	lost    [NumStages]uint64 // +checklocks:mu

	spare *block        // for Write
	half  chan struct{} // signals that the block being filled is half full
}

type block struct {
	data    []byte
	records []record
}

// A record is one packet in a block.
type record struct {
	at       time.Time
	length   int // of the packet
	end      int // of its bytes in the block
	stage    Stage
	outbound bool
	note     string
}

// NewSession returns a Session that records at some stages (none = all): all packets, or only
// dropped ones. snaplen is how much of each is kept, 0 = everything.
func NewSession(stages []Stage, drops bool, snaplen int) *Session {
	s := &Session{drops: drops, snaplen: snaplen, filling: newBlock(), spare: newBlock(), half: make(chan struct{}, 1)}
	for _, stage := range stages {
		s.stages[stage] = true
	}
	if len(stages) == 0 {
		s.stages = [NumStages]bool{true, true, true, true}
	}
	return s
}

func newBlock() *block {
	return &block{make([]byte, 0, blockBytes), make([]record, 0, blockRecords)}
}

// Wants reports whether packets of a stage are recorded, given whether they are dropped.
func (s *Session) Wants(at Stage, drop bool) bool { return s.stages[at] && (drop || !s.drops) }

// Room returns how many of n bytes of a packet are kept.
func (s *Session) Room(n int) int {
	if s.snaplen > 0 {
		return min(n, s.snaplen)
	}
	return n
}

// Add records a packet that Wants, given in consecutive parts. length is its size before the caller
// cut it to Room. note is its outcome.
func (s *Session) Add(at Stage, outbound bool, note string, length int, parts ...[]byte) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	b, size := s.filling, 0
	for _, p := range parts {
		size += len(p)
	}
	room := s.Room(size)
	if len(b.records) == cap(b.records) || cap(b.data)-len(b.data) < room {
		s.lost[at]++
		return
	}
	for _, p := range parts {
		n := min(len(p), room)
		b.data = append(b.data, p[:n]...)
		room -= n
	}
	if len(b.data) > cap(b.data)/2 || len(b.records) > cap(b.records)/2 {
		select {
		case s.half <- struct{}{}:
		default:
		}
	}
	b.records = append(b.records, record{now, length, len(b.data), at, outbound, note})
}

// swap returns the records since the last call, and the total of lost packets.
func (s *Session) swap() (full *block, lost [NumStages]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	full = s.filling
	s.spare.data, s.spare.records = s.spare.data[:0], s.spare.records[:0]
	s.filling, s.spare = s.spare, full
	return full, s.lost
}
