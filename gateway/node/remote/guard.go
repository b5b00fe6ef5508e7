package remote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// A Tunnel is this node's way to a gateway, which pods must not use in the node's name.
type Tunnel struct {
	Gateway netip.Addr // outer address
	Port    uint16
	Kernel  string // the kernel's link that carries it; "" if a process does
}

// Reasons for packets that the table drops, and the names of the chains that drop them.
const (
	// The node has given a pod's packet to a gateway its own source, so that the pod would be the
	// node.
	dropMasqueraded = "masqueraded-pod"
	// A packet has a gateway's source and comes from a pod.
	dropForged = "forged-gateway"
)

// podKinds are the kinds of devices that lead to pods.
var podKinds = []string{"veth", "bridge"}

// guards returns the rules that keep pods out of tunnels, for one family.
func guards(tunnels []Tunnel, f *family) (all []rule) {
	var forged []rule
	uplinks, err := f.uplinks()
	for _, t := range tunnels {
		if t.Gateway.BitLen() != f.bits() {
			continue
		}
		// After the masquerade, its result is known, whatever the CNI translates and however pods
		// get their addresses. A packet of the node itself comes from no device, or from the
		// kernel's link.
		var own []byte
		if t.Kernel != "" {
			own = slices.Concat(meta(unix.NFT_META_IIFNAME), differs(interfaceName(t.Kernel)))
		}
		all = append(all, rule{
			chain: dropMasqueraded, label: fmt.Sprintf("%s to %s UDP %d %s", dropMasqueraded, t.Gateway,
				t.Port, t.Kernel),
			expressions: slices.Concat(udpTo(t.Port), f.load(f.dest), equals(t.Gateway.AsSlice()),
				meta(unix.NFT_META_IIF), differs(native32(0)), own,
				ctStatus(ipsSrcNAT), ofThisMachine(), countDrop()),
		})
		if err != nil || behindSwitch(t.Gateway) {
			continue
		}
		for _, kind := range podKinds {
			var outside []byte
			for _, index := range uplinks {
				outside = append(outside, differs(native32(uint32(index)))...)
			}
			forged = append(forged, rule{
				chain: dropForged, label: fmt.Sprintf("%s from %s UDP %d by %s not %v", dropForged, t.Gateway, t.Port,
					kind, uplinks),
				expressions: slices.Concat(udpTo(t.Port), f.load(f.source), equals(t.Gateway.AsSlice()),
					meta(metaIIFKind), equals(interfaceName(kind)),
					meta(unix.NFT_META_IIF), outside, noWayBack(), countDrop()),
			})
		}
	}
	return append(all, forged...)
}

// uplinks returns the devices of default routes, which never lead to pods.
func (f *family) uplinks() (all []int, err error) {
	table, err := rtnl.MainTable(f.netlink)
	for _, r := range table {
		if rtnl.PrefixOf(&r).Bits() > 0 {
			continue
		}
		all = append(all, r.LinkIndex)
		for _, hop := range r.MultiPath {
			all = append(all, hop.LinkIndex)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(index int) bool { return index == 0 }), err
}

// behindSwitch reports whether the way to an address leads into a pair of devices that both belong
// to this node. A CNI then delivers packets past the routes (Cilium), so that the device by which
// they arrive says nothing.
func behindSwitch(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return false
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	return err == nil && l.Type() == "veth" && l.Attrs().ParentIndex != 0 && l.Attrs().NetNsID < 0
}

// From linux/netfilter/nf_conntrack_common.h and nf_tables.h.
const (
	ipsSrcNAT     = 1 << 4 // IPS_SRC_NAT
	ipsDestNAT    = 1 << 5 // IPS_DST_NAT
	fibResultOIF  = 1      // NFT_FIB_RESULT_OIF
	fibResultType = 3      // NFT_FIB_RESULT_ADDRTYPE
	fibSource     = 1      // NFTA_FIB_F_SADDR
	fibIIF        = 1 << 3 // NFTA_FIB_F_IIF
	metaIIFKind   = 26     // NFT_META_IIFKIND
	drop          = 0      // NF_DROP
	counterBytes  = 1      // NFTA_COUNTER_BYTES
	counterNumber = 2      // NFTA_COUNTER_PACKETS
)

// udpTo continues the rule for UDP datagrams to a port.
func udpTo(port uint16) []byte {
	return slices.Concat(meta(unix.NFT_META_L4PROTO), equals([]byte{unix.IPPROTO_UDP}),
		load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offsetPort, 2), equals(binary.BigEndian.AppendUint16(nil, port)))
}

// meta loads a property of the packet into the register.
func meta(key uint32) []byte {
	return expression("meta", number(unix.NFTA_META_DREG, register), number(unix.NFTA_META_KEY, key))
}

