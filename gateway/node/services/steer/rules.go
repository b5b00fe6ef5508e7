package steer

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// over returns a rule by which packets from the device jump to a later rule.
func (s *Steering) over(family, priority, to int) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.IifName, r.Goto, r.Protocol = family, priority, s.device, to, lasting
	return *r
}

// on returns a rule to jump to.
func on(family, priority int) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Type, r.Protocol = family, priority, actionNop, lasting
	return *r
}

func (s *Match) rule(priority int) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol, r.IPProto = s.family(), priority, tableID, lasting, int(s.Protocol)
	if s.Protocol != 0 {
		r.Dport = netlink.NewRulePortRange(s.Ports.First, s.Ports.Last)
	}
	if s.Ends.First != 0 {
		r.Sport = netlink.NewRulePortRange(s.Ends.First, s.Ends.Last)
	}
	if s.From.IsValid() {
		r.Src = rtnl.IPNet(s.From)
	}
	if s.To.IsValid() {
		r.Dst = rtnl.IPNet(s.To)
	}
	return *r
}

// answeredProtocols are the protocols that the engine knows, and others that hosts use.
var answeredProtocols = []int{unix.IPPROTO_ICMP, unix.IPPROTO_IPIP, unix.IPPROTO_TCP, unix.IPPROTO_UDP,
	unix.IPPROTO_IPV6, unix.IPPROTO_GRE, unix.IPPROTO_ESP,
	unix.IPPROTO_AH, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE}

// answered returns the rules for addresses whose route only makes the kernel answer ARP
// (vip.go). They lead packets on, by protocol, and also packets that this node sends, because
// not all of the kernel's lookups specify a protocol.
func answered() (all []netlink.Rule) {
	rule := func() *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = unix.AF_INET, priorityAnswered, answeredTable, lasting
		return r
	}
	own := rule()
	own.IifName = ownPackets
	all = append(all, *own)
	for _, protocol := range answeredProtocols {
		r := rule()
		r.IPProto = protocol
		all = append(all, *r)
	}
	return all
}

// ownPackets is the interface by which rules recognise packets of this node (ip-rule(8)).
const ownPackets = "lo"

// probe returns a rule that leaves to the kernel neighbours' probes of a known address (RFC 4861,
// Section 7.3.3). They normally come from a link-local address. A router's error about a connection
// does not; it belongs to the device.
func probe() netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol, r.IPProto = unix.AF_INET6, priorityProbe, unix.RT_TABLE_LOCAL, lasting,
		unix.IPPROTO_ICMPV6
	r.Src = rtnl.IPNet(netip.MustParsePrefix("fe80::/10"))
	return *r
}

func ruleError(what string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("services: %s: needs CAP_NET_ADMIN in this network namespace; run culvert node as root: %w",
			what, err)
	}
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("services: %s: this kernel has no policy routing (CONFIG_IP_MULTIPLE_TABLES): %w", what, err)
	}
	return fmt.Errorf("services: %s: %w", what, err)
}

func all(family int) netip.Prefix {
	if family == unix.AF_INET {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func familyOf(p netip.Prefix) int {
	if p.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
