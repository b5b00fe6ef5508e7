package nat

import (
	"syscall"
	"unsafe"
)

// preferLargePages asks the kernel for large pages wherever one holds some of the size bytes at p, which has to stay reachable. Go's heap
// grows by 4 MiB at multiples of that, so that all of such a page is the heap's. Where the kernel has none, memory is as it was.
//
// What lies before p is another's, or nobody's: a pointer there would be a fault to Go's collector.
func preferLargePages(p unsafe.Pointer, size uintptr) {
	before := uintptr(p) % largePage
	size = (before + size + largePage - 1) / largePage * largePage
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(p)-before, size, syscall.MADV_HUGEPAGE)
}
