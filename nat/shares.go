package nat

import (
	"hash/maphash"

	"culvert/nat/packet"
)

// No source of packets may exhaust a shared resource. Of each resource, a link (a node, or the
// tunnel) holds at most as much as is free. An address of a link holds at most as much as its link
// may still take, and a network twice that:
//
//	held by the address     < the whole − held by all − held by its link
//	held by its network / 2 < the whole − held by all − held by its link
//
// These are the dynamic thresholds of Choudhury and Hahne ("Dynamic queue length thresholds for
// shared-memory packet switches", 1998): one address alone gets a third, one network alone two
// fifths and one link alone a half; n links that take what they can get the (n+1)th part each, and
// as much stays free for the next one.
//
// An address is that of an IPv4 host or of a pod, or else an IPv6 /64, in which a host has as many
// addresses as it likes. A network is an IPv4 /24 or an IPv6 /64, by default that of the pods of a
// Kubernetes node; a pod there may be able to forge any of its addresses.

// A holder identifies who holds something: an address, its network and its link.
type holder struct{ address, network, link uint64 }

// A resource is something that is shared. The values separate the counters of one holder.
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
	return holder{h.address ^ uint64(r)<<32, h.network ^ uint64(r)<<32, h.link ^ uint64(r)<<32}
}

// within returns the holder's identities for one part of a partitioned resource.
func (h holder) within(part uint64) holder {
	return holder{fold(h.address, part|1), fold(h.network, part|1), fold(h.link, part|1)}
}

const shareShards = 256

// shares counts exactly what each holder has. Identities are 64-bit hashes keyed by the process, so
// no sender can make two of them collide. Each shard grows and shrinks with its content, which
// costs a packet some microseconds at a time.
type shares struct {
	secrets [7]uint64
	flat    bool // all packets come by one link: addresses take the place of networks and links too
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

// holder returns the sender of a packet with tuple t.
func (e *Engine) holder(t *packet.Tuple) holder {
	address, host := t.Words[0], uint64(0)
	if !t.IPv6 {
		address >>= 32
	} else if e.snapshot.isHost(t.Source(), t.Link) {
		host = t.Words[1]
	}
	s := &e.table.shares
	return s.at(s.identify(address, host, uint64(t.Link)), t)
}

// networkBit distinguishes the identity of a network from that of an address, because an IPv6 /64
// may be either.
const networkBit = 1 << 40

// at returns the holder with the given address identity that sent a packet with tuple t.
func (s *shares) at(address uint64, t *packet.Tuple) holder {
	if s.flat {
		return holder{address, address ^ networkBit, s.linked(address)}
	}
	network := t.Words[0]
	if !t.IPv6 {
		network >>= 32 + 8
	}
	return holder{address, s.identify(network, 0, uint64(t.Link)) ^ networkBit, s.linked(uint64(t.Link))}
}

// identify returns the identity of an address at a link; host is the address's second half.
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

// inUse reports whether the first slot of an identity is in use.
func (s *shares) inUse(identity uint64) bool {
	sh := s.shard(&identity)
	i := int(identity) & (len(sh.identities) - 1)
	return len(sh.identities) > 0 && sh.identities[i] != 0 && sh.counts[i] != 0
}

// full reports whether h may take no more of a resource with most places, used of which are in use.
func (s *shares) full(h holder, used, most int) bool {
	if 3*used < most { // no address and no link holds more than all do
		return false
	}
	left := most - used - s.held(h.link) // what remains of the link's share
	return left <= 0 || s.held(h.address) >= left || s.held(h.network) >= 2*left
}

// smallPart is the fraction of a network's or link's share below which a holder is never full,
// however little its neighbours hold.
const smallPart = 16

// yields reports whether an item of v's, the oldest, is evicted for h: it is h's own, or of a link
// that has more. Within a link, a network with at least as much yields, and within a network an
// address. There, a holder with only a small part of the whole takes from anybody, because a sender
// that forges many addresses has next to nothing at each. An address with a small part of the link,
// in a network with more, takes from every network whose part is not small: it does not pay for
// what its neighbours hold, and forging them takes nothing from a small network.
func (s *shares) yields(v, h holder) bool {
	switch {
	case v.link != h.link:
		return s.held(v.link) > s.held(h.link)
	case v.network != h.network:
		small := s.held(h.link) / smallPart
		return s.yieldsWithin(h.link, v.network, h.network) || s.held(h.address) <= small && s.held(v.network) > small
	}
	return s.yieldsWithin(h.network, v.address, h.address)
}

func (s *shares) yieldsWithin(whole, v, h uint64) bool {
	has := s.held(h)
	return s.held(v) >= has || has <= s.held(whole)/smallPart
}

func (s *shares) take(h holder) {
	s.add(h.address)
	s.add(h.network)
	s.add(h.link)
}

func (s *shares) give(h holder) {
	s.drop(h.address)
	s.drop(h.network)
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

// add gives an identity one more, and returns how much it has now.
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

// drop takes one from an identity. Preconditions: it has some.
func (s *shares) drop(identity uint64) {
	sh := s.shard(&identity)
	i, _ := sh.find(identity)
	if sh.counts[i]--; sh.counts[i] > 0 {
		return
	}
	// Closing the gap keeps searches from ending early.
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
