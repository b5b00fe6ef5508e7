package rules

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// An Endpoint is what others may open connections to: a protocol and port of an address, or of all
// addresses of a prefix.
type Endpoint struct {
	Prefix   netip.Prefix
	Protocol uint8  // IANA protocol number
	Port     uint16 // 0: all
}

func (x *Endpoint) compare(o *Endpoint) int {
	if c := x.Prefix.Compare(o.Prefix); c != 0 {
		return c
	}
	return int(x.door()) - int(o.door())
}

func (x *Endpoint) door() door { return doorOf(x.Protocol, x.Port) }

// A door is the protocol and the port of an Endpoint.
type door uint32

func doorOf(protocol uint8, port uint16) door { return door(protocol)<<16 | door(port) }

// An admission is a set of Endpoints. It is immutable.
type admission struct {
	doors *bart.Table[[]door] // sorted; nil: none
}

func newAdmission(all []Endpoint) *admission {
	all = slices.Clone(all)
	slices.SortFunc(all, func(x, o Endpoint) int { return x.compare(&o) })
	t := editOf[[]door](nil, len(all))
	for i := 0; i < len(all); {
		at, doors := all[i].Prefix, []door(nil)
		for ; i < len(all) && all[i].Prefix == at; i++ {
			doors = append(doors, all[i].door())
		}
		t.put(at, doors)
	}
	return &admission{t.end()}
}

// with returns a without some Endpoints, and with others.
func (a *admission) with(withdrawn, added []Endpoint) *admission {
	t := editOf(a.doors, len(withdrawn)+len(added))
	for _, x := range withdrawn {
		doors, _ := t.t.Get(x.Prefix)
		i, ok := slices.BinarySearch(doors, x.door())
		switch {
		case !ok:
		case len(doors) == 1:
			t.remove(x.Prefix)
		default:
			t.put(x.Prefix, slices.Concat(doors[:i], doors[i+1:]))
		}
	}
	for _, x := range added {
		doors, _ := t.t.Get(x.Prefix)
		if i, ok := slices.BinarySearch(doors, x.door()); !ok {
			t.put(x.Prefix, slices.Concat(doors[:i], []door{x.door()}, doors[i:]))
		}
	}
	return &admission{t.end()}
}

// has reports whether one of the Endpoints has this address, protocol and port.
func (a *admission) has(to netip.Addr, protocol uint8, port uint16) bool {
	if a.doors == nil {
		return false
	}
	for bits := to.BitLen(); bits >= 0; bits-- {
		p, doors, ok := a.doors.LookupPrefixLPM(netip.PrefixFrom(to, bits).Masked())
		if !ok {
			return false
		}
		if _, ok = slices.BinarySearch(doors, doorOf(protocol, port)); !ok {
			_, ok = slices.BinarySearch(doors, doorOf(protocol, 0))
		}
		if ok {
			return true
		}
		bits = p.Bits()
	}
	return false
}

// Restricts reports whether others may open only the connections for which LetsIn is true.
func (r *Ruleset) Restricts() bool { return r.admission != nil }

// LetsIn reports whether others may open connections to an address, protocol and port: to an
// Endpoint that is admitted, and to a service.
func (r *Ruleset) LetsIn(to netip.Addr, protocol uint8, port uint16) bool {
	if r.admission == nil || r.admission.has(to, protocol, port) {
		return true
	}
	_, served := r.services.get(serviceAddress{to, port, protocol})
	return served
}

// Admit returns a Draft in which some Endpoints of the previous Config are replaced by others, or
// all faults. Its cost depends on these alone.
func (s *Set) Admit(withdrawn, added []Endpoint) (*Draft, error) {
	k := &checker{of: "config"}
	for i := range added {
		k.endpoint(at("Admit", i), &added[i])
	}
	if s.committed.admission == nil {
		k.fault("Admit", "there is none to amend; replace the configuration")
	}
	if err := errors.Join(k.faults...); err != nil {
		return nil, err
	}
	d, n := s.Draft(), s.committed.network
	n.admission = n.admission.with(withdrawn, added)
	d.network = &n
	d.readmitted = slices.Concat(withdrawn, added)
	return d, nil
}

// concernAdmission adds the packets to Endpoints that d admits and committed rules do not, or the
// other way round.
func (d *Draft) concernAdmission(a *Affected, is, was *admission) {
	switch {
	case is == was:
	case is == nil || was == nil:
		a.All = true
	case d.readmitted != nil:
		for _, x := range d.readmitted {
			a.prefix(x.Prefix)
		}
	default:
		a.doors(is, was)
		a.doors(was, is)
	}
}

// doors adds the prefixes of one admission whose doors another does not have.
func (a *Affected) doors(of, other *admission) {
	if of.doors == nil {
		return
	}
	for p, doors := range of.doors.All() {
		var others []door
		if other.doors != nil {
			others, _ = other.doors.Get(p)
		}
		if !slices.Equal(doors, others) {
			a.prefix(p)
		}
	}
}

func (k *checker) endpoint(path string, x *Endpoint) {
	k.prefix(path+".Prefix", x.Prefix)
	if x.Protocol == 0 {
		k.fault(path+".Protocol", "missing")
	}
	if x.Port != 0 && !usesPorts(x.Protocol) {
		k.fault(path+".Port", "protocol %d has no ports", x.Protocol)
	}
}

func (c *Config) validateAdmit(k *checker) {
	seen := make(map[Endpoint]int, len(c.Admit))
	for i := range c.Admit {
		x, path := &c.Admit[i], at("Admit", i)
		k.endpoint(path, x)
		if j, ok := seen[*x]; ok {
			k.fault(path, "also Admit[%d]", j)
		}
		seen[*x] = i
	}
}
