package fault

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/lab/step"
)

// probeTrain is the length of a train of two probes with its UDP header: 64 bytes each, 32 of
// WireGuard's, 8 of UDP.
const probeTrain = 2*(64+32) + 8

// sinkLink is down: packets redirected there are lost.
const sinkLink = "sink"

// loseTrains drops the super-frames from rome's gateway to milan's, by the length in their headers:
// at least 2048 bytes, which is more than any frame of the link, or the length of the two small
// datagrams with which gateways test for such a loss.
func loseTrains() []kernelFault {
	const host, link = "milan/gateway", "peer"
	begin := func(lab *Lab) error { return onLink(link, lab.trainFilter)(lab) }
	end := onLink(link, func(l netlink.Link) error {
		err := netlink.QdiscDel(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}})
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // there is none
			err = nil
		}
		if sink, e := netlink.LinkByName(sinkLink); e == nil {
			err = errors.Join(err, netlink.LinkDel(sink))
		}
		return err
	})
	return []kernelFault{{host, begin, end}}
}

// trainFilter redirects trains arriving on a link.
func (l *Lab) trainFilter(link netlink.Link) (err error) {
	defer step.Catch(&err)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = sinkLink
	sink := &netlink.Bridge{LinkAttrs: attrs}
	step.Try(unless(unix.EEXIST, netlink.LinkAdd(sink)))
	down := step.Must(netlink.LinkByName(sinkLink))
	err = netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}})
	if err != nil {
		return unless(unix.EEXIST, err)
	}
	// The total length in the first four bytes (RFC 791, Section 3.1), or the payload's in the
	// second four (RFC 8200, Section 3).
	protocol, at, shift, probe := uint16(unix.ETH_P_IP), int32(0), 0, uint32(probeTrain+20)
	if l.Outer().Is6() {
		protocol, at, shift, probe = unix.ETH_P_IPV6, 4, 16, probeTrain
	}
	lengths := []netlink.TcU32Key{{Mask: 0xffff << shift, Val: probe << shift, Off: at}}
	for bit := uint32(1 << 11); bit < 1<<16; bit <<= 1 {
		lengths = append(lengths, netlink.TcU32Key{Mask: bit << shift, Val: bit << shift, Off: at})
	}
	for _, key := range lengths {
		err = errors.Join(err, netlink.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.MakeHandle(0xffff, 0),
				Priority: 1, Protocol: protocol},
			RedirIndex: down.Attrs().Index,
			Sel:        &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: 1, Keys: []netlink.TcU32Key{key}},
		}))
	}
	return err
}
