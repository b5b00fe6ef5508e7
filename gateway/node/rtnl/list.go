// Package rtnl reads lists from the kernel that change while they are read, formats routes, and tells new failures from repeated ones.
package rtnl

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries is how often the kernel is asked for a list that changes while it answers, as where pods come and go.
const tries = 10

// List returns a list that was read whole.
func List[T any](list func() ([]T, error)) (all []T, err error) {
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
