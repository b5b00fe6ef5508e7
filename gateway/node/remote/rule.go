package remote

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

const (
	// rulePriority is after the rules of Services on nodes (package steer), and before 512, where
	// the rules of CNIs begin.
	rulePriority = 130
	mainPriority = 32766 // the kernel's rule for the main table
)

// lead makes the main table decide about packets to these prefixes, if rules of other programs
// would have another table decide, as CNIs of clouds do by the source for pods that have an address
// of a second network card. It removes this package's other rules.
func lead(to []netip.Prefix) (err error) {
	for _, f := range families {
		of := slices.DeleteFunc(slices.Clone(to), func(p netip.Prefix) bool { return p.Addr().BitLen() != f.bits() })
		err = errors.Join(err, f.lead(of))
	}
	return err
}

// lead is lead for one family.
func (f *family) lead(to []netip.Prefix) (err error) {
	rules, err := rtnl.List(func() ([]netlink.Rule, error) { return netlink.RuleList(f.netlink) })
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) { // a kernel without rules
		return nil
	}
	if err != nil {
		return fmt.Errorf("policy rules: read the kernel's: %w", err)
	}
	elsewhere := func(r netlink.Rule) bool {
		return r.Priority > rulePriority && r.Priority < mainPriority && r.Table != 0 && r.Table != unix.RT_TABLE_MAIN
	}
	if !slices.ContainsFunc(rules, elsewhere) {
		to = nil
	}
	var have []netip.Prefix
	for i := range rules {
		r := &rules[i]
		if r.Protocol != Protocol {
			continue
		}
		if p := ruleTo(r); slices.Contains(to, p) && !slices.Contains(have, p) {
			have = append(have, p)
		} else if e := netlink.RuleDel(r); e != nil && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("policy rules: remove that to %s: %w", p, e))
		}
	}
	for _, p := range to {
		if slices.Contains(have, p) {
			continue
		}
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol, r.Dst = f.netlink, rulePriority, unix.RT_TABLE_MAIN, Protocol,
			rtnl.IPNet(p)
		if e := netlink.RuleAdd(r); e != nil && !errors.Is(e, unix.EEXIST) {
			err = errors.Join(err, fmt.Errorf("policy rules: add one to %s: %w", p, e))
		}
	}
	return err
}

// ruleTo returns the destination of a rule.
func ruleTo(r *netlink.Rule) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}
