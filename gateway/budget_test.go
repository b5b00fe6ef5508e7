package gateway

import (
	"runtime/debug"
	"testing"

	"culvert/geneve/udp"
)

// TestBudget: every part follows the smaller of the control group's limit and GOMEMLIMIT.
func TestBudget(t *testing.T) {
	const (
		mib  = 1 << 20
		goAt = 64 * mib / 10 * 7 // Go's part of a group of 64 MiB
	)
	for _, tt := range []struct {
		name        string
		group, heap int64
		want        Budget
	}{
		{"no limit", 0, 0, Budget{0, 1 << 20, udp.DefaultSocketBuffer}},
		{"a group of 64 MiB", 64 * mib, 0, Budget{goAt, 65536, 2 * mib}},
		{"a group of 128 MiB", 128 * mib, 0, Budget{128 * mib / 10 * 7, 131072, 4 * mib}},
		{"a large group", 64 << 30, 0, Budget{64 << 30 / 10 * 7, 1 << 20, udp.DefaultSocketBuffer}},
		{"a tiny group", 8 * mib, 0, Budget{8 * mib / 10 * 7, 8192, minReceiveBuffer}},
		{"a group of nothing", 1, 0, Budget{0, 1, minReceiveBuffer}},
		{"GOMEMLIMIT alone", 0, goAt, Budget{0, 65535, 2*mib - 1}},
		{"GOMEMLIMIT of 32 MiB alone", 0, 32 * mib, Budget{0, 46811, 1497965}},
		{"GOMEMLIMIT below its part of the group", 256 * mib, goAt, Budget{0, 65535, 2*mib - 1}},
		{"GOMEMLIMIT above its part of the group", 64 * mib, 60 * mib, Budget{0, 65536, 2 * mib}},
		{"a large GOMEMLIMIT", 0, 1 << 62, Budget{0, 1 << 20, udp.DefaultSocketBuffer}},
	} {
		if got := divide(tt.group, tt.heap); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestReadBudget: GOMEMLIMIT limits the table even without a control group.
func TestReadBudget(t *testing.T) {
	const heap = 32 << 20
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(heap))
	seen, want := ReadBudget(), divide(0, heap)
	if seen.Heap != 0 || seen.Connections > want.Connections || seen.ReceiveBuffer > want.ReceiveBuffer {
		t.Errorf("%+v, want at most %+v", seen, want)
	}
}
