package nat

import (
	"time"

	"culvert/nat/rules"
)

const (
	// defaultAffinityTimeout is Kubernetes' default for
	// service.spec.sessionAffinityConfig.clientIP.timeoutSeconds.
	defaultAffinityTimeout = 3 * time.Hour
	// affinityRatio is how many connections the table may hold for each client that is remembered.
	affinityRatio = 2
	// affinityBudget is how many clients, and how many services, are checked for expiry at a time.
	affinityBudget = 64
)

// An affinityTable remembers the backends of the clients of all services with affinity. It is
// independent of the configuration: services are known by name, port and protocol, backends by
// address and port. It grows with use, and each service has a share of it. It belongs to an Engine,
// whose mutex guards it.
type affinityTable struct {
	directory directory // of entries, as references of direction original
	lists     map[serviceIdentity]*clientList
	services  map[uint32]serviceIdentity // of lists, by clientList.id
	named     uint32                     // lists that were ever made
	made      []*[chunkEntries]affinity
	high      uint32 // entries that were ever used, entry 0 included
	spare     uint32
	used      int
	feeds     []*Feed       // nil = nobody
	fresh     *freshEntries // of a Mirror's copy; nil = there is none
}

type serviceIdentity struct {
	name     string
	port     uint16
	protocol uint8
}

// A clientList holds a service's clients, the least recently seen first.
type clientList struct {
	id          uint32
	first, last uint32
	length      int
}

type affinityKey struct {
	list   uint32
	client [2]uint64 // the address
}

// An affinity is one client's. It has no pointers for the garbage collector to follow.
type affinity struct {
	key            affinityKey
	backend        uint64 // seed
	expires        Time
	previous, next uint32 // in the service's list; next also links free entries
}

func (t *affinityTable) init() {
	t.directory.init()
	t.lists, t.services, t.high = map[serviceIdentity]*clientList{}, map[uint32]serviceIdentity{}, 1
}

func (t *affinityTable) at(number uint32) *affinity {
	return &t.made[number/chunkEntries][number%chunkEntries]
}

// identityOf names a service. All frontends of a service share its clients, as with kube-proxy.
func identityOf(s *rules.Service) serviceIdentity {
	if s.Frontend != nil {
		return serviceIdentity{name: s.Name, protocol: s.Protocol}
	}
	return serviceIdentity{s.Name, s.Port, s.Protocol}
}

// backend returns the index of the backend for a new connection of a client. It is a function of
// the key, the service, the client and, with affinity, the client's earlier connections, so a
// packet in mid-stream finds the backend that its connection had. Preconditions: there is a
// backend.
func (e *Engine) backend(b *rules.Balancer, client *rules.Client, now Time) int32 {
	if b.Service.Affinity == rules.AffinityClientIP {
		if n, ok := e.backendOf(b, client, now); ok {
			return n
		}
	}
	return b.Choose(e.hashKey.Sum(client[:]...))
}

// list returns the clients of a service.
func (t *affinityTable) list(identity serviceIdentity) *clientList {
	l := t.lists[identity]
	if l == nil {
		t.named++
		l = &clientList{id: t.named}
		t.lists[identity], t.services[l.id] = l, identity
	}
	return l
}

// hash is keyed by the process, so no client can choose colliding addresses.
func (k *affinityKey) hash(s *shares) uint32 {
	return uint32(s.identify(k.client[0], k.client[1], uint64(k.list)) >> 32)
}

// find returns the entry of a client with this hash, 0 if there is none.
func (t *affinityTable) find(k *affinityKey, hash uint32) uint32 {
	s := t.directory.segment(hash)
	for i := hash % segmentSlots; s[i] != 0; i = (i + 1) % segmentSlots {
		if uint32(s[i]>>32) != hash {
			continue
		}
		if number := reference(s[i]).number(); t.at(number).key == *k {
			return number
		}
	}
	return 0
}

// network returns the identity of the /64 of an IPv6 client of a service. An IPv4 client has none:
// only its address counts.
func (k *affinityKey) network(s *shares) (identity uint64, ok bool) {
	if k.client[0] == 0 {
		return 0, false
	}
	return s.identify(k.client[0], 0, 1<<32|uint64(k.list)) ^ uint64(shareAffinities)<<32, true
}

// neighbours returns how many clients of a service are in the /64 of an IPv6 client.
func (k *affinityKey) neighbours(s *shares) int {
	if network, ok := k.network(s); ok {
		return s.held(network)
	}
	return 0
}

// backendOf returns the backend that a client of a service had, if it is remembered and still
// there.
func (e *Engine) backendOf(b *rules.Balancer, client *rules.Client, now Time) (int32, bool) {
	t := &e.clients
	l := t.lists[identityOf(&b.Service)]
	if l == nil {
		return 0, false
	}
	key := affinityKey{l.id, client.Address()}
	number := t.find(&key, key.hash(&e.table.shares))
	if number == 0 || t.at(number).expires <= now {
		return 0, false
	}
	return b.Find(t.at(number).backend)
}

