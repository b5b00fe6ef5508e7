package unixsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// TestAnotherUser: only the owner can connect, whatever the umask.
func TestAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		need.Kernel(t, "root", errors.New("cannot become another user"))
	}
	dir := t.TempDir()
	for p := dir; p != "/"; p = filepath.Dir(p) { // the other user may reach the folder
		if info, err := os.Stat(p); err != nil || info.Mode().Perm()&1 == 0 {
			need.NoError(t, os.Chmod(p, info.Mode().Perm()|0o111))
		}
	}
	defer unix.Umask(unix.Umask(0))
	l, err := Listen(filepath.Join(dir, "cv-rome.sock"))
	need.NoError(t, err)
	defer l.Close()
	path := l.Addr().String()
	connect := func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err := need.As(0, connect); err != nil {
		t.Errorf("the owner: %v", err)
	}
	if err := need.As(65534, connect); !errors.Is(err, unix.EACCES) {
		t.Errorf("another user: %v, want EACCES", err)
	}
	for _, tt := range []struct {
		owner int
		mode  os.FileMode
		good  bool
	}{{1, 0o777, false}, {1, 0o777 | os.ModeSticky, false}, {0, 0o777, true}, {65534, 0o700, true}} {
		need.NoError(t, errors.Join(os.Chown(dir, tt.owner, 0), os.Chmod(dir, tt.mode)))
		err := need.As(65534, func() error {
			l, err := Listen(filepath.Join(dir, "cv-milan.sock"))
			if err != nil {
				return err
			}
			return l.Close()
		})
		if (err == nil) != tt.good || err != nil && !strings.Contains(err.Error(),
			dir+" belongs to user 1, who could replace") {
			t.Errorf("in a folder of user %d, %v: %v", tt.owner, tt.mode, err)
		}
	}
}

// TestUmask: files that other goroutines create meanwhile get the mode that they ask for.
func TestUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o022))
	dir := t.TempDir()
	var done atomic.Bool
	var listening sync.WaitGroup
	defer listening.Wait()
	listening.Go(func() {
		defer done.Store(true)
		for range 500 {
			l, err := Listen(filepath.Join(dir, "cv-rome.sock"))
			if err != nil {
				t.Error(err)
				return
			}
			l.Close()
		}
	})
	path := filepath.Join(dir, "bystander")
	for !done.Load() {
		need.NoError(t, os.WriteFile(path, nil, 0o644))
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
			t.Fatalf("mode %v, %v, want 0644", info.Mode().Perm(), err)
		}
		os.Remove(path)
	}
}

// TestPlace: the socket of a killed process is replaced; other files, and the sockets of a living
// process, even one too busy to answer, are left alone.
func TestPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wireguard") // made on the way
	killed, err := Listen(filepath.Join(dir, "killed"))
	need.NoError(t, err)
	killed.(*net.UnixListener).SetUnlinkOnClose(false)
	killed.Close()
	running, err := Listen(filepath.Join(dir, "running"))
	need.NoError(t, err)
	defer running.Close()
	busy, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	need.NoError(t, err)
	defer unix.Close(busy)
	need.NoError(t, errors.Join(unix.Bind(busy, &unix.SockaddrUnix{Name: filepath.Join(dir, "busy")}),
		unix.Listen(busy, 0)))
	waiting, err := net.Dial("unix", filepath.Join(dir, "busy")) // fills its backlog
	need.NoError(t, err)
	defer waiting.Close()
	need.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("kept"), 0o600))
	for _, tt := range []struct {
		name string
		good bool
	}{
		{"killed", true}, {"running", false}, {"busy", false}, {"file", false},
		{strings.Repeat("x", MaxPath), false},
	} {
		l, err := Listen(filepath.Join(dir, tt.name))
		if good := err == nil; good != tt.good {
			t.Errorf("%q: %v", tt.name, err)
		}
		if l != nil {
			l.Close()
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "file")); string(b) != "kept" {
		t.Errorf("another file: %q, %v", b, err)
	}
}
