package need

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BreakNetlink makes the one subscription to these groups of rtnetlink in this network namespace
// fail, by a message that is too short for one, and waits until another one has taken its place.
func BreakNetlink(t *testing.T, groups ...uint) {
	t.Helper()
	mask := uint64(0)
	for _, g := range groups {
		mask |= 1 << (g - 1)
	}
	find := func() (port uint32, inode string, err error) {
		list, err := os.ReadFile("/proc/thread-self/net/netlink")
		for line := range strings.Lines(string(list)) { // address, protocol, port, groups, …, inode
			f := strings.Fields(line)
			if have, _ := strconv.ParseUint(f[3], 16, 32); f[1] == "0" && have == mask {
				n, err := strconv.ParseUint(f[2], 10, 32)
				return uint32(n), f[len(f)-1], err
			}
		}
		return 0, "", fmt.Errorf("no subscription to %d: %w: %s", groups, os.ErrNotExist, list)
	}
	var port uint32
	var before string
	Eventually(t, 10*time.Second, "a subscription", func() (err error) {
		port, before, err = find()
		return err
	})
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	NoError(t, err)
	defer unix.Close(fd)
	NoError(t, unix.Sendto(fd, []byte{0}, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}))
	Eventually(t, 10*time.Second, "another subscription", func() error {
		_, now, err := find()
		if err == nil && now == before {
			err = fmt.Errorf("socket %s is still there", now)
		}
		return err
	})
}
