package rules

import (
	"iter"
	"net/netip"
	"strings"
)

// Pair holds an address of each family, either of which may be the zero Addr: one thing as seen by
// IPv4 and by IPv6.
type Pair struct{ V4, V6 netip.Addr }

// PairOf returns the Pair of addresses, at most one of each family; it ignores the zero Addr.
func PairOf(addresses ...netip.Addr) (p Pair) {
	for _, a := range addresses {
		p.Set(a)
	}
	return p
}

// Set makes a the address of its family; it ignores the zero Addr.
func (p *Pair) Set(a netip.Addr) {
	switch {
	case a.Is4():
		p.V4 = a
	case a.IsValid():
		p.V6 = a
	}
}

// Of returns the address of one family, the zero Addr if there is none.
func (p Pair) Of(v6 bool) netip.Addr {
	if v6 {
		return p.V6
	}
	return p.V4
}

// Has reports whether a is one of the two.
func (p Pair) Has(a netip.Addr) bool { return a.IsValid() && (a == p.V4 || a == p.V6) }

// First returns the IPv4 address, or else the IPv6 address.
func (p Pair) First() netip.Addr {
	if p.V4.IsValid() {
		return p.V4
	}
	return p.V6
}

// IsValid reports whether there is an address of either family.
func (p Pair) IsValid() bool { return p.V4.IsValid() || p.V6.IsValid() }

// All returns the valid addresses, IPv4 first.
func (p Pair) All() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if p.V4.IsValid() && !yield(p.V4) {
			return
		}
		if p.V6.IsValid() {
			yield(p.V6)
		}
	}
}

// String returns the valid addresses, separated by a comma.
func (p Pair) String() string {
	switch {
	case !p.V6.IsValid():
		return p.V4.String()
	case !p.V4.IsValid():
		return p.V6.String()
	}
	return p.V4.String() + ", " + p.V6.String()
}

// MarshalText writes what String returns.
func (p Pair) MarshalText() ([]byte, error) {
	if !p.IsValid() {
		return nil, nil
	}
	return []byte(p.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (p *Pair) UnmarshalText(text []byte) error {
	*p = Pair{}
	if len(text) == 0 {
		return nil
	}
	var all []netip.Addr
	for s := range strings.SplitSeq(string(text), ", ") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return err
		}
		all = append(all, a)
	}
	*p = PairOf(all...)
	return nil
}
