package ipam

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"culvert/integration/need"
)

// long reports whether the tests shall run in full, which takes minutes.
func long() bool { return os.Getenv("IPAM_LONG") != "" }

// model is the package again, as a list of prefixes that is searched address by address.
// Its addresses are the units of one universe: all blocks of one length in base.
type model struct {
	base  netip.Prefix
	unit  int // bits of a unit
	given []Entry
	last  map[netip.Prefix]netip.Addr
	pools []netip.Prefix
	taken []Taken
}

// at returns unit i of the universe as a block of the given length.
func (m *model) at(i, bits int) netip.Prefix {
	bytes := m.base.Addr().AsSlice()
	for b := m.base.Bits(); b < m.unit; b++ {
		if i>>(m.unit-1-b)&1 == 1 {
			bytes[b/8] |= 0x80 >> (b % 8)
		}
	}
	a, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(a, bits).Masked()
}

func (m *model) units() int { return 1 << (m.unit - m.base.Bits()) }

func (m *model) inUse(p netip.Prefix) bool {
	return slices.ContainsFunc(m.taken, func(t Taken) bool { return t.Prefix.Overlaps(p) }) ||
		slices.ContainsFunc(m.given, func(e Entry) bool { return e.Remapped.Overlaps(p) })
}

func (m *model) find(o Owner) *Entry {
	for i := range m.given {
		if m.given[i].Owner == o {
			return &m.given[i]
		}
	}
	return nil
}

func (m *model) network(o Owner, want netip.Prefix) (netip.Prefix, bool) {
	if e := m.find(o); e != nil {
		return e.Remapped, true
	}
	found, ok := m.choose(want)
	if ok {
		m.given = append(m.given, Entry{Owner: o, Remapped: found})
	}
	return found, ok
}

