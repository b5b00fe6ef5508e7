package steer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// MoveLocal moves the rules of the local table behind those of this package. Somebody else may have
// done so before.
func (s *Steering) MoveLocal() error {
	for _, family := range s.families {
		if err := s.moveLocalOf(family); err != nil {
			return err
		}
	}
	return nil
}

func (s *Steering) moveLocalOf(family int) error {
	list, err := rulesOf(family)
	if err != nil {
		return err
	}
	first, behind := false, false
	for i := range list {
		if isLocal(&list[i]) {
			first = first || list[i].Priority < priorityLocal
			behind = behind || list[i].Priority >= priorityLocal && list[i].Priority < priorityOverAgain
		}
		if r := &list[i]; (r.Table == tableID || r.Table == answeredTable) && r.Protocol != lasting {
			return fmt.Errorf(
				"services: a rule that is not culvert's leads to routing table %d; remove it: ip rule del pref %d",
				r.Table, r.Priority)
		}
	}
	if first || !behind {
		if err := netlink.RuleAdd(localRule(family, priorityLocal)); err == nil {
			s.Made++
		} else if !errors.Is(err, unix.EEXIST) {
			return ruleError("move the local table", err)
		}
	}
	if !first {
		return nil
	}
	for i := range list {
		if r := &list[i]; isLocal(r) && r.Priority < priorityLocal {
			if err := netlink.RuleDel(r); err != nil { // whoever made it
				return ruleError("move the local table", err)
			}
			s.Made++
		}
	}
	return nil
}

// isLocal reports whether a rule sends everything to the local table.
func isLocal(r *netlink.Rule) bool {
	return r.Table == unix.RT_TABLE_LOCAL && r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" &&
		r.Mark == 0 &&
		r.IPProto == 0 && r.Sport == nil && r.Dport == nil && !r.Invert
}

func localRule(family, priority int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = family, priority, unix.RT_TABLE_LOCAL, lasting
	return r
}

// restoreLocal restores the rule of the local table, unless somebody else had moved it.
func restoreLocal(family int) error {
	list, err := rulesOf(family)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(r netlink.Rule) bool {
		return isLocal(&r) && r.Priority == priorityLocal && r.Protocol == lasting
	}) {
		return nil
	}
	if err := netlink.RuleAdd(localRule(family, 0)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("services: put the local table back: %w; do so with: ip rule add pref 0 lookup local", err)
	}
	if err := netlink.RuleDel(localRule(family, priorityLocal)); err != nil && !errors.Is(err, unix.ENOENT) {
		return ruleError("put the local table back", err)
	}
	return nil
}

func rulesOf(family int) ([]netlink.Rule, error) {
	list, err := rtnl.List(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
	if err != nil {
		return nil, fmt.Errorf("services: list the rules of routing: %w", err)
	}
	return list, nil
}

// destination identifies a route among those of this package.
func destination(r *netlink.Route) string { return fmt.Sprintf("%s table %d", r.Dst, r.Table) }

// Describe formats a rule as ip rule does.
func Describe(r *netlink.Rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pref %d", r.Priority)
	if r.Src != nil {
		fmt.Fprintf(&b, " from %s", r.Src)
	}
	if r.Dst != nil {
		fmt.Fprintf(&b, " to %s", r.Dst)
	}
	if r.IifName != "" {
		fmt.Fprintf(&b, " iif %s", r.IifName)
	}
	if r.IPProto != 0 {
		fmt.Fprintf(&b, " ipproto %d", r.IPProto)
	}
	if r.Sport != nil {
		fmt.Fprintf(&b, " sport %d-%d", r.Sport.Start, r.Sport.End)
	}
	if r.Dport != nil {
		fmt.Fprintf(&b, " dport %d-%d", r.Dport.Start, r.Dport.End)
	}
	fmt.Fprintf(&b, " family %d table %d goto %d", r.Family, r.Table, r.Goto)
	return b.String()
}
