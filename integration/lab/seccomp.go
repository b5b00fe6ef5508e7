package lab

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ExecWithoutOffloads executes a program, whose path comes first in args, as on a kernel without
// offloads for UDP sockets.
func ExecWithoutOffloads(args []string) error {
	runtime.LockOSThread() // the filter belongs to the thread, and to what it executes
	if err := refuseOffloads(); err != nil {
		return fmt.Errorf("lab: seccomp filter: %w", err)
	}
	return unix.Exec(args[0], args, os.Environ())
}

// refuseOffloads makes the kernel answer ENOPROTOOPT to the socket options UDP_GRO and UDP_SEGMENT,
// for this thread and what it executes.
func refuseOffloads() error {
	const (
		callOffset  = 0  // struct seccomp_data: nr
		levelOffset = 24 // the low half of args[1], little endian
		nameOffset  = 32 // and of args[2]
	)
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: yes, Jf: no}
	}
	answer := func(value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
	}
	filter := []unix.SockFilter{
		load(callOffset),
		equal(unix.SYS_SETSOCKOPT, 1, 0),
		equal(unix.SYS_GETSOCKOPT, 0, 5),
		load(levelOffset),
		equal(unix.SOL_UDP, 0, 3),
		load(nameOffset),
		equal(unix.UDP_SEGMENT, 2, 0),
		equal(unix.UDP_GRO, 1, 0),
		answer(unix.SECCOMP_RET_ALLOW),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOPROTOOPT)),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	runtime.KeepAlive(filter)
	return err
}
