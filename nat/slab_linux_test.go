package nat

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"culvert/integration/need"
)

// TestSlabLargePages: the kernel is asked for large pages where a block lies, and not for what comes before the first one.
func TestSlabLargePages(t *testing.T) {
	const setting = "/sys/kernel/mm/transparent_hugepage/enabled"
	if _, err := os.Stat(setting); err != nil {
		need.Kernel(t, "large-pages", fmt.Errorf("%w: %w", errors.ErrUnsupported, err))
	}
	const each = 1 << 20
	var s slab[[each]byte]
	for range slabBlock / each {
		s.next()
	}
	if s.rest != nil {
		t.Error("a small slab has a block")
	}
	first := s.next()
	last := first
	for range slabBlock/each - 1 {
		last = s.next()
	}
	for _, v := range []*[each]byte{first, last} {
		if flags := mappingFlags(t, uintptr(unsafe.Pointer(v))); !strings.Contains(flags, " hg ") {
			t.Errorf("flags of the mapping: %s, want hg", flags)
		}
	}
}

// mappingFlags returns the flags of the mapping that an address of this process is in (proc_pid_smaps(5)).
func mappingFlags(t *testing.T, address uintptr) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	in := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err == nil {
			in = from <= address && address < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && in {
			return flags
		}
	}
	t.Fatalf("no mapping of %x", address)
	return ""
}
