package nat

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
)

// A serviceAddress is what a packet from the tunnel is addressed to.
type serviceAddress struct {
	addr     netip.Addr
	port     uint16
	protocol uint8
}

func (a serviceAddress) hash() uint64 {
	high, low := addressWords(a.addr)
	return high ^ low ^ uint64(a.port)<<8 ^ uint64(a.protocol)
}

// A service is a compiled Service.
type service struct {
	config Service
	origin *origin
	// total is the sum of all weights, and until[i] that of the backends up to i.
	total   uint64
	until   []uint64
	seeds   []uint64         // of the backends' addresses and ports, for rendezvous
	present map[uint64]int32 // backends by seed
}

func newService(c Service) *service {
	c.Backends = slices.Clone(c.Backends)
	s := &service{config: c, present: make(map[uint64]int32, len(c.Backends))}
	for i, b := range c.Backends {
		s.total += uint64(weight(b))
		s.until = append(s.until, s.total)
		seed := backendSeed(netip.AddrPortFrom(b.Address, b.Port))
		s.seeds = append(s.seeds, seed)
		s.present[seed] = int32(i)
	}
	return s
}

// backendSeed is the same for a backend in whatever configuration it is.
func backendSeed(a netip.AddrPort) uint64 {
	high, low := addressWords(a.Addr())
	return hashKey{}.sum(high, low, uint64(a.Port()))
}

func weight(b Backend) int { return max(1, b.Weight) }

// addressOf returns what packets for the service are addressed to.
func addressOf(c *Service) serviceAddress { return serviceAddress{c.Address, c.Port, c.Protocol} }

// has reports whether a backend is still one of the service's.
func (s *service) has(backend netip.AddrPort) bool {
	_, ok := s.present[backendSeed(backend)]
	return ok
}

// pick returns the backend for a new connection of a client. It is a function of the key, the service, the client and, with affinity,
// of the client's earlier connections: so a packet in mid-stream finds the backend that its connection had. False: there is none.
func (s *service) pick(e *Engine, client *pickWords, now Time) (int32, bool) {
	if s.total == 0 {
		return 0, false
	}
	if s.config.Affinity == AffinityClientIP {
		if n, ok := e.clients.backend(s, client, now); ok {
			return n, true
		}
	}
	return s.choose(e.hashKey, client), true
}

// client returns what a choice for a client hashes.
func (s *service) client(a netip.AddrPort) pickWords {
	words := pickWords{uint64(a.Port())<<32 | uint64(s.config.Port)<<16 | uint64(s.config.Protocol)}
	words[1], words[2] = addressWords(a.Addr())
	words[3], words[4] = addressWords(s.config.Address)
	return words
}

// pickWords are what a choice hashes: ports and protocol, the client's address, the service's address.
type pickWords [5]uint64

func addressWords(a netip.Addr) (high, low uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

func (s *service) choose(key hashKey, words *pickWords) int32 {
	if s.config.Balance == BalanceHash {
		return s.rendezvous(key, words)
	}
	at := key.sum(words[:]...) % s.total
	low, high := 0, len(s.until)-1
	for low < high {
		if middle := (low + high) / 2; s.until[middle] > at {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return int32(low)
}

// rendezvous returns the backend with the highest weighted score (Schindelhauer and Schomaker, "Weighted distributed hash tables",
// 2005): the share of each is exactly its weight, and a backend that comes or goes moves no client of another.
func (s *service) rendezvous(key hashKey, words *pickWords) int32 {
	base := key.sum(words[:]...)
	best, at := math.Inf(-1), 0
	for i := range s.config.Backends {
		u := (float64(mix(base^s.seeds[i])>>11) + 0.5) / (1 << 53) // in (0, 1)
		if score := -float64(weight(s.config.Backends[i])) / math.Log(u); score > best {
			best, at = score, i
		}
	}
	return int32(at)
}

// mix is the finalizer of MurmurHash3. Unlike base, which is secret, it need not resist anybody.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
