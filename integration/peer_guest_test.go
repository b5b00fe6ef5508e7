package integration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// The scripts that build and run a guest with its own kernel are in a folder beside the repository.
const (
	guestScripts = "../../shared/peers"
	buildGuest   = "build-kernel-guest.sh"
	driveGuest   = "kernel-guest.sh"
)

// probeGuest builds the guest unless that has been done.
var probeGuest = probe{"guest", func(t testing.TB) error {
	err := programs("guest", "sh", "bash", "qemu-system-x86_64", "socat", "busybox", "cpio", "wg", "nft",
		"ping", "tc").try(t)
	if err != nil {
		return err
	}
	var scripts []byte
	for _, name := range []string{buildGuest, driveGuest} {
		text, err := os.ReadFile(filepath.Join(guestScripts, name))
		if err != nil {
			return err
		}
		scripts = append(scripts, text...)
	}
	dir, err := cacheDir(fmt.Sprintf("culvert-kernel-guest-%x", sha256.Sum256(scripts))[:32])
	if err != nil {
		return err
	}
	// Tests run side by side, in processes of their own: one builds, the others wait.
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	built := filepath.Join(dir, "built")
	if _, err := os.Stat(built); errors.Is(err, os.ErrNotExist) {
		out, err := need.Command(t, "sh", filepath.Join(guestScripts, buildGuest), dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", buildGuest, err, out)
		}
		if err := os.WriteFile(built, nil, 0o644); err != nil {
			return err
		}
	}
	return os.Setenv(guestEnv, dir)
}}

// A guest is a virtual machine with another kernel than the host's. Its data link is eth0 inside
// and "guest" outside.
type guest struct {
	t    *testing.T
	host *peerHost // at the other end of its links
	dir  string    // of its files
}

// startGuest boots a guest whose eth0 has the given address. The other end of that link is in host,
// with hostAddress if that is not empty. The guest has culvert in its PATH.
func startGuest(host *peerHost, address, hostAddress string) *guest {
	t := host.t
	t.Helper()
	g := &guest{t: t, host: host, dir: t.TempDir()}
	kernel, err := filepath.Abs(filepath.Join(os.Getenv(guestEnv), "vmlinux"))
	need.NoError(t, err)
	need.NoError(t, os.Symlink(kernel, filepath.Join(g.dir, "vmlinux")))
	// The kernel unpacks one archive after the other.
	initrd := filepath.Join(g.dir, "initrd.img")
	script := `cat "$1" >"$2" && mkdir -p sbin && cp "$3" sbin/culvert && echo sbin/culvert | cpio -o -H newc --quiet >>"$2"`
	cmd := need.Command(t, "sh", "-euc", script, "sh", filepath.Join(os.Getenv(guestEnv), "initrd.img"), initrd,
		os.Getenv(binaryEnv))
	cmd.Dir = g.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("guest: %v\n%s", err, out)
	}
	args := []string{"guest", g.dir, host.name, host.family.of(address)}
	if hostAddress != "" {
		args = append(args, "hostaddr="+host.family.of(hostAddress))
	}
	t.Cleanup(func() { g.drive("stop", "guest") })
	for attempt := 1; ; attempt++ {
		began := time.Now()
		out, err := g.drive(append([]string{"start"}, args...)...)
		if err == nil {
			t.Logf("guest after %v: %s", time.Since(began).Round(time.Millisecond), out)
			return g
		}
		// An emulated timer sometimes makes a boot fail; that is not culvert's fault.
		console, _ := os.ReadFile("/run/kernel-guest/guest/console")
		t.Logf("guest: attempt %d: %v\n%s", attempt, err, console)
		g.drive("stop", "guest")
		if attempt == 2 {
			t.Fatal("the guest does not start")
		}
	}
}

// drive runs the script that runs guests.
func (g *guest) drive(args ...string) (string, error) {
	out, err := need.Command(g.t, "bash", append([]string{filepath.Join(guestScripts, driveGuest)}, args...)...).
		CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", driveGuest, args[0], err, out)
	}
	return string(out), nil
}

// sh runs shell commands inside the guest, each of which must succeed, and returns their output.
func (g *guest) sh(lines ...string) string {
	g.t.Helper()
	out, err := g.trySh(lines...)
	need.NoError(g.t, err)
	return out
}

// guestTimeout limits the time of sh. An emulated machine is slow.
const guestTimeout = 3 * time.Minute

// trySh is sh for commands that may fail. It talks to the guest's shell directly: the script's exec
// waits for the guest's socat, which sometimes does not end when the shell does.
func (g *guest) trySh(lines ...string) (string, error) {
	port, err := os.ReadFile("/run/kernel-guest/guest/port")
	if err != nil {
		return "", err
	}
	conn, err := g.host.dial("tcp4", net.JoinHostPort("127.0.0.1", strings.TrimSpace(string(port))))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(guestTimeout))
	text := g.host.family.of(strings.Join(lines, "\n"))
	if _, err := fmt.Fprintf(conn, "(\nset -e\n%s\n) </dev/null\nprintf '\\n@status=%%d@' $?\nexit\n",
		text); err != nil {
		return "", err
	}
	var out strings.Builder
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		out.Write(buffer[:n])
		if said, status, ok := strings.Cut(out.String(), "\n@status="); ok && strings.HasSuffix(status, "@") {
			if status != "0@" {
				return "", fmt.Errorf("guest: status %s\n%s\n%s", strings.TrimSuffix(status, "@"), text, said)
			}
			return said, nil
		}
		if err != nil {
			return "", fmt.Errorf("guest: %w\n%s\n%s", err, text, out.String())
		}
	}
}

