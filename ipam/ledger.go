package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// The errors that errors.Is finds in this package's errors. Each error's text names the cause and
// the remedy.
var (
	ErrExhausted = errors.New("no space")           // no pool or network has room
	ErrConflict  = errors.New("overlap")            // an earlier choice overlaps the configuration
	ErrNotGiven  = errors.New("never given")        // the file does not contain the entry to release
	ErrFile      = errors.New("memory of remaps")   // the file cannot be read, understood or written
	ErrRunning   = errors.New("gateway is running") // a running gateway uses the entry to release
)

// Limits of one Ledger.
const (
	maxGiven = 65536 // entries
	maxName  = 253   // bytes of a peer's or a service's name
)

// Kind is the kind of an owner.
type Kind string

// A Pod or External owner is a remote CIDR and gets a CIDR. A Host owner (an entry of
// nat.addresses) or a Service owner gets one address of a local external CIDR; a service with
// backends of both families is both a Service and a Service6.
const (
	Pod      Kind = "pod"
	External Kind = "external"
	Host     Kind = "address"
	Service  Kind = "service"
	Service6 Kind = "service-ipv6"
)

// OneAddress reports whether an owner of this kind gets one address.
func (k Kind) OneAddress() bool { return k == Host || k == Service || k == Service6 }

// Owner identifies who something is given to. It is comparable, and the zero Owner is nobody.
type Owner struct {
	Peer string // the remote cluster's ID
	Kind Kind
	Real string // a CIDR (Pod, External), an address (Host) or a name (Service, Service6)
}

func (o Owner) String() string { return fmt.Sprintf("%s %s %s", o.Peer, o.Kind, o.Real) }

// Check returns the faults of o.
func (o Owner) Check() error {
	if err := checkName("peer", o.Peer); err != nil {
		return err
	}
	switch o.Kind {
	case Pod, External:
		p, err := netip.ParsePrefix(o.Real)
		if err != nil || !canonical(p) || string(p.AppendTo(make([]byte, 0, 64))) != o.Real {
			return fmt.Errorf("real: %q is no CIDR such as 10.0.0.0/16", o.Real)
		}
	case Host:
		if a, err := netip.ParseAddr(o.Real); err != nil || a.Zone() != "" || a.Is4In6() || a.String() != o.Real {
			return fmt.Errorf("real: %q is no address such as 192.0.2.10", o.Real)
		}
	case Service, Service6:
		return checkName("real", o.Real)
	default:
		return fmt.Errorf("kind: %q is not one of pod, external, address, service, service-ipv6", o.Kind)
	}
	return nil
}

// checkName requires a name as used for clusters, nodes and services.
func checkName(field, s string) error {
	digitOrLetter := func(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }
	good := s != "" && len(s) <= maxName && digitOrLetter(s[0])
	for i := range len(s) {
		good = good && (digitOrLetter(s[i]) || s[i] == '.' || s[i] == '-' || s[i] == '_')
	}
	if !good {
		return fmt.Errorf("%s: %.60q is no name of 1 to %d letters, digits, dots, dashes and underscores",
			field, s, maxName)
	}
	return nil
}

// Entry is something given to an owner.
type Entry struct {
	Owner
	Network  netip.Prefix // for an address, the CIDR it was taken from; else invalid
	Remapped netip.Prefix // a single address is a prefix of full length
	Since    time.Time    // when, UTC, in whole seconds

	at int // while a file is read: the entry's offset
}

// RemappedText is Remapped as written in a configuration.
func (e Entry) RemappedText() string {
	if e.Network.IsValid() {
		return e.Remapped.Addr().String()
	}
	return e.Remapped.String()
}

