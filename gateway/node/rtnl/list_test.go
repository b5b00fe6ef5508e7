package rtnl

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// TestInterruptedList changes the kernel's answer while it is read.
func TestInterruptedList(t *testing.T) {
	asked := 0
	all, err := List(func() ([]int, error) {
		if asked++; asked < 3 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	})
	if err != nil || len(all) != 2 {
		t.Error(all, err)
	}
	if _, err := List(func() ([]int, error) { return nil, netlink.ErrDumpInterrupted }); err == nil {
		t.Error("a list that is never whole is taken for one")
	}
}
