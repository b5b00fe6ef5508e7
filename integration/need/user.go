package need

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// As calls f as another user without capabilities, on a thread of its own.
func As(uid int, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is not used again
		// x/sys would change the user of all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			result <- errno
			return
		}
		result <- f()
	}()
	return <-result
}

// OwnTUN fails the test if a user without capabilities, who may open /dev/net/tun, can attach to a
// TUN device. Nobody has the device open.
func OwnTUN(t *testing.T, name string) {
	t.Helper()
	t.Run("stranger at "+name, func(t *testing.T) {
		t.Helper()
		if err := TakeTUN(t, name); !errors.Is(err, unix.EPERM) {
			t.Errorf("another user attaches to %s: %v, want EPERM", name, err)
		}
	})
}

// TakeTUN attaches to a TUN device, for a moment, as a user without capabilities who may open
// /dev/net/tun.
func TakeTUN(t testing.TB, name string) error {
	t.Helper()
	if os.Getuid() != 0 || As(65533, func() error { return nil }) != nil {
		Kernel(t, "root", errors.New("cannot become another user"))
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	Kernel(t, "tun", err)
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	NoError(t, err)
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	return As(65533, func() error { return unix.IoctlIfreq(fd, unix.TUNSETIFF, request) })
}
