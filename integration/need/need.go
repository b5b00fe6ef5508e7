// Package need skips tests for what a machine lacks, each by the name of a probe. LAB makes such a skip a failure: LAB=require for all
// that this kernel can do, LAB=require=tun,tshark for what it names. Bubble is for tests that
// have a clock of their own.
package need

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// longEnv asks for tests that take minutes.
const longEnv = "CULVERT_LONG"

// Kernel skips the test if err is not nil: what a probe of the kernel, or of a right, has found. errors.ErrUnsupported says that the kernel
// cannot do it, which LAB=require alone does not ask for.
func Kernel(t testing.TB, probe string, err error) {
	t.Helper()
	judge(t, probe, err, !errors.Is(err, errors.ErrUnsupported))
}

// Offloads is Kernel for UDP_SEGMENT and UDP_GRO, or what the test needs of them.
func Offloads(t testing.TB, there bool) {
	t.Helper()
	if !there {
		Kernel(t, "udp-offloads", errors.ErrUnsupported)
	}
}

// Program is Kernel for what is installed, or built before: LAB=require alone does not ask for it.
func Program(t testing.TB, probe string, err error) {
	t.Helper()
	judge(t, probe, err, false)
}

// Long skips the test unless CULVERT_LONG is set; what says what it is.
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

// required tells whether LAB asks for a probe; byDefault is what LAB=require says of it.
func required(lab, probe string, byDefault bool) bool {
	if lab == "require" {
		return byDefault
	}
	list, ok := strings.CutPrefix(lab, "require=")
	return ok && slices.Contains(strings.Split(list, ","), probe)
}
