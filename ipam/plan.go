package ipam

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// maxPools is the maximum number of pools in a Plan.
const maxPools = 64

// DefaultPools returns Liqo's pools, which are IPv4 only.
func DefaultPools() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("172.16.0.0/12"),
	}
}

// defaultPool6 is the pool for IPv6 if pools has no IPv6 pool: unique local addresses (RFC 4193),
// "cul" in ASCII behind fd. It holds 65,536 /48 networks, one for each cluster's pods. A site that
// draws its own prefix at random, as Section 3.2.2 requires, collides with it once in 16 million
// times, unlike with fd00::/16, which many use without drawing.
var defaultPool6 = netip.MustParsePrefix("fd63:756c::/32")

// Taken is a prefix that is in use, by whatever the configuration calls Name.
type Taken struct {
	Name   string
	Prefix netip.Prefix

	// Owner is set if Prefix is the configuration's own choice of how to see a remote CIDR: an
	// earlier choice for that owner is then no conflict.
	Owner Owner

	// Connected marks a network of this machine's interfaces. New choices avoid it; earlier ones
	// stay.
	Connected bool
}

// Plan is the address part of one configuration. It is immutable.
type Plan struct {
	pools []netip.Prefix
	taken []Taken
	stay6 bool // an IPv6 CIDR that overlaps nothing stays, in a pool or not
}

// NewPlan checks pools, searched in their order, and keeps taken, which the caller must not
// change afterwards. Without an IPv4 pool, IPv4 uses DefaultPools. Without an IPv6 pool, IPv6 CIDRs
// that overlap nothing stay, and the others move to fd63:756c::/32. The error names the pool as the
// configuration does: ipam.pools[1].
func NewPlan(pools []netip.Prefix, taken []Taken) (*Plan, error) {
	if len(pools) > maxPools {
		return nil, fmt.Errorf("ipam.pools: %d pools; at most %d, so give larger ones", len(pools), maxPools)
	}
	for i, p := range pools {
		if !canonical(p) {
			return nil, fmt.Errorf("ipam.pools[%d]: %s is no prefix without host bits; write %s", i, p, p.Masked())
		}
		for j, q := range pools[:i] {
			if p.Overlaps(q) {
				return nil, fmt.Errorf("ipam.pools[%d]: %s overlaps ipam.pools[%d] (%s); keep one of them", i, p, j, q)
			}
		}
	}
	for _, t := range taken {
		if !canonical(t.Prefix) {
			return nil, fmt.Errorf("%s: %s is no prefix without host bits", t.Name, t.Prefix)
		}
	}
	if !slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		pools = append(slices.Clone(pools), DefaultPools()...)
	}
	without6 := !slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if without6 {
		pools = append(slices.Clone(pools), defaultPool6)
	}
	return &Plan{pools, taken, without6}, nil
}

// poolsOf returns the pools of want's family.
func (p *Plan) poolsOf(want netip.Prefix) []netip.Prefix {
	var pools []netip.Prefix
	for _, pool := range p.pools {
		if pool.Addr().Is4() == want.Addr().Is4() {
			pools = append(pools, pool)
		}
	}
	return pools
}

// choose finds a prefix of want's length that overlaps nothing in used.
func (p *Plan) choose(used spans, want netip.Prefix) (netip.Prefix, bool) {
	pools := p.poolsOf(want)
	in := func(pool netip.Prefix) bool { return pool.Bits() <= want.Bits() && pool.Overlaps(want) }
	if len(used.touching(want)) == 0 && (want.Addr().Is6() && p.stay6 || slices.ContainsFunc(pools, in)) {
		return want, true
	}
	for _, pool := range pools {
		if found, ok := used.free(pool, want.Bits()); ok {
			return found, true
		}
	}
	return netip.Prefix{}, false
}

// exhausted explains why choose found nothing for o.
func (p *Plan) exhausted(used spans, given []Entry, o Owner, want netip.Prefix) error {
	pools := p.poolsOf(want)
	free, found := 0, false
	for _, pool := range pools {
		if bits, ok := used.largest(pool); ok && (!found || bits < free) {
			free, found = bits, true
		}
	}
	largest := "nothing is free"
	if found {
		largest = fmt.Sprintf("the largest free block is a /%d", free)
	}
	return fmt.Errorf("%w: %s needs a free /%d in %s; %s; %s; add a pool to ipam.pools, or release what is not used",
		ErrExhausted, o, want.Bits(), list(pools), largest, p.most(given, pools))
}

// most names the owner that holds most of pools, if anything is held.
func (p *Plan) most(given []Entry, pools []netip.Prefix) string {
	size := func(p netip.Prefix) float64 { return math.Ldexp(1, -p.Bits()) }
	held := map[string]float64{}
	total := 0.0
	for _, pool := range pools {
		total += size(pool)
		hold := func(name string, q netip.Prefix) {
			if q.Overlaps(pool) {
				held[name] += min(size(q), size(pool))
			}
		}
		for _, t := range p.taken {
			hold(fmt.Sprintf("%s (%s)", t.Name, t.Prefix), t.Prefix)
		}
		for _, e := range given {
			hold("peer "+e.Peer, e.Remapped)
		}
	}
	holder := ""
	for name, n := range held {
		if holder == "" || n > held[holder] || n == held[holder] && name < holder {
			holder = name
		}
	}
	if holder == "" {
		return "nothing in it is in use"
	}
	return fmt.Sprintf("%s holds most, %.1f %%", holder, min(100, 100*held[holder]/total))
}

// list names the first few of pools.
func list(pools []netip.Prefix) string {
	const shown = 4
	var b strings.Builder
	for i, p := range pools {
		if i == shown {
			fmt.Fprintf(&b, " and %d more", len(pools)-shown)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}
