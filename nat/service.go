package nat

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// defaultAffinityTimeout is Kubernetes' default for service.spec.sessionAffinityConfig.clientIP.timeoutSeconds.
const defaultAffinityTimeout = 3 * time.Hour

// A serviceSet finds services by what a packet from the tunnel is addressed to.
type serviceSet struct {
	all []*service
	by  map[serviceAddress]int32
}

type serviceAddress struct {
	addr     netip.Addr
	port     uint16
	protocol uint8
}

// A service is a compiled Service.
type service struct {
	config Service
	// total is the sum of all weights, and until[i] that of the backends up to i.
	total   uint64
	until   []uint64
	seeds   []uint64 // of the backends' addresses and ports, for rendezvous
	present map[netip.AddrPort]int32
	clients *affinityTable // nil without affinity
}

// newServices compiles services; those that previous has by name keep their clients, where the backend is still there.
func newServices(services []Service, previous *ruleset) serviceSet {
	set := serviceSet{by: make(map[serviceAddress]int32, len(services))}
	for i := range services {
		s := newService(services[i])
		if previous != nil && s.clients != nil {
			for _, old := range previous.services.all {
				if old.config.Name == s.config.Name && old.clients != nil {
					old.clients.copyTo(s.clients, old, s)
				}
			}
		}
		set.by[serviceAddress{s.config.Address, s.config.Port, s.config.Protocol}] = int32(len(set.all))
		set.all = append(set.all, s)
	}
	return set
}

func newService(c Service) *service {
	c.Backends = slices.Clone(c.Backends)
	s := &service{config: c, present: make(map[netip.AddrPort]int32, len(c.Backends))}
	for i, b := range c.Backends {
		s.total += uint64(weight(b))
		s.until = append(s.until, s.total)
		high, low := addressWords(b.Address)
		s.seeds = append(s.seeds, hashKey{}.sum(high, low, uint64(b.Port)))
		s.present[netip.AddrPortFrom(b.Address, b.Port)] = int32(i)
	}
	if c.Affinity == AffinityClientIP {
		s.clients = new(affinityTable)
	}
	return s
}

func weight(b Backend) int { return max(1, b.Weight) }

// find returns the number of the service that v is addressed to. Preconditions: v.hasL4.
func (s *serviceSet) find(v *view) (int32, bool) {
	if len(s.by) == 0 {
		return 0, false
	}
	n, ok := s.by[serviceAddress{v.dst, binary.BigEndian.Uint16(v.l4[2:]), v.proto}]
	return n, ok
}

// has reports whether a backend is still one of the service's.
func (s *service) has(backend netip.AddrPort) bool {
	_, ok := s.present[backend]
	return ok
}

// pick returns the backend for a new connection of client. It is a function of the key, the service, the client and, with affinity,
// of the client's earlier connections: so a packet in mid-stream finds the backend that its connection had. False: there is none.
func (s *service) pick(key hashKey, client netip.AddrPort, now Time) (Backend, bool) {
	if s.total == 0 {
		return Backend{}, false
	}
	words := pickWords{uint64(client.Port())<<32 | uint64(s.config.Port)<<16 | uint64(s.config.Protocol)}
	words[1], words[2] = addressWords(client.Addr())
	words[3], words[4] = addressWords(s.config.Address)
	if s.clients == nil {
		return s.config.Backends[s.choose(key, &words)], true
	}
	return s.config.Backends[s.clients.pick(s, key, &words, now)], true
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

const (
	affinityWays = 4
	affinitySets = 2048
)

// An affinityTable remembers the backends of a service's latest clients. It is a cache of fixed size, so that a flood of clients
// costs others their affinity and no memory.
type affinityTable struct {
	mu   sync.Mutex
	sets [affinitySets][affinityWays]affinity
}

type affinity struct {
	client  [2]uint64 // the address
	expires Time      // 0: free
	backend int32
}

// pick returns the backend of the client in words, and remembers it anew.
func (t *affinityTable) pick(s *service, key hashKey, words *pickWords, now Time) int32 {
	timeout := s.config.AffinityTimeout
	if timeout == 0 {
		timeout = defaultAffinityTimeout
	}
	client := [2]uint64{words[1], words[2]}
	set := &t.sets[key.sum(client[:]...)%affinitySets]
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := &set[0]
	for i := range set {
		a := &set[i]
		if a.client == client && a.expires > now {
			a.expires = now.Add(timeout)
			return a.backend
		}
		if a.expires < oldest.expires {
			oldest = a
		}
	}
	*oldest = affinity{client, now.Add(timeout), s.choose(key, words)}
	return oldest.backend
}

// copyTo copies the clients of t, the table of service from, whose backend to has too.
func (t *affinityTable) copyTo(u *affinityTable, from, to *service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.sets {
		for _, a := range t.sets[i] {
			b := from.config.Backends
			if a.expires == 0 {
				continue
			}
			n, ok := to.present[netip.AddrPortFrom(b[a.backend].Address, b[a.backend].Port)]
			if !ok {
				continue
			}
			for w := range u.sets[i] {
				if u.sets[i][w].expires == 0 {
					u.sets[i][w] = affinity{a.client, a.expires, n}
					break
				}
			}
		}
	}
}
