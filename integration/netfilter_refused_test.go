package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// Socket options of netfilter, the first of each range.
const (
	iptablesControl = 64   // IPT_BASE_CTL, also that of IPv6
	ipvsControl     = 1152 // IP_VS_BASE_CTL
)

// refuseNetfilter makes the kernel refuse this thread's nftables, generic netlink (which configures
// IPVS) and packet sockets, and the socket options of iptables and IPVS.
func refuseNetfilter() error {
	const second, third = seccompArgument + 8, seccompArgument + 16
	no, yes := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	return filterCalls([]bpf.Instruction{
		bpf.LoadAbsolute{Off: seccompCall, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SETSOCKOPT, SkipTrue: 8},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_GETSOCKOPT, SkipTrue: 7},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SOCKET, SkipFalse: 13},
		bpf.LoadAbsolute{Off: seccompArgument, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_PACKET, SkipTrue: 12},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_NETLINK, SkipFalse: 10},
		bpf.LoadAbsolute{Off: third, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.NETLINK_NETFILTER, SkipTrue: 9},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.NETLINK_GENERIC, SkipTrue: 8, SkipFalse: 7},
		bpf.LoadAbsolute{Off: second, Size: 4}, // of setsockopt and getsockopt
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOL_IP, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOL_IPV6, SkipFalse: 4},
		bpf.LoadAbsolute{Off: third, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: ipvsControl, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: iptablesControl, SkipFalse: 1},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: iptablesControl + 2, SkipFalse: 1},
		yes,
		no,
	})
}

// requireNetfilterRefused: behind the filter none of netfilter's calls succeeds; without it some
// do.
func requireNetfilterRefused(t *testing.T) {
	t.Helper()
	try := func() map[string]error {
		all := map[string]error{}
		for name, protocol := range map[string]int{"nftables": unix.NETLINK_NETFILTER,
			"IPVS by netlink": unix.NETLINK_GENERIC} {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
			if all[name] = err; err == nil {
				unix.Close(fd)
			}
		}
		for family, level := range map[int]int{unix.AF_INET: unix.SOL_IP, unix.AF_INET6: unix.SOL_IPV6} {
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			need.NoError(t, err)
			for name, option := range map[string]int{"iptables": iptablesControl, "IPVS": ipvsControl} {
				if name == "IPVS" && family == unix.AF_INET6 {
					continue
				}
				_, err := unix.GetsockoptInt(fd, level, option)
				all[fmt.Sprintf("%s, get, family %d", name, family)] = err
				all[fmt.Sprintf("%s, set, family %d", name, family)] = unix.SetsockoptInt(fd, level, option, 0)
			}
			unix.Close(fd)
		}
		return all
	}
	var open, refused map[string]error
	err := onPeerThread(func() error {
		open = try()
		err := refuseNetfilter()
		refused = try()
		return err
	})
	need.NoError(t, err)
	for name, err := range refused {
		if err != unix.EPERM {
			t.Errorf("%s behind the filter: %v, want %v", name, err, unix.EPERM)
		}
	}
	if err := open["nftables"]; err != nil {
		t.Errorf("nftables without the filter: %v", err)
	}
}

// requireFiltered fails unless a filter stands before the system calls of a process.
func requireFiltered(t *testing.T, p *peerProcess) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(status), "\nSeccomp:\t2\n") {
		t.Errorf("%v runs without a filter (%v)", p.cmd.Args, err)
	}
}
