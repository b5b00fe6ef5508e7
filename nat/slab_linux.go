package nat

import (
	"syscall"
	"unsafe"
)

// preferLargePages asks the kernel for large pages wherever one holds some of the size bytes at p. Go's heap grows by 4 MiB at multiples
// of that, so that all of such a page is the heap's. Where the kernel has none, memory is as it was.
func preferLargePages(p unsafe.Pointer, size uintptr) {
	before := uintptr(p) % largePage
	size = (before + size + largePage - 1) / largePage * largePage
	_ = syscall.Madvise(unsafe.Slice((*byte)(unsafe.Add(p, -int(before))), size), syscall.MADV_HUGEPAGE)
}
