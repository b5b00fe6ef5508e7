package rules

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"culvert/nat/siphash"
)

// A serviceAddress is the destination of packets from an outside link.
type serviceAddress struct {
	addr     netip.Addr
	port     uint16
	protocol uint8
}

func (a serviceAddress) hash() uint64 {
	high, low := addressWords(a.addr)
	return high ^ low ^ uint64(a.port)<<8 ^ uint64(a.protocol)
}

// addressOf returns the destination of packets for the service.
func addressOf(c *Service) serviceAddress { return serviceAddress{c.Address, c.Port, c.Protocol} }

// A Balancer is a compiled Service. It is immutable.
type Balancer struct {
	Service Service
	origin  *origin
	// total is the sum of all weights, until[i] the sum of those of backends 0 to i.
	total   uint64
	until   []uint64
	seeds   []uint64         // of the backends' addresses and ports, for rendezvous
	present map[uint64]int32 // backends by seed; unchosen for those that get no new clients
	// For a Service with a Frontend: local has only this node's backends, and elsewhere, set in
	// local, says that there are others.
	local     *Balancer
	elsewhere bool
}

// unchosen is the index of backends that get no new clients.
const unchosen = -1

// NewBalancer compiles s.
func NewBalancer(s Service) *Balancer {
	b := newBalancer(s, func(b *Backend) bool { return b.Eligibility == EligibleAll })
	if s.Frontend != nil && s.Frontend.Local {
		b.local = newBalancer(s, func(b *Backend) bool { return b.Local && b.Eligibility != EligibleNone })
		b.local.elsewhere = b.total > 0
	}
	return b
}

// newBalancer compiles s for clients that get the chosen backends.
func newBalancer(s Service, chosen func(*Backend) bool) *Balancer {
	all := s.Backends
	s.Backends = make([]Backend, 0, len(all))
	b := &Balancer{present: make(map[uint64]int32, len(all))}
	for i := range all {
		backend := &all[i]
		seed := backendSeed(netip.AddrPortFrom(backend.Address, backend.Port))
		if !chosen(backend) {
			b.present[seed] = unchosen
			continue
		}
		b.present[seed] = int32(len(s.Backends))
		s.Backends = append(s.Backends, *backend)
		b.total += uint64(weight(*backend))
		b.until = append(b.until, b.total)
		b.seeds = append(b.seeds, seed)
	}
	b.Service = s
	return b
}

// backendSeed returns a value that identifies a backend in any configuration.
func backendSeed(a netip.AddrPort) uint64 {
	high, low := addressWords(a.Addr())
	return siphash.Key{}.Sum(high, low, uint64(a.Port()))
}

func weight(b Backend) int { return max(1, b.Weight) }

// Has reports whether a backend is one of the service's, with or without new clients.
func (b *Balancer) Has(backend netip.AddrPort) bool {
	_, ok := b.present[backendSeed(backend)]
	return ok
}

// Seed returns the value that identifies a backend whatever its index.
func (b *Balancer) Seed(backend int32) uint64 { return b.seeds[backend] }

// Find returns the index of the backend with this seed, if the service gives it new clients.
func (b *Balancer) Find(seed uint64) (int32, bool) {
	n, ok := b.present[seed]
	return n, ok && n != unchosen
}

// A Client is what the choice of a backend depends on, in words: ports and protocol, the client's
// address, the service's address.
type Client [5]uint64

// Client returns the Client for a connection from a.
func (b *Balancer) Client(a netip.AddrPort) Client {
	c := Client{uint64(a.Port())<<32 | uint64(b.Service.Port)<<16 | uint64(b.Service.Protocol)}
	c[1], c[2] = addressWords(a.Addr())
	c[3], c[4] = addressWords(b.Service.Address)
	return c
}

// Address returns the words of the client's address.
func (c *Client) Address() [2]uint64 { return [2]uint64{c[1], c[2]} }

func addressWords(a netip.Addr) (high, low uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// Choose returns the backend for a client, given a hash of it. Preconditions: there is a backend.
func (b *Balancer) Choose(hash uint64) int32 {
	if b.Service.Balance == BalanceHash {
		return b.rendezvous(hash)
	}
	return int32(within(b.until, hash%b.total))
}

// within returns the index of the first of growing sums that exceeds at. Preconditions: one does.
func within(until []uint64, at uint64) int {
	low, high := 0, len(until)-1
	for low < high {
		if middle := (low + high) / 2; until[middle] > at {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// Place returns a backend's address and port.
func (b *Balancer) Place(backend int32) netip.AddrPort {
	x := &b.Service.Backends[backend]
	return netip.AddrPortFrom(x.Address, x.Port)
}

// ChooseOther is Choose among the backends not in failed, by weight alone. It returns false if
// there is none.
func (b *Balancer) ChooseOther(hash uint64, failed []netip.AddrPort) (int32, bool) {
	places, until := make([]int32, 0, len(b.Service.Backends)), make([]uint64, 0, len(b.Service.Backends))
	total := uint64(0)
	for i := range b.Service.Backends {
		if slices.Contains(failed, b.Place(int32(i))) {
			continue
		}
		total += uint64(weight(b.Service.Backends[i]))
		places, until = append(places, int32(i)), append(until, total)
	}
	if total == 0 {
		return 0, false
	}
	return places[within(until, hash%total)], true
}

// rendezvous returns the backend with the highest weighted score (Schindelhauer and Schomaker,
// "Weighted distributed hash tables", 2005): each backend's share is exactly its weight, and a
// backend that comes or goes moves no client between others.
func (b *Balancer) rendezvous(hash uint64) int32 {
	best, at := math.Inf(-1), 0
	for i := range b.Service.Backends {
		u := (float64(mix(hash^b.seeds[i])>>11) + 0.5) / (1 << 53) // in (0, 1)
		if score := -float64(weight(b.Service.Backends[i])) / math.Log(u); score > best {
			best, at = score, i
		}
	}
	return int32(at)
}

// mix is the finalizer of MurmurHash3. It need not be secure, because the client's hash is keyed.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
