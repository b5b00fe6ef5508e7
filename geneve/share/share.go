// Package share divides a resource of a fixed size among its users, so that none of them can take
// it from the others. There are two rules:
//
//   - Of the free, for what is not taken back, such as connections: a user may hold as much as is
//     still free. One user alone gets a half, n users that take all they can get an (n+1)th part
//     each, and as much stays free for the next one.
//   - Equal parts, for what can be taken back, such as waiting packets: a user may hold everything
//     while nobody else needs it. In a full pool, a user that would still have no more than an
//     equal part takes from the user that holds most.
//
// "Of the free" is the dynamic threshold of Choudhury and Hahne ("Dynamic queue length thresholds
// for shared-memory packet switches", 1998). Package nat applies the same rule to connections,
// ports and fragments, with tables of its own, because it asks for each packet.
package share

import "net/netip"

// A Pool counts what each user of a resource holds. It is not safe for concurrent use.
type Pool[K comparable] struct {
	size, used int
	held       map[K]int
}

// New returns a Pool of size units, all of them free.
func New[K comparable](size int) *Pool[K] { return &Pool[K]{size: size, held: make(map[K]int)} }

// Size returns how many units there are.
func (p *Pool[K]) Size() int { return p.size }

// Used returns how many units are in use.
func (p *Pool[K]) Used() int { return p.used }

// Free returns how many units nobody holds.
func (p *Pool[K]) Free() int { return p.size - p.used }

// Held returns how many units a user or a group holds.
func (p *Pool[K]) Held(user K) int { return p.held[user] }

// OfFree reports whether a user may take one more unit of what is free. A user of groups is listed
// after its groups, the widest one first: it may hold as much as its group may still take.
func (p *Pool[K]) OfFree(users ...K) bool {
	free := p.Free()
	for _, user := range users {
		free -= p.held[user]
	}
	return p.Free() > 0 && free > 0
}

// EqualPart reports whether a user may take n more units of a resource that is shared in equal
// parts. If the units are not free, victim is the user that holds most, and must give some back
// first.
func (p *Pool[K]) EqualPart(user K, n int) (victim K, free, ok bool) {
	if p.used+n <= p.size {
		return victim, true, true
	}
	users := len(p.held)
	if p.held[user] == 0 {
		users++
	}
	if p.held[user]+n > p.size/users {
		return victim, false, false
	}
	most := 0
	for k, held := range p.held {
		if held > most {
			victim, most = k, held
		}
	}
	return victim, false, true
}

// Take gives n units to a user, and counts them for each of its groups.
func (p *Pool[K]) Take(n int, users ...K) {
	p.used += n
	for _, user := range users {
		p.held[user] += n
	}
}

// Give takes n units back, which the user holds.
func (p *Pool[K]) Give(n int, users ...K) {
	p.used -= n
	for _, user := range users {
		if p.held[user] -= n; p.held[user] == 0 {
			delete(p.held, user)
		}
	}
}

// Source returns the prefix that counts as one user among senders: an IPv4 address, or the /64 of
// an IPv6 address, because one host has as many addresses in it as it likes. The result for the
// zero Addr is the zero Prefix.
func Source(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // fails only for more bits than there are
	return p
}