// write makes a file inside the guest.
func (g *guest) write(name, text string) {
	g.t.Helper()
	g.sh("cat >"+name+" <<'END-OF-FILE'", text, "END-OF-FILE")
}

// pod makes a network namespace inside the guest: a pod behind the guest's kernel, with an echo
// server.
func (g *guest) pod(mtu int) {
	g.t.Helper()
	g.sh(
		"ip netns add pod",
		fmt.Sprintf("ip link add pod mtu %d type veth peer name eth0 mtu %[1]d netns pod", mtu),
		"ip addr add 10.0.1.1/24 dev pod; ip link set pod up",
		"ip -n pod addr add "+podAddress+"/24 dev eth0; ip -n pod link set eth0 up; ip -n pod link set lo up",
		"ip -n pod route add default via 10.0.1.1",
		"echo 1 >/proc/sys/net/ipv4/ip_forward",
		"echo 1 >/proc/sys/net/ipv6/conf/all/forwarding",
		"ip netns exec pod socat TCP6-LISTEN:"+exchangePort+
			",fork,reuseaddr,ipv6only=0 EXEC:cat,nofork >/dev/null 2>&1 &",
	)
}

// ping pings from the guest's pod as pingThrough does.
func (g *guest) ping(to string) {
	g.t.Helper()
	g.sh(
		"n=0; until ip netns exec pod ping -c 1 -W 1 "+to+" >/dev/null; do n=$((n+1)); [ $n -lt 20 ]; done",
		"for size in "+strings.Trim(fmt.Sprint(pingSizes), "[]")+
			"; do ip netns exec pod ping -q -c 3 -i 0.05 -W 2 -s $size "+to+"; done",
	)
}

// exchange sends random bytes over TCP from the guest's pod, and then back; both ends compare
// SHA-256 sums.
func (g *guest) exchange(server *peerHost, dial, source string, size int) {
	t := g.t
	t.Helper()
	l, err := server.listen("tcp", net.JoinHostPort(podAddress, exchangePort))
	need.NoError(t, err)
	defer l.Close()
	seed := rand.Uint64()
	type result struct {
		from          string
		received      int64
		got, answered []byte
		up, down      time.Duration
		err           error
	}
	served := make(chan result, 1)
	go func() {
		var r result
		defer func() { served <- r }()
		conn, err := l.Accept()
		if err != nil {
			r.err = err
			return
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(exchangeTimeout))
		r.from, _, _ = net.SplitHostPort(conn.RemoteAddr().String())
		began, got, answered := time.Now(), sha256.New(), sha256.New()
		if r.received, r.err = io.Copy(got, conn); r.err != nil {
			return
		}
		r.up = time.Since(began)
		answer := io.TeeReader(io.LimitReader(randomBytes(seed), int64(size)), answered)
		if _, r.err = io.Copy(conn, answer); r.err != nil {
			return
		}
		if r.err = conn.(*net.TCPConn).CloseWrite(); r.err != nil {
			return
		}
		_, r.err = conn.Read(make([]byte, 1)) // everything is acknowledged when the other end closes
		if errors.Is(r.err, io.EOF) {
			r.err = nil
		}
		r.down = time.Since(began) - r.up
		r.got, r.answered = got.Sum(nil), answered.Sum(nil)
	}()
	out := g.sh(
		fmt.Sprintf("head -c %d /dev/urandom >/tmp/sent", size),
		"sha256sum </tmp/sent",
		fmt.Sprintf("ip netns exec pod socat -t 60 - TCP:%s:%s </tmp/sent | sha256sum", dial, exchangePort),
	)
	r := <-served
	sums := strings.Fields(strings.ReplaceAll(out, "-", ""))
	switch {
	case r.err != nil:
		t.Errorf("TCP guest → %s: %v (seed %d)", server.name, r.err, seed)
	case r.from != server.family.of(source):
		t.Errorf("TCP guest → %s: connection came from %s, want %s", server.name, r.from, server.family.of(source))
	case len(sums) != 2 || fmt.Sprintf("%x", r.got) != sums[0] || fmt.Sprintf("%x", r.answered) != sums[1]:
		t.Errorf("TCP guest → %s: %d bytes arrived; SHA-256 %x and %x at the server, %q in the guest (seed %d)",
			server.name, r.received, r.got, r.answered, sums, seed)
	default:
		rate := func(d time.Duration) float64 { return float64(8*size) / d.Seconds() / 1e6 }
		t.Logf("TCP guest → %s and back: %d bytes each way, SHA-256 equal, %.0f and %.0f Mbit/s", server.name, size,
			rate(r.up), rate(r.down))
	}
}

// echo sends random bytes from a host to the guest's pod, which sends them back.
func (g *guest) echo(from *peerHost, dial string, size int) {
	t := g.t
	t.Helper()
	seed := rand.Uint64()
	conn, err := from.dial("tcp", net.JoinHostPort(dial, exchangePort))
	need.NoError(t, err)
	began := time.Now()
	if err := (exchange{bytes: size}).swap(conn, seed, seed); err != nil {
		t.Errorf("TCP %s → guest: %v (seed %d)", from.name, err, seed)
		return
	}
	t.Logf("TCP %s → guest and back at once: %d bytes, SHA-256 equal, %.0f Mbit/s each way", from.name, size,
		float64(8*size)/time.Since(began).Seconds()/1e6)
}
