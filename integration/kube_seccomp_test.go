package integration

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused are the system calls that RuntimeDefault refuses to a process without capabilities, by
// containerd's profile of 2020; later profiles allow more. Calls from rseq on, which are newer, are
// refused too, except newCalls.
var refused = []uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_ADJTIMEX, unix.SYS_BPF, unix.SYS_CHROOT, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_CLOCK_SETTIME,
	unix.SYS_DELETE_MODULE, unix.SYS_FANOTIFY_INIT, unix.SYS_FINIT_MODULE, unix.SYS_GET_MEMPOLICY, unix.SYS_INIT_MODULE,
	unix.SYS_KCMP,
	unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MBIND,
	unix.SYS_MEMBARRIER,
	unix.SYS_MIGRATE_PAGES, unix.SYS_MOUNT, unix.SYS_MOVE_PAGES, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_NFSSERVCTL,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PERSONALITY, unix.SYS_PIVOT_ROOT,
	unix.SYS_PKEY_ALLOC, unix.SYS_PKEY_FREE,
	unix.SYS_PKEY_MPROTECT, unix.SYS_PREADV2, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PTRACE,
	unix.SYS_PWRITEV2,
	unix.SYS_QUOTACTL, unix.SYS_REBOOT, unix.SYS_REQUEST_KEY, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME,
	unix.SYS_SETNS,
	unix.SYS_SETTIMEOFDAY, unix.SYS_SET_MEMPOLICY, unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_UMOUNT2,
	unix.SYS_UNSHARE,
	unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}

// oldCalls are refused too; they exist only on that kind of machine.
var oldCalls = map[string][]uint32{
	"amd64": {134, 136, 139, 156, 172, 173, 174, 177, 178, 181, 182, 183, 184, 185, 236}, // uselib to vserver
}

var newCalls = []uint32{unix.SYS_OPENAT2, unix.SYS_FACCESSAT2}

// machines maps GOARCH to seccomp's names.
var machines = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Offsets in struct seccomp_data of linux/seccomp.h, the input of a filter.
const (
	seccompCall     = 0
	seccompMachine  = 4
	seccompArgument = 16 // the lower half of the first
)

// restrict puts a filter like RuntimeDefault's before all system calls of this thread and its
// children, which then cannot gain privileges.
func restrict() error {
	machine, ok := machines[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no seccomp profile for %s", runtime.GOARCH)
	}
	no, yes := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	equal := func(value uint32, verdict bpf.Instruction) []bpf.Instruction {
		return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: value, SkipTrue: 1}, verdict}
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: seccompMachine, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: machine, SkipTrue: 1}, no,
		bpf.LoadAbsolute{Off: seccompCall, Size: 4},
	}
	for _, call := range newCalls {
		program = append(program, equal(call, yes)...)
	}
	program = append(program, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: unix.SYS_RSEQ, SkipTrue: 1}, no)
	for _, call := range slices.Concat(refused, oldCalls[runtime.GOARCH]) {
		program = append(program, equal(call, no)...)
	}
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	program = append(program,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 3},
		bpf.LoadAbsolute{Off: seccompArgument, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: namespaces, SkipTrue: 1}, no, yes)
	return filterCalls(program)
}

// filterCalls puts a program before all system calls of this thread and its children.
func filterCalls(program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		uintptr(unsafe.Pointer(&fprog))); errno != 0 {
		return fmt.Errorf("install the seccomp filter: %w", errno)
	}
	return nil
}
