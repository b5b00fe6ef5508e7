// Package need skips tests that a machine does not support, each by the name of a probe, and starts
// external programs that tests have requested. The variable LAB turns such skips into failures:
// LAB=require for everything that this kernel can do, LAB=require=tun,tshark for the listed probes.
// Bubble is for tests with a fake clock, NoError for calls that must succeed, and Eventually for
// what must happen soon.
package need

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// longEnv enables tests that take minutes.
const longEnv = "CULVERT_LONG"

// Kernel skips the test if err, the result of a probe of the kernel or of a privilege, is not nil.
// errors.ErrUnsupported means that the kernel lacks the feature; LAB=require alone does not require
// it.
func Kernel(t testing.TB, probe string, err error) {
	t.Helper()
	judge(t, probe, err, !errors.Is(err, errors.ErrUnsupported))
}

// Offloads is Kernel for UDP_SEGMENT and UDP_GRO, or for what the test needs of them.
func Offloads(t testing.TB, there bool) {
	t.Helper()
	if !there {
		Kernel(t, "udp-offloads", errors.ErrUnsupported)
	}
}

// Program is Kernel for installed or prebuilt programs, which LAB=require alone does not require.
func Program(t testing.TB, probe string, err error) {
	t.Helper()
	judge(t, probe, err, false)
}

// Long skips the test unless CULVERT_LONG is set; what describes it.
func Long(t testing.TB, what string) {
	t.Helper()
	if os.Getenv(longEnv) == "" {
		t.Skipf("%s: %s is not set", what, longEnv)
	}
}

func judge(t testing.TB, probe string, err error, byDefault bool) {
	t.Helper()
	if err == nil {
		return
	}
	if lab := os.Getenv("LAB"); required(lab, probe, byDefault) {
		t.Fatalf("LAB=%s requires probe %s: %v", lab, probe, err)
	}
	t.Skipf("probe %s: %v", probe, err)
}

// required reports whether LAB requires a probe; byDefault is the result for LAB=require.
func required(lab, probe string, byDefault bool) bool {
	if lab == "require" {
		return byDefault
	}
	list, ok := strings.CutPrefix(lab, "require=")
	return ok && slices.Contains(strings.Split(list, ","), probe)
}