func (m *model) choose(want netip.Prefix) (netip.Prefix, bool) {
	if !m.inUse(want) && slices.ContainsFunc(m.pools, func(p netip.Prefix) bool {
		return p.Contains(want.Addr()) && p.Bits() <= want.Bits()
	}) {
		return want, true
	}
	occupied := make([]bool, m.units())
	for i := range occupied {
		occupied[i] = m.inUse(m.at(i, m.unit))
	}
	for _, pool := range m.pools {
		if p, ok := m.best(occupied, pool, want.Bits()); ok {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// best looks at every block of pool. Of those that are free it takes the one whose way down
// from the pool turns into the worse half as late as possible.
func (m *model) best(occupied []bool, pool netip.Prefix, bits int) (netip.Prefix, bool) {
	something := func(p netip.Prefix) bool {
		for i, used := range occupied {
			if used && p.Contains(m.at(i, m.unit).Addr()) {
				return true
			}
		}
		return false
	}
	worse := func(p netip.Prefix) bool { // than its other half
		other := p
		for i := range occupied {
			if q := m.at(i, p.Bits()); q != p && netip.PrefixFrom(q.Addr(), p.Bits()-1).Masked() == netip.PrefixFrom(
				p.Addr(), p.Bits()-1).Masked() {
				other = q
			}
		}
		if something(p) == something(other) {
			return other.Addr().Less(p.Addr())
		}
		return something(other)
	}
	var found netip.Prefix
	var turns []bool
	for i := range occupied {
		p := m.at(i, bits)
		if bits < pool.Bits() || !pool.Contains(p.Addr()) || p.Addr() != m.at(i, m.unit).Addr() || something(p) {
			continue
		}
		var t []bool
		for b := pool.Bits() + 1; b <= bits; b++ {
			t = append(t, worse(netip.PrefixFrom(p.Addr(), b).Masked()))
		}
		better := slices.CompareFunc(t, turns, func(a, b bool) int {
			switch {
			case a == b:
				return 0
			case b:
				return -1
			}
			return 1
		}) < 0
		if !found.IsValid() || better {
			found, turns = p, t
		}
	}
	return found, found.IsValid()
}

func (m *model) address(o Owner, network netip.Prefix) (netip.Addr, bool) {
	if e := m.find(o); e != nil {
		return e.Remapped.Addr(), true
	}
	var all []netip.Addr
	for a := network.Addr(); network.Contains(a); a = a.Next() {
		all = append(all, a)
	}
	start := 0
	if a, ok := m.last[network]; ok {
		start = slices.Index(all, a)
	}
	for i := range all {
		at := (start + 1 + i) % len(all)
		p := netip.PrefixFrom(all[at], all[at].BitLen())
		if at == 0 || all[at].Is4() && at == len(all)-1 ||
			slices.ContainsFunc(m.given, func(e Entry) bool { return e.Remapped.Overlaps(p) }) ||
			slices.ContainsFunc(m.taken, func(t Taken) bool {
				return t.Prefix.Bits() > network.Bits() &&
					t.Prefix.Overlaps(p)
			}) {
			continue
		}
		m.given = append(m.given, Entry{Owner: o, Network: network, Remapped: p})
		m.last[network] = all[at]
		return all[at], true
	}
	return netip.Addr{}, false
}

func (m *model) release(goes func(Entry) bool) bool {
	before := len(m.given)
	m.given = slices.DeleteFunc(m.given, goes)
	return len(m.given) < before
}

// episode is one universe with a ledger and a model of it.
type episode struct {
	model
	*rand.Rand
	ledger   *Ledger
	plan     *Plan
	networks []netip.Prefix // that addresses are given out of
}

func newEpisode(t *testing.T, r *rand.Rand) *episode {
	bytes := make([]byte, []int{4, 16}[r.IntN(2)])
	for i := range bytes {
		bytes[i] = byte(r.Uint32())
	}
	a, _ := netip.AddrFromSlice(bytes)
	if a.Is4In6() {
		a = netip.IPv6LinkLocalAllNodes()
	}
	unit := 1 + r.IntN(a.BitLen())
	if r.IntN(3) == 0 {
		unit = a.BitLen()
	}
	e := &episode{Rand: r, ledger: &Ledger{}}
	e.unit, e.last = unit, map[netip.Prefix]netip.Addr{}
	e.base = netip.PrefixFrom(a, max(0, unit-r.IntN(9))).Masked()
	for range 1 + r.IntN(3) {
		e.networks = append(e.networks, netip.PrefixFrom(e.at(r.IntN(e.units()), a.BitLen()).Addr(),
			a.BitLen()-r.IntN(7)).Masked())
	}
	e.configure(t)
	return e
}

// prefix draws one of any length, mostly in the universe.
func (e *episode) prefix() netip.Prefix {
	depth := e.unit - e.base.Bits() + 1
	p := e.at(e.IntN(e.units()), e.base.Bits()+max(e.IntN(depth), e.IntN(depth), e.IntN(depth)))
	if e.IntN(100) == 0 { // around it
		p = netip.PrefixFrom(p.Addr(), e.IntN(e.base.Bits()+1)).Masked()
	}
	return p
}

// configure makes new pools and new taken prefixes.
func (e *episode) configure(t *testing.T) {
	e.pools, e.taken = nil, nil
	for range e.IntN(4) {
		p := e.at(e.IntN(e.units()), e.base.Bits()+e.IntN(min(5, e.unit-e.base.Bits()+1)))
		if !slices.ContainsFunc(e.pools, p.Overlaps) {
			e.pools = append(e.pools, p)
		}
	}
	if len(e.pools) == 0 {
		e.pools = append(e.pools, e.base) // else the default pools, which are larger than the universe
	}
	for range e.IntN(5) {
		p := e.prefix()
		if e.IntN(4) == 0 {
			n := e.networks[e.IntN(len(e.networks))]
			p = netip.PrefixFrom(n.Addr(), n.Bits()+e.IntN(n.Addr().BitLen()-n.Bits()+1)).Masked()
		}
		e.taken = append(e.taken, Taken{Name: "taken", Prefix: p})
	}
	plan, err := NewPlan(slices.Clone(e.pools), e.taken)
	need.NoError(t, err)
	e.plan = plan
}

func (e *episode) owner(kind Kind, real string) Owner {
	return Owner{Peer: "peer" + strconv.Itoa(e.IntN(4)), Kind: kind, Real: real}
}

// step does one random operation to both and compares them.
func (e *episode) step(t *testing.T, count map[string]int) {
	switch n := e.IntN(100); {
	case n < 45:
		want := e.prefix()
		real := want
		if e.IntN(4) == 0 {
			real = netip.PrefixFrom(e.at(e.IntN(e.units()), e.unit).Addr(), want.Bits()).Masked()
		}
		o := e.owner([]Kind{Pod, External}[e.IntN(2)], real.String())
		remembered := e.find(o) != nil
		wanted, ok := e.network(o, want)
		got, err := e.ledger.Network(e.plan, o, want, time.Time{})
		if got != wanted || (err == nil) != ok || err != nil && !errors.Is(err, ErrExhausted) {
			t.Fatalf("%s wishes %s: %s, %v; the model %s, %v", o, want, got, err, wanted, ok)
		}
		switch {
		case !ok:
			count["no network"]++
		case remembered:
			count["network remembered"]++
		case got == want:
			count["network as wished"]++
		default:
			count["network moved"]++
		}
	case n < 70:
		o := e.owner(Service, strconv.Itoa(e.IntN(60)))
		network := e.networks[e.IntN(len(e.networks))]
		wanted, ok := e.address(o, network)
		got, err := e.ledger.Address(e.plan, o, network, time.Time{})
		if got != wanted || (err == nil) != ok || err != nil && !errors.Is(err, ErrExhausted) {
			t.Fatalf("%s of %s: %s, %v; the model %s, %v", o, network, got, err, wanted, ok)
		}
		count["address "+strconv.FormatBool(ok)]++
	case n < 90:
		o := e.owner(Pod, "10.0.0.0/8")
		if len(e.model.given) > 0 {
			o = e.model.given[e.IntN(len(e.model.given))].Owner
		}
		ok := e.release(func(x Entry) bool { return x.Owner == o })
		if err := e.ledger.Release(o); (err == nil) != ok || err != nil && !errors.Is(err, ErrNotGiven) {
			t.Fatalf("release %s: %v; the model %v", o, err, ok)
		}
		count["release "+strconv.FormatBool(ok)]++
	case n < 92:
		peer := e.owner(Pod, "").Peer
		ok := e.release(func(x Entry) bool { return x.Peer == peer })
		if err := e.ledger.ReleasePeer(peer); (err == nil) != ok {
			t.Fatalf("release peer %s: %v; the model %v", peer, err, ok)
		}
	case n < 96:
		e.configure(t)
	default: // a restart
		loaded, err := decode(string(e.ledger.encode()))
		if err != nil {
			t.Fatalf("%v\n%s", err, e.ledger.encode())
		}
		e.ledger = loaded
	}
	entries := e.ledger.Entries()
	if len(entries) != len(e.model.given) {
		t.Fatalf("%d entries; the model %d", len(entries), len(e.model.given))
	}
	for _, x := range entries {
		if m := e.find(x.Owner); m == nil || m.Remapped != x.Remapped || m.Network != x.Network {
			t.Fatalf("entry %+v; the model %+v", x, m)
		}
	}
}

// TestModel: the package and a model that searches address by address agree, in universes
// of up to 256 units of every length, IPv4 and IPv6, whose pools fill up and whose
// configuration changes.
func TestModel(t *testing.T) {
	operations := 20_000
	if long() {
		operations = 1_000_000
	}
	seed := rand.Uint64()
	if s := os.Getenv("IPAM_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("%d operations, IPAM_SEED=%d", operations, seed)
	r := rand.New(rand.NewPCG(seed, 0))
	count := map[string]int{}
	lengths := map[[2]int]bool{}
	var e *episode
	for i := range operations {
		if i%200 == 0 {
			e = newEpisode(t, r)
			lengths[[2]int{e.base.Addr().BitLen(), e.unit}] = true
		}
		e.step(t, count)
	}
	t.Logf("%v, %d lengths of units", count, len(lengths))
	for _, what := range []string{"no network", "network remembered", "network as wished", "network moved",
		"address true", "address false", "release true", "release false"} {
		if count[what] == 0 {
			t.Errorf("no operation was %q", what)
		}
	}
}
