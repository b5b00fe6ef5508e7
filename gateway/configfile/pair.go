package configfile

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// List is a list of scalars, or one scalar without brackets.
type List []Scalar

// UnmarshalJSON keeps the elements of a list, or the text of anything else.
func (l *List) UnmarshalJSON(b []byte) error {
	var all []Scalar
	if json.Unmarshal(b, &all) != nil {
		var one Scalar
		if err := one.UnmarshalJSON(b); err != nil {
			return err
		}
		all = []Scalar{one}
	}
	*l = all
	return nil
}

// Is reports whether the list is this one word.
func (l List) Is(word Scalar) bool { return len(l) == 1 && l[0] == word }

// Pair requires one address, or one of each family in a list. It returns none if one of them is
// invalid.
func (e *Errors) Pair(path string, l List) (v4, v6 netip.Addr) {
	switch {
	case len(l) == 0 || l.Is(""):
		e.Missing(path)
		return v4, v6
	case len(l) > 2:
		e.Add(path, "%d addresses; write one, or a list of one IPv4 and one IPv6 address", len(l))
		return v4, v6
	}
	for i, s := range l {
		at := path
		if len(l) > 1 {
			at = fmt.Sprintf("%s[%d]", path, i)
		}
		a := e.IP(at, s)
		if !a.IsValid() {
			return netip.Addr{}, netip.Addr{}
		}
		of, family := &v6, "IPv6"
		if a.Is4() {
			of, family = &v4, "IPv4"
		}
		if of.IsValid() {
			e.Add(at, "%s is a second %s address beside %s; keep one of each family", a, family, *of)
			return netip.Addr{}, netip.Addr{}
		}
		*of = a
	}
	return v4, v6
}

// IP requires an address of either family.
func (e *Errors) IP(path string, s Scalar) netip.Addr {
	if e.Text(path, s) == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(string(s))
	switch {
	case err != nil:
		e.Add(path, "%q is not an IP address such as 192.0.2.1", s)
	case a.Is4In6():
		e.Add(path, "%s is IPv4 mapped into IPv6; write %s", a.WithZone(""), a.Unmap().WithZone(""))
	case a.Zone() != "":
		// a zone may contain anything
		e.Add(path, "%s has a zone, which tunnels do not have; leave it out", a.WithZone(""))
	default:
		return a
	}
	return netip.Addr{}
}
