package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"
)

// version is the format that this package reads and writes.
const version = 1

// encode returns l as a file: JSON with one entry per line, in order of Remapped.
func (l *Ledger) encode() []byte {
	b := make([]byte, 0, 256+160*len(l.given))
	b = fmt.Appendf(b, "{\n  \"version\": %d,\n  \"given\": [", version)
	for i := range l.given {
		e := &l.given[i] // Check rejects text that JSON would escape
		b = append(append(separate(b, i), `{"peer": "`...), e.Peer...)
		b = append(append(b, `", "kind": "`...), e.Kind...)
		b = append(append(b, `", "real": "`...), e.Real...)
		if e.Network.IsValid() {
			b = e.Network.AppendTo(append(b, `", "network": "`...))
			b = e.Remapped.Addr().AppendTo(append(b, `", "remapped": "`...))
		} else {
			b = e.Remapped.AppendTo(append(b, `", "remapped": "`...))
		}
		b = e.Since.AppendFormat(append(b, `", "since": "`...), time.RFC3339)
		b = append(b, `"}`...)
	}
	b = append(b, "\n  ],\n  \"last\": ["...)
	networks := make([]netip.Prefix, 0, len(l.last))
	for network := range l.last {
		networks = append(networks, network)
	}
	slices.SortFunc(networks, order)
	for i, network := range networks {
		b = fmt.Appendf(separate(b, i), `{"network": "%s", "address": "%s"}`, network, l.last[network])
	}
	return append(b, "\n  ]\n}\n"...)
}

func separate(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return append(b, "\n    "...)
}

// decode parses the output of encode, possibly edited by hand. The error begins with the line and
// names the field.
func decode(text string) (*Ledger, error) {
	r := &reader{text: text}
	l := new(Ledger)
	got := -1
	r.object(func(key string) {
		switch key {
		case "version":
			if got = r.number(); got > version {
				r.fail("%d is of a later culvert, this one knows %d", got, version)
			} else if got < version {
				r.fail("want %d", version)
			}
		case "given":
			l.given = make([]Entry, 0, len(text)/100) // approximate bytes of an entry
			r.array(key, maxGiven, func() { l.given = append(l.given, r.entry()) })
		case "last":
			l.last = make(map[netip.Prefix]netip.Addr)
			r.array(key, maxGiven, func() { r.cursor(l.last) })
		default:
			r.fail("no such field")
		}
	})
	r.end()
	switch {
	case got < 0:
		r.fail("version: missing")
	case l.given == nil || l.last == nil:
		r.fail("given or last: missing")
	}
	sort.Slice(l.given, func(i, j int) bool { return order(l.given[i].Remapped, l.given[j].Remapped) < 0 })
	owners := make(map[Owner]int, len(l.given))
	for i := range l.given {
		e := &l.given[i]
		if at, ok := owners[e.Owner]; ok {
			r.at = max(at, e.at)
			r.fail("%s is in line %d too", e.Owner, r.line(min(at, e.at)))
		}
		owners[e.Owner] = e.at
		if i > 0 && l.given[i-1].Remapped.Overlaps(e.Remapped) {
			r.at = e.at
			r.fail("remapped: %s overlaps %s in line %d", e.RemappedText(), l.given[i-1].RemappedText(),
				r.line(l.given[i-1].at))
		}
	}
	for i := range l.given {
		l.given[i].at = 0
	}
	if r.err != nil {
		return nil, r.err
	}
	return l, nil
}

// entry parses one element of "given".
func (r *reader) entry() Entry {
	r.space()
	e := Entry{at: r.at}
	text := r.record("peer", "kind", "real", "network", "remapped", "since")
	e.Owner = Owner{text[0], Kind(text[1]), text[2]}
	network, remapped, since := text[3], text[4], text[5]
	if network != "" {
		e.Network = parsed(r, "network", netip.ParsePrefix, network)
	}
	if strings.Contains(remapped, "/") {
		e.Remapped = parsed(r, "remapped", netip.ParsePrefix, remapped)
	} else {
		e.Remapped = single(parsed(r, "remapped", netip.ParseAddr, remapped).WithZone(""))
	}
	e.Since = parsed(r, "since", parseTime, since).UTC()
	if err := e.check(); err != nil {
		r.fail("%v", err)
	}
	return e
}

func parseTime(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) }

// cursor parses one element of "last".
func (r *reader) cursor(last map[netip.Prefix]netip.Addr) {
	text := r.record("network", "address")
	network := parsed(r, "network", netip.ParsePrefix, text[0])
	a := parsed(r, "address", netip.ParseAddr, text[1])
	if _, twice := last[network]; twice {
		r.fail("network: %s is there twice", network)
	}
	if !canonical(network) || !network.Contains(a) {
		r.fail("address: %s is not in a network %s", a, network)
	}
	last[network] = a
}

// parsed converts text, the value of key, with parse.
func parsed[T any](r *reader, key string, parse func(string) (T, error), text string) T {
	v, err := parse(text)
	if text == "" {
		r.fail("%s: missing", key)
	} else if err != nil {
		r.fail("%s: %+.60q is not understood", key, text)
	}
	return v
}
