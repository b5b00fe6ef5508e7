package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/fresh"
	"culvert/integration/need"
)

// The tests in peer*_test.go put culvert on one end of a tunnel and a program on
// the other that nobody here wrote: Open vSwitch, the kernel's VXLAN, Geneve and
// WireGuard, wg(8), tshark. They need root and the programs they name, and are
// skipped with the probe that failed where those are missing.
//
// Each runs in a process of its own, the first of new PID, mount and network
// namespaces, with an empty /run. Whatever way it ends, the kernel takes with it
// every process, namespace, link and socket that it made.

// Environment of the process inside the namespaces.
const (
	isolatedEnv = "CULVERT_PEER_TEST"   // its test's name
	binaryEnv   = "CULVERT_PEER_BINARY" // path of a static culvert
	guestEnv    = "CULVERT_PEER_GUEST"  // folder of the kernel guest, if probed for
)

// A probe tests for a program, or several, that this machine may lack.
type probe struct {
	name string // as LAB=require=... names it
	try  func(testing.TB) error
}

// programs probes for executables under one name. The test may then start them.
func programs(name string, names ...string) probe {
	return probe{name, func(t testing.TB) error { return need.Find(t, names...) }}
}

// needPrograms skips the test if a probe fails.
func needPrograms(t *testing.T, probes []probe) {
	t.Helper()
	for _, p := range probes {
		need.Program(t, p.name, p.try(t))
	}
}

// beside is isolated for a test that mostly waits. All such tests run in parallel, after the
// others.
func beside(t *testing.T, body func(*testing.T), probes ...probe) {
	if os.Getenv(isolatedEnv) != t.Name() {
		t.Parallel()
	}
	isolated(t, body, probes...)
}

// isolated runs body in new namespaces if all probes succeed.
func isolated(t *testing.T, body func(*testing.T), probes ...probe) {
	if os.Getenv(isolatedEnv) == t.Name() {
		need.NoError(t, enterIsolation())
		body(t)
		return
	}
	user := newLabUser(t)
	user.need("root", "tun", "vxlan", "nft")
	needPrograms(t, append([]probe{programs("iproute2", "ip"), programs("shell", shell...)}, probes...))
	// The kernel kills the new process when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	limit := 8 * time.Minute // in case it hangs
	if os.Getenv(longEnv) != "" {
		limit = 15 * time.Minute
	}
	limit += attackLength()
	cmd := need.Self("-test.v", "-test.timeout="+limit.String(), fmt.Sprintf("-test.parallel=%d", faultsAtOnce),
		"-test.run=^"+regexp.QuoteMeta(t.Name())+"$")
	cmd.Env = append(os.Environ(), need.Asked(t), isolatedEnv+"="+t.Name(), binaryEnv+"="+user.binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  unix.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	t.Logf("in its own namespaces:\n%s", out)
	if err != nil {
		t.Fatalf("in its own namespaces: %v\n%s", err, lastWords(out))
	}
}

// programOutput begins what a test logs of a program that it ran.
const programOutput = "output of "

var testLine = regexp.MustCompile(`(?m)^(panic|fatal error| +\w+_test\.go:\d+): .*`)

// lastWords returns the last lines that a failed test itself has logged. The output of its programs
// follows them, of which there is often so much that a reader of CI's log never sees what failed.
func lastWords(out []byte) []byte {
	lines := slices.DeleteFunc(testLine.FindAll(out, -1), func(l []byte) bool {
		return bytes.Contains(l, []byte(": "+programOutput))
	})
	return bytes.Join(lines[max(0, len(lines)-9):], []byte("\n"))
}

// enterIsolation prepares the namespaces of this process.
func enterIsolation() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// Programs that use /run/netns and /var/run/wireguard then find only ours.
	if err := unix.Mount("run", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	const tmp, uapi = "/run/tmp", "/run/wireguard"
	return errors.Join(fresh.Network(), os.Mkdir("/run/netns", 0o755), os.Mkdir(tmp, 0o755), os.Setenv("TMPDIR", tmp),
		os.Mkdir(uapi, 0o700), os.Chown(uapi, unprivilegedUID, unprivilegedUID))
}

// cacheDir returns a folder among the system's temporary files that belongs to this user and
// survives the tests.
func cacheDir(name string) (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("%s-%d", name, os.Getuid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; !info.IsDir() || int(owner) != os.Getuid() {
		return "", fmt.Errorf("%s is not a folder of this user; remove it", dir)
	}
	return dir, nil
}
