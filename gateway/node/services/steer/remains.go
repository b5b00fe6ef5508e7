package steer

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

// RemoveRemains removes what ended runs left behind: policy rules and, with devices, the devices
// that wait for the next run, with their routes. Without devices it touches nothing while one
// waits. It returns the number of rules and devices found. While another process serves Services,
// it removes nothing and returns an error.
func RemoveRemains(devices bool) (found int, err error) {
	rules, err := rulesOf(netlink.FAMILY_ALL)
	if err != nil {
		return 0, err
	}
	links, err := rtnl.List(netlink.LinkList)
	if err != nil {
		return 0, fmt.Errorf("services: list the links of this machine: %w", err)
	}
	var kept []netlink.Link
	leads := map[string]bool{} // names of devices
	for i := range rules {
		if r := &rules[i]; isOwned(r) || isLocal(r) && r.Priority == priorityLocal && r.Protocol == lasting {
			found++
			leads[r.IifName] = true
		}
	}
	for _, l := range links {
		switch name := l.Attrs().Name; {
		case !leads[name] || name == ownPackets: // another's, such as the device of a kept tunnel
		case isKept(l):
			kept = append(kept, l)
		default:
			return 0, inUse(name)
		}
	}
	if len(kept) > 0 && !devices {
		return 0, nil
	}
	for _, l := range kept {
		device, err := createDevice(l.Attrs().Name)
		if err != nil {
			return found + len(kept), err
		}
		defer device.Close() // keeps other processes from taking the device meanwhile
		if err := rtnl.KeepTUN(device, l.Attrs().Name, deviceGroup, false); err != nil {
			return found + len(kept), fmt.Errorf("services: remove %s: %w; remove it with: ip link del %[1]s",
				l.Attrs().Name, err)
		}
	}
	var failed []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := errors.Join(removeSteers(family), restoreLocal(family)); !errors.Is(err, unix.EAFNOSUPPORT) {
			failed = append(failed, err)
		}
	}
	return found + len(kept), errors.Join(failed...)
}
