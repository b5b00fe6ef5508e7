// Package rtnl reads kernel lists that may change while they are read, formats routes, and distinguishes new failures from repeated ones.
package rtnl

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries is how often the kernel is asked for a list that changes while it answers, for example because pods come and
// go.
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