// check returns what is wrong with e by itself, with the field.
func (e *Entry) check() error {
	if err := e.Owner.Check(); err != nil {
		return err
	}
	if !canonical(e.Remapped) {
		return fmt.Errorf("remapped: %s is no CIDR without host bits", e.Remapped)
	}
	if e.Kind == Pod || e.Kind == External {
		if p := netip.MustParsePrefix(e.Real); p.Bits() != e.Remapped.Bits() ||
			p.Addr().BitLen() != e.Remapped.Addr().BitLen() {
			return fmt.Errorf("remapped: %s and %s differ in length; a remap is 1:1", e.Remapped, p)
		}
		if e.Network.IsValid() {
			return fmt.Errorf("network: only an address or a service has one")
		}
		return nil
	}
	switch a := e.Remapped.Addr(); {
	case !canonical(e.Network):
		return fmt.Errorf("network: missing or with host bits")
	case !e.Remapped.IsSingleIP():
		return fmt.Errorf("remapped: %s is not one address", e.Remapped)
	case !e.Network.Contains(a):
		return fmt.Errorf("remapped: %s is not in %s", a, e.Network)
	case a == e.Network.Addr() || a.Is4() && a == last(e.Network):
		return fmt.Errorf("remapped: %s is the first or the broadcast address of %s", a, e.Network)
	}
	return nil
}

// Ledger lists what was given to which owner. The zero Ledger is empty. Store makes it permanent.
type Ledger struct {
	given   []Entry                     // in order of Remapped; no two overlap
	last    map[netip.Prefix]netip.Addr // by network, the last address given
	release string                      // the command that releases an owner, which follows it
	changed bool
}

// Entries returns all entries, in order of Remapped. The caller owns the slice.
func (l *Ledger) Entries() []Entry { return slices.Clone(l.given) }

// Find returns the entry of o.
func (l *Ledger) Find(o Owner) (Entry, bool) {
	for i := range l.given {
		if l.given[i].Owner == o {
			return l.given[i], true
		}
	}
	return Entry{}, false
}

// Network returns the CIDR under which this cluster sees o, whose kind is Pod or External. An owner
// without one gets want, which is as long as o.Real, or a free block of that length. now is only
// recorded. After an error, such as ErrExhausted, nothing has changed.
func (l *Ledger) Network(p *Plan, o Owner, want netip.Prefix, now time.Time) (netip.Prefix, error) {
	if e, ok := l.Find(o); ok {
		return e.Remapped, nil
	}
	e := Entry{Owner: o, Remapped: want}
	if err := e.check(); err != nil {
		return netip.Prefix{}, fmt.Errorf("ipam: %s: %w", o, err)
	}
	if e.Network.IsValid() || o.Kind != Pod && o.Kind != External {
		return netip.Prefix{}, fmt.Errorf("ipam: %s: kind: want pod or external", o)
	}
	used := make([]netip.Prefix, 0, len(p.taken)+len(l.given))
	for _, t := range p.taken {
		used = append(used, t.Prefix)
	}
	for i := range l.given {
		used = append(used, l.given[i].Remapped)
	}
	spans := newSpans(used)
	found, ok := p.choose(spans, want)
	if !ok {
		return netip.Prefix{}, p.exhausted(spans, l.given, o, want)
	}
	e.Remapped = found
	return found, l.insert(e, now)
}

// Address returns the address in network, a local external CIDR, that stands for o, whose kind
// satisfies OneAddress. An owner keeps its address, whatever its network; a new one gets the next
// that is neither in an entry nor Taken within network. now is only recorded. After an error, such
// as ErrExhausted, nothing has changed.
func (l *Ledger) Address(p *Plan, o Owner, network netip.Prefix, now time.Time) (netip.Addr, error) {
	if e, ok := l.Find(o); ok {
		return e.Remapped.Addr(), nil
	}
	if err := o.Check(); err != nil {
		return netip.Addr{}, fmt.Errorf("ipam: %s: %w", o, err)
	}
	if !o.Kind.OneAddress() || !canonical(network) {
		return netip.Addr{}, fmt.Errorf("ipam: %s: want kind address or service, and a network; got %s", o, network)
	}
	first, end := network.Addr(), last(network)
	used := []netip.Prefix{single(first)}
	if network.Addr().Is4() {
		used = append(used, single(end))
	}
	for i := range l.given {
		if l.given[i].Remapped.Overlaps(network) {
			used = append(used, l.given[i].Remapped)
		}
	}
	inside := &Plan{}
	for _, t := range p.taken {
		if t.Prefix.Bits() > network.Bits() && t.Prefix.Overlaps(network) {
			used = append(used, t.Prefix)
			inside.taken = append(inside.taken, t)
		}
	}
	from, ok := l.last[network]
	if !ok {
		from = first
	}
	a, ok := newSpans(used).next(network, from)
	if !ok {
		return netip.Addr{},
			fmt.Errorf("%w: %s needs an address of %s, which has none free; %s; release what is not used",
				ErrExhausted, o, network, inside.most(l.given, []netip.Prefix{network}))
	}
	if err := l.insert(Entry{Owner: o, Network: network, Remapped: single(a)}, now); err != nil {
		return netip.Addr{}, err
	}
	if l.last == nil {
		l.last = make(map[netip.Prefix]netip.Addr)
	}
	l.last[network] = a
	return a, nil
}

