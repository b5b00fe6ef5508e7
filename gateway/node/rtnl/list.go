// Package rtnl is what a node's parts ask its kernel in common: lists that may change while they
// are read, reports of changes and when to look again, routes through a link, TUN devices that
// outlive their process, and who holds a device, a port or a name. It distinguishes new failures
// from repeated ones.
package rtnl

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries is how often the kernel is asked for a list that changes while it answers, for example
// because pods come and go.
const tries = 10

// List calls list until the result was read completely, at most tries times.
func List[T any](list func() ([]T, error)) (all []T, err error) {
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