// ctStatus continues the rule if the packet's connection has a flag.
func ctStatus(flag uint32) []byte {
	return slices.Concat(expression("ct", number(unix.NFTA_CT_DREG, register),
		number(unix.NFTA_CT_KEY, unix.NFT_CT_STATUS)),
		masked(native32(flag)), differs(native32(0)))
}

// noWayBack continues the rule if no route to the packet's source leads by the device by which it
// came.
func noWayBack() []byte {
	return slices.Concat(expression("fib", number(unix.NFTA_FIB_DREG, register), number(unix.NFTA_FIB_RESULT,
		fibResultOIF),
		number(unix.NFTA_FIB_FLAGS, fibSource|fibIIF)), equals(native32(0)))
}

// ofThisMachine continues the rule if the packet's source is an address of this machine. Another
// node's packet to a gateway's pod here may have a translated port, if the pod has sent to that
// node before.
func ofThisMachine() []byte {
	return slices.Concat(expression("fib", number(unix.NFTA_FIB_DREG, register), number(unix.NFTA_FIB_RESULT,
		fibResultType),
		number(unix.NFTA_FIB_FLAGS, fibSource)), equals(native32(unix.RTN_LOCAL)))
}

func countDrop() []byte {
	return slices.Concat(expression("counter", wide(counterBytes, 0), wide(counterNumber, 0)), verdict(drop))
}

func verdict(code uint32) []byte {
	return expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		nested(unix.NFTA_IMMEDIATE_DATA, nested(unix.NFTA_DATA_VERDICT, number(unix.NFTA_VERDICT_CODE, code))))
}

func wide(kind uint16, value uint64) []byte {
	return attribute(kind, binary.BigEndian.AppendUint64(nil, value))
}

// native32 is a value of the kernel's own, which is in the machine's byte order.
func native32(value uint32) []byte { return binary.NativeEndian.AppendUint32(nil, value) }

// interfaceName is a name as nf_tables compares it.
func interfaceName(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

// Protect keeps pods out of tunnels: it sets the desired rules.
func (k *Keeper) Protect(tunnels []Tunnel) {
	k.mu.Lock()
	k.tunnels = slices.Clone(tunnels)
	k.mu.Unlock()
	k.Look()
}

// Guarded returns the ways to gateways that pods are kept out of, and why not out of all of them;
// "" if nothing is known to be wrong.
func (k *Keeper) Guarded() (tunnels []Tunnel, fault string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.tunnels) == 0 {
		return nil, ""
	}
	return k.guarded, k.unguarded
}

// Drops calls yield for each reason for which the table drops packets, with those that this process
// has seen.
func (k *Keeper) Drops(yield func(reason string, packets uint64)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := map[string]uint64{}
	for i := range families {
		have, _, err := families[i].read()
		if err != nil {
			continue
		}
		for _, r := range have {
			now[r.chain] += r.packets
		}
	}
	for _, reason := range []string{dropMasqueraded, dropForged} {
		yield(reason, k.dropped[reason]+now[reason])
	}
}

// keep makes the tables match, and returns why the exception is not in place.
func (k *Keeper) keep(pairs []pair) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.unguarded
	for {
		tunnels := k.tunnels
		if k.lacks {
			tunnels = nil
		}
		gone, err := k.table(pairs, tunnels)
		for chain, packets := range gone {
			k.dropped[chain] += packets
		}
		if errors.Is(err, unix.ENOENT) && len(tunnels) > 0 { // an expression that this kernel lacks
			k.lacks, k.unguarded = true, unguardedText(err)
			continue
		}
		k.guarded = nil
		switch {
		case k.lacks:
		case err == nil:
			k.guarded, k.unguarded = tunnels, ""
			if !newEnough() {
				k.guarded, k.unguarded = nil, unguardedText(errOldKernel)
			}
		case len(k.tunnels) > 0:
			k.unguarded = unguardedText(err)
		}
		if k.unguarded != was && k.unguarded != "" {
			k.log.WithField("cause", k.unguarded).Warn("pods can use this node's tunnels")
		}
		return err
	}
}

// errOldKernel: before Linux 5.7, nf_tables did not know after the masquerade by which device a
// packet had come.
var errOldKernel = errors.New("they need Linux 5.7")

func newEnough() bool {
	var name unix.Utsname
	var major, minor int
	if unix.Uname(&name) != nil {
		return true
	}
	fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return major > 5 || major == 5 && minor >= 7
}

func unguardedText(err error) string {
	return fmt.Sprintf("pods of this node may act as the node at its gateways, if the node masquerades what they send there: the rules against it are missing (%v); "+
		"forbid pods UDP to the gateways by a NetworkPolicy: SECURITY.md has one", err)
}