// next returns the first address of network after from, wrapping around, that is not in s.
func (s spans) next(network netip.Prefix, from netip.Addr) (netip.Addr, bool) {
	s = s.touching(network)
	end := last(network)
	for range 2 { // after from, then from the start
		for a := from; a != end; {
			a = a.Next()
			in := s.touching(single(a))
			if len(in) == 0 {
				return a, true
			}
			a = last(in[0])
			if !network.Contains(a) {
				return netip.Addr{}, false
			}
		}
		from = network.Addr() // never given
	}
	return netip.Addr{}, false
}

func (l *Ledger) insert(e Entry, now time.Time) error {
	if len(l.given) >= maxGiven {
		return fmt.Errorf("%w: %d owners have something already; release what is not used", ErrExhausted, maxGiven)
	}
	e.Since = now.UTC().Truncate(time.Second)
	i, _ := slices.BinarySearchFunc(l.given, e.Remapped, func(e Entry, p netip.Prefix) int {
		return order(e.Remapped, p)
	})
	l.given = slices.Insert(l.given, i, e)
	l.changed = true
	return nil
}

// Release releases what was given to o. The error is ErrNotGiven if there is nothing.
func (l *Ledger) Release(o Owner) error {
	if !l.drop(func(e Entry) bool { return e.Owner == o }) {
		return fmt.Errorf("%w: %s; culvert ipam list shows what was", ErrNotGiven, o)
	}
	return nil
}

// ReleasePeer releases everything given for one peer. The error is ErrNotGiven if there is nothing.
func (l *Ledger) ReleasePeer(peer string) error {
	if !l.drop(func(e Entry) bool { return e.Peer == peer }) {
		return fmt.Errorf("%w: anything to peer %s; culvert ipam list shows what was", ErrNotGiven, peer)
	}
	return nil
}

func (l *Ledger) drop(goes func(Entry) bool) bool {
	before := len(l.given)
	l.given = slices.DeleteFunc(l.given, goes)
	l.changed = l.changed || len(l.given) < before
	return len(l.given) < before
}

// Releasing returns the command that releases what was given to o, for messages.
func (l *Ledger) Releasing(o Owner) string { return l.release + " " + o.String() }

// Conflicts compares the entries with p. The error, ErrConflict, joins all overlaps, each with both
// names and the command that resolves it. Overlaps with connected networks are returned as
// warnings.
func (l *Ledger) Conflicts(p *Plan) (warnings []string, err error) {
	remaps := make(spans, len(l.given))
	for i := range l.given {
		remaps[i] = l.given[i].Remapped
	}
	var errs []error
	for _, t := range p.taken {
		hit := remaps.touching(t.Prefix)
		if len(hit) == 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(remaps, hit[0], order)
		for _, e := range l.given[i : i+len(hit)] {
			inside := !e.Network.IsValid() || t.Prefix.Bits() > e.Network.Bits()
			switch {
			case !inside || t.Owner != (Owner{}) && t.Owner == e.Owner:
			case t.Connected && e.Network.IsValid():
			case t.Connected:
				warnings = append(warnings, fmt.Sprintf("%s (%s) overlaps %s, the remap of %s, which stays", t.Name,
					t.Prefix, e.Remapped, e.Owner))
			default:
				errs = append(errs, fmt.Errorf(
					"%s: %w of %s with %s, the remap of %s; change it, or give another remap: %s",
					t.Name, ErrConflict, t.Prefix, e.RemappedText(), e.Owner, l.Releasing(e.Owner)))
			}
		}
	}
	return warnings, errors.Join(errs...)
}