// remember records the backend of a service's client.
func (e *Engine) remember(b *rules.Balancer, client *rules.Client, backend int32, now Time) {
	if b.Service.Affinity != rules.AffinityClientIP {
		return
	}
	t := &e.clients
	l := t.list(identityOf(&b.Service))
	timeout := b.Service.AffinityTimeout
	if timeout == 0 {
		timeout = defaultAffinityTimeout
	}
	key, seed := affinityKey{l.id, client.Address()}, b.Seed(backend)
	hash := key.hash(&e.table.shares)
	if number := t.find(&key, hash); number != 0 {
		a := t.at(number)
		if a.backend == seed && a.expires > now {
			t.unlink(l, a)
			t.push(l, a, number)
			a.expires = now.Add(timeout)
			t.changed(number)
			return
		}
		e.forget(l, number)
	}
	e.keep(l, &key, hash, seed, now.Add(timeout), now)
}

// keep makes an entry for a client that has none. It returns false if there is no room for it.
func (e *Engine) keep(l *clientList, key *affinityKey, hash uint32, backend uint64, expires, now Time) bool {
	if !e.remembers(l, key, now) {
		return false
	}
	t := &e.clients
	number := t.take()
	if !t.directory.insert(hash, newReference(number, original)) { // so many equal hashes are no accident
		t.giveBack(number)
		e.stats.ClientsRefused++
		return false
	}
	a := t.at(number)
	*a = affinity{key: *key, backend: backend, expires: expires}
	t.push(l, a, number)
	t.changed(number)
	t.fresh.add(number)
	if network, ok := key.network(&e.table.shares); ok {
		e.table.shares.add(network)
	}
	return true
}

// remembers makes room for one more client and reports whether it may be remembered. A service at
// its share forgets its least recently seen client; an IPv6 /64 at its share of the service gets no
// more entries.
func (e *Engine) remembers(l *clientList, key *affinityKey, now Time) bool {
	t, s := &e.clients, &e.table.shares
	e.forgetSome(l, now, 2)
	neighbours := key.neighbours(s)
	if neighbours+l.length+t.used < e.snapshot.maxEntries/affinityRatio { // shortcut: see shares.full
		return true
	}
	if l.first == 0 || max(1, t.at(l.first).key.neighbours(s)) < neighbours {
		e.stats.ClientsRefused++
		return false
	}
	e.forget(l, l.first)
	e.stats.ClientsReplaced++
	return true
}

// forgetSome forgets up to budget expired clients.
func (e *Engine) forgetSome(l *clientList, now Time, budget int) {
	for range budget {
		if l.first == 0 || e.clients.at(l.first).expires > now {
			return
		}
		e.forget(l, l.first)
	}
}

// expire calls forgetSome for a few services; map iteration picks them.
func (t *affinityTable) expire(e *Engine, now Time) {
	budget := affinityBudget
	for identity, l := range t.lists {
		if e.forgetSome(l, now, affinityBudget); l.first == 0 {
			delete(t.lists, identity)
			delete(t.services, l.id)
		}
		if budget--; budget == 0 {
			return
		}
	}
}

func (e *Engine) forget(l *clientList, number uint32) {
	t := &e.clients
	a := t.at(number)
	t.ended(a, number)
	t.fresh.remove(number)
	s := &e.table.shares
	if network, ok := a.key.network(s); ok {
		s.drop(network)
	}
	t.directory.remove(a.key.hash(s), newReference(number, original))
	t.unlink(l, a)
	t.giveBack(number)
}

// take returns a free entry.
func (t *affinityTable) take() uint32 {
	t.used++
	number := t.spare
	if number != 0 {
		t.spare = t.at(number).next
		return number
	}
	number = t.high
	if int(number/chunkEntries) == len(t.made) {
		t.made = append(t.made, new([chunkEntries]affinity))
		for _, f := range t.feeds {
			f.clients.grow()
		}
	}
	t.high++
	return number
}

// giveBack frees an entry.
func (t *affinityTable) giveBack(number uint32) {
	*t.at(number) = affinity{next: t.spare}
	t.spare = number
	t.used--
}

func (t *affinityTable) push(l *clientList, a *affinity, number uint32) {
	a.previous, a.next = l.last, 0
	if l.last != 0 {
		t.at(l.last).next = number
	} else {
		l.first = number
	}
	l.last = number
	l.length++
}

func (t *affinityTable) unlink(l *clientList, a *affinity) {
	if a.previous != 0 {
		t.at(a.previous).next = a.next
	} else {
		l.first = a.next
	}
	if a.next != 0 {
		t.at(a.next).previous = a.previous
	} else {
		l.last = a.previous
	}
	l.length--
}
