package need

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// WithoutCapabilities calls fn on a thread that has none, and gives them back.
func WithoutCapabilities(t testing.TB, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var was, none [2]unix.CapUserData
	if err := unix.Capget(&header, &was[0]); err != nil {
		t.Fatal(err)
	}
	none[0].Permitted, none[1].Permitted = was[0].Permitted, was[1].Permitted
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&header, &was[0]); err != nil {
			panic(err)
		}
	}()
	fn()
}
