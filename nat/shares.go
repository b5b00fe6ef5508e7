package nat

import (
	"hash/maphash"

	"culvert/nat/packet"
)

// A source of packets may not use up what it shares with others. Of each resource, a link (a node, or the tunnel) holds at most as
// much as is free, and an address of a link at most as much as its link may still take, so that
//
//	held by the address + held by its link + held by all < the whole
//
// decides. These are the dynamic thresholds of Choudhury and Hahne ("Dynamic queue length thresholds for shared-memory packet
// switches", 1998) in two levels: one address alone gets a third and one link alone a half; n links that take what they can get
// the (n+1)th part each, and as much stays free for the next one.
//
// An address is that of an IPv4 host or of a pod, or else an IPv6 /64, in which a host has as many addresses as it likes.

// A holder is who holds something: an address of a link, and the link.
type holder struct{ address, link uint64 }

// A resource is what is shared out. The values tell the counters of one holder apart.
type resource uint8

const (
	shareConnections resource = iota + 1
	sharePorts
	shareDatagrams
	shareHeld
	shareAffinities
)

// of returns the holder's identities for a resource.
func (h holder) of(r resource) holder {
	return holder{h.address ^ uint64(r)<<32, h.link ^ uint64(r)<<32}
}

// within returns the holder's identities for one of many parts of a resource.
func (h holder) within(part uint64) holder {
	return holder{fold(h.address, part|1), fold(h.link, part|1)}
}

const shareShards = 256

// shares counts exactly what each holder has. Identities are 64 bits of a hash that is keyed by the process: what a sender chooses
// makes no two of them meet. Each shard grows and shrinks with what is in it, which costs a packet some microseconds at a time.
type shares struct {
	secrets [7]uint64
	flat    bool // all comes by one link: addresses take the place of links too
	shards  [shareShards]shareShard
}

// A shareShard is a table with open addressing and without pointers. Identity 0 is an empty slot.
type shareShard struct {
	identities []uint64
	counts     []uint32
	used       int
}

func (s *shares) init() {
	seed := maphash.MakeSeed()
	for i := range s.secrets {
		s.secrets[i] = maphash.Comparable(seed, i)
	}
}

// holder returns who sent a packet with tuple t.
func (e *Engine) holder(t *packet.Tuple) holder {
	address, host := t.Words[0], uint64(0)
	if !t.IPv6 {
		address >>= 32
	} else if e.snapshot.isHost(t.Source(), t.Link) {
		host = t.Words[1]
	}
	s := &e.table.shares
	return s.at(s.identify(address, host, uint64(t.Link)), t.Link)
}

// at returns the holder that is known by the identity of an address and comes by link.
func (s *shares) at(address uint64, link Link) holder {
	of := uint64(link)
	if s.flat {
		of = address
	}
	return holder{address, s.linked(of)}
}

// identify returns the identity of an address, of which host is the second half, at a link.
func (s *shares) identify(address, host, link uint64) uint64 {
	k := &s.secrets
	h := fold(address^k[2], link^k[3])
	if host != 0 {
		h = fold(h^host, k[6])
	}
	return fold(h^k[4], k[5])
}

// linked returns the identity of a link.
func (s *shares) linked(link uint64) uint64 { return fold(link^s.secrets[0], s.secrets[1]) }

// held returns how much an identity has.
func (s *shares) held(identity uint64) int {
	sh := s.shard(&identity)
	if i, ok := sh.find(identity); ok {
		return int(sh.counts[i])
	}
	return 0
}

// inUse reports whether the first place in which an identity is looked for is in use.
func (s *shares) inUse(identity uint64) bool {
	sh := s.shard(&identity)
	i := int(identity) & (len(sh.identities) - 1)
	return len(sh.identities) > 0 && sh.identities[i] != 0 && sh.counts[i] != 0
}

// full reports whether h may take no more of what has most places, used of them in use.
func (s *shares) full(h holder, used, most int) bool {
	if 3*used < most { // no address and no link holds more than all do
		return false
	}
	return used >= most || s.held(h.link)+used >= most || s.held(h.address)+s.held(h.link)+used >= most
}

// yields reports whether something of v's, the oldest, makes room for h: it is h's own, or that of an address of its link that has no
// less, or of a link that has more.
func (s *shares) yields(v, h holder) bool {
	if v.link != h.link {
		return s.held(v.link) > s.held(h.link)
	}
	return s.held(v.address) >= s.held(h.address)
}

func (s *shares) take(h holder) {
	s.add(h.address)
	s.add(h.link)
}

func (s *shares) give(h holder) {
	s.drop(h.address)
	s.drop(h.link)
}

func (s *shares) shard(identity *uint64) *shareShard {
	*identity = max(*identity, 1)
	return &s.shards[*identity>>56]
}

// find returns the slot of an identity, or the one where it belongs.
func (sh *shareShard) find(identity uint64) (int, bool) {
	mask := len(sh.identities) - 1
	if mask < 0 {
		return 0, false
	}
	i := int(identity) & mask
	for sh.identities[i] != 0 && sh.identities[i] != identity {
		i = (i + 1) & mask
	}
	return i, sh.identities[i] != 0
}

// add gives an identity one more, and returns how much it has.
func (s *shares) add(identity uint64) int {
	sh := s.shard(&identity)
	i, ok := sh.find(identity)
	if !ok {
		if (sh.used+1)*8 > len(sh.identities)*7 {
			sh.resize(max(8, 2*len(sh.identities)))
			i, _ = sh.find(identity)
		}
		sh.identities[i] = identity
		sh.used++
	}
	sh.counts[i]++
	return int(sh.counts[i])
}

// drop takes one from what an identity has. Preconditions: it has some.
func (s *shares) drop(identity uint64) {
	sh := s.shard(&identity)
	i, _ := sh.find(identity)
	if sh.counts[i]--; sh.counts[i] > 0 {
		return
	}
	// Closing the gap keeps every search from ending early.
	mask := len(sh.identities) - 1
	for j := (i + 1) & mask; sh.identities[j] != 0; j = (j + 1) & mask {
		if home := int(sh.identities[j]) & mask; (j-home)&mask >= (j-i)&mask {
			sh.identities[i], sh.counts[i] = sh.identities[j], sh.counts[j]
			i = j
		}
	}
	sh.identities[i], sh.counts[i] = 0, 0
	sh.used--
	if n := len(sh.identities); n > 8 && sh.used*4 < n {
		sh.resize(n / 2)
	}
}

func (sh *shareShard) resize(n int) {
	old := *sh
	sh.identities, sh.counts = make([]uint64, n), make([]uint32, n)
	for j, identity := range old.identities {
		if identity != 0 {
			i, _ := sh.find(identity)
			sh.identities[i], sh.counts[i] = identity, old.counts[j]
		}
	}
}
