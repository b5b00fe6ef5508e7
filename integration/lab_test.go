package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"culvert/integration/lab/check"
	"culvert/integration/need"
)

// culvertBinary builds the culvert under test, and culvert-lab beside it, once. They are static, so
// that they run in a guest too. Each checkout has its own.
var culvertBinary = sync.OnceValues(func() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("culvert-lab-binary-%d-%08x", os.Getuid(),
		crc32.ChecksumIEEE([]byte(here))))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
		return "", fmt.Errorf("%s is not a folder of this user; remove it", dir)
	}
	build := need.Go("build", "-trimpath", "-tags=nethttpomithttp2", "-ldflags=-s -w", "-o", dir+"/", "culvert/cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build culvert: %w\n%s", err, out)
	}
	return filepath.Join(dir, "culvert"), nil
})

// A labUser is a user who runs labs, with a runtime directory of its own.
type labUser struct {
	t          *testing.T
	binary     string
	runtime    string
	credential *syscall.Credential
}

// shell are the programs that tests start in hosts besides those that they name.
var shell = []string{"sh", "cat", "env", "true"}

// newLabUser returns the user of this process.
func newLabUser(t *testing.T) *labUser {
	t.Helper()
	binary, err := culvertBinary()
	need.NoError(t, err)
	// The path must be short: sockets are in it, whose paths have at most 107 bytes.
	runtime, err := os.MkdirTemp("", "lab")
	need.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(runtime) })
	return &labUser{t: t, binary: binary, runtime: runtime}
}

// ordinary returns a user who is not root; u itself if that is not root.
func (u *labUser) ordinary() *labUser {
	u.t.Helper()
	if os.Getuid() != 0 {
		return u
	}
	const nobody = 65532
	if err := os.Chown(u.runtime, nobody, nobody); err != nil {
		u.t.Fatal(err)
	}
	other := *u
	other.credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	return &other
}

// command prepares culvert-lab with the given arguments.
func (u *labUser) command(args ...string) *exec.Cmd {
	if len(args) > 3 && args[0] == "exec" {
		program := args[2]
		if program == "--" {
			program = args[3]
		}
		need.Command(u.t, program) // a program that a lab's host executes must be requested like any other
	}
	return u.program(labBinary(u.binary), args...)
}

// start starts culvert-lab with the given arguments, and returns its standard output and standard
// error.
func (u *labUser) start(args ...string) (cmd *exec.Cmd, out io.Reader, diag *bytes.Buffer) {
	cmd, diag = u.command(args...), &bytes.Buffer{}
	cmd.Stderr = diag
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		u.t.Fatal(err)
	}
	return cmd, out, diag
}

// labBinary is the culvert-lab beside a culvert.
func labBinary(culvert string) string { return filepath.Join(filepath.Dir(culvert), "culvert-lab") }

// program prepares a program with the given arguments.
func (u *labUser) program(file string, args ...string) *exec.Cmd {
	cmd := need.Command(u.t, file, args...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+u.runtime)
	cmd.Dir = u.runtime
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: u.credential}
	return cmd
}

// run runs culvert-lab and returns everything it printed and its exit status.
func (u *labUser) run(args ...string) (output string, status int) {
	u.t.Helper()
	out, err := u.command(args...).CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		u.t.Fatal(err)
	} else if err != nil {
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}

// expect runs culvert-lab and checks its exit status and that its output contains want.
func (u *labUser) expect(wantStatus int, want string, args ...string) {
	u.t.Helper()
	out, status := u.run(args...)
	if status != wantStatus || !strings.Contains(out, want) {
		u.t.Errorf("lab %v: status %d, want %d with %q:\n%s", args, status, wantStatus, want, out)
	}
}

// A probeAnswer is what culvert-lab probe says for this user.
type probeAnswer struct {
	Name, Answer, Reason string
}

// need skips the test if a lab of this user lacks one of the named things.
func (u *labUser) need(names ...string) {
	u.t.Helper()
	out, status := u.run("probe", "-o", "json")
	var answers []probeAnswer
	if err := json.Unmarshal([]byte(out), &answers); err != nil {
		// Even the namespaces in which the probes run cannot be made.
		for _, name := range names {
			answers = append(answers, probeAnswer{name, "refused here", fmt.Sprintf("status %d: %s", status,
				strings.TrimSpace(out))})
		}
	}
	for _, a := range answers {
		if !slices.Contains(names, a.Name) || a.Answer == "yes" {
			continue
		}
		err := fmt.Errorf("%s: %s", a.Answer, a.Reason)
		if a.Answer == "kernel cannot" {
			err = fmt.Errorf("%w: %s", errors.ErrUnsupported, a.Reason)
		}
		need.Kernel(u.t, a.Name, err)
	}
}

// check runs culvert-lab check; each of its checks must pass.
func (u *labUser) check(atLeast int, args ...string) {
	count, err := u.results(func(t *testing.T, r *check.Result) {
		if !r.OK {
			t.Errorf("%s: %s", r.Lab, r.Error)
		} else {
			t.Log(r.Figure)
		}
	}, args...)
	if err != nil {
		u.t.Errorf("lab check: %v", err)
		u.logs()
	}
	if count < atLeast {
		u.t.Errorf("%d checks, want %d or more", count, atLeast)
	}
}

// results runs culvert-lab check and judges each of its checks in a subtest. The error is that of
// the command.
func (u *labUser) results(judge func(*testing.T, *check.Result), args ...string) (count int, err error) {
	t := u.t
	cmd, out, stderr := u.start(append([]string{"check", "-o", "json"}, args...)...)
	for decoder := json.NewDecoder(out); ; count++ {
		var r check.Result
		if err := decoder.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			cmd.Process.Kill()
			t.Fatal(err)
		}
		t.Run(r.Check+" "+r.Path, func(t *testing.T) { judge(t, &r) })
	}
	if err := cmd.Wait(); err != nil {
		return count, fmt.Errorf("%w\n%s", err, stderr)
	}
	return count, nil
}

// logs shows the logs of processes of failed labs.
func (u *labUser) logs() {
	files, _ := filepath.Glob(filepath.Join(u.runtime, "culvert/lab/*/lab*/logs/*.log"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		u.t.Logf("%s (%v):\n%s", f, err, text)
	}
}

// TestLab checks labs with IPv4 in each mode of nodes, in VXLAN mode also with invalid files.
func TestLab(t *testing.T) {
	t.Parallel()
	for mode, offloads := range map[string]string{"vxlan": "on", "tun": "off", "geneve": "on"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			u := newLabUser(t)
			u.need(mode)
			u.check(45, "ipv4", "--mode", mode, "--offloads", offloads)
			u.requireNothingLeft()
		})
	}
}

// TestLabIPv6 runs the checks over IPv6, between pods that use it and through tunnels over it.
func TestLabIPv6(t *testing.T) {
	t.Parallel()
	u := newLabUser(t)
	u.need("vxlan", "ipv6")
	u.check(80, "v6-inside", "--mode", "vxlan", "--offloads", "on")
	u.check(35, "v6-outside", "--mode", "vxlan", "--brief")
	u.requireNothingLeft()
}

// TestLabRestart restarts gateways beside connections; under CULVERT_LONG it also kills them.
func TestLabRestart(t *testing.T) {
	t.Parallel()
	u := newLabUser(t)
	u.need("vxlan")
	least, args := 5, []string{"restart", "--mode", "vxlan", "--offloads", "on"}
	if os.Getenv(longEnv) == "" {
		args = append(args, "--brief")
	} else {
		least = 9
	}
	u.check(least, args...)
	u.requireNothingLeft()
}

// TestLongLab is TestLab and TestLabIPv6 in all modes, without shortcuts, with attacks and bad
// files, as root and as an ordinary user.
func TestLongLab(t *testing.T) {
	need.Long(t, "every lab in every mode")
	for _, u := range []*labUser{newLabUser(t), newLabUser(t).ordinary()} {
		for _, mode := range []string{"geneve", "vxlan", "tun"} {
			for _, offloads := range []string{"on", "off"} {
				t.Run(mode+"/"+offloads, func(t *testing.T) {
					u := *u
					u.t = t
					u.need(mode, "ipv6")
					u.check(290, "ipv4", "dual", "attacks", "v6-inside", "v6-outside", "--mode", mode,
						"--offloads", offloads)
					u.requireNothingLeft()
				})
			}
		}
	}
}

// TestLabOrdinaryUser and TestLabAttacks run what make demo runs, as a user who is not root, where
// /dev/net/tun may be closed.
func TestLabOrdinaryUser(t *testing.T) { checkShort(t, 120, "ipv4", "dual", "restart") }

func TestLabAttacks(t *testing.T) { checkShort(t, 20, "attacks") }

func checkShort(t *testing.T, atLeast int, kinds ...string) {
	t.Parallel()
	u := newLabUser(t).ordinary()
	u.need("vxlan")
	u.check(atLeast, append(kinds, "--mode", "vxlan", "--brief")...)
	u.requireNothingLeft()
}

func TestLabUpExecDown(t *testing.T) {
	need.Programs(t, "shell", shell...)
	u := newLabUser(t).ordinary()
	u.need("vxlan")
	before := hostLinks(t)
	expect := u.expect
	expect(1, "none is up", "status")
	expect(2, "none is up", "exec", "rome/pod1", "--", "true")
	expect(0, "no lab", "down")
	expect(0, "milan/pod2", "up", "--mode", "vxlan")
	expect(2, "there is one up already", "up")
	expect(0, "10.61.130.7", "status")
	expect(7, "", "exec", "rome/pod1", "--", "sh", "-c", "exit 7")
	expect(7, "", "exec", "rome/pod1", "sh", "-c", "exit 7")
	expect(2, `no host "rome/pod3"`, "exec", "rome/pod3", "--", "true")
	expect(2, "executable file not found", "exec", "rome/pod1", "--", "no-such-program")
	// The pod has only its own link: one line for that, one for lo, two of heading.
	expect(0, "4\n", "exec", "milan/pod1", "--", "sh", "-c", "wc -l </proc/net/dev")
	expect(128+int(syscall.SIGKILL), "", "exec", "rome/client", "--", "sh", "-c", "kill -9 $$")
	expect(0, "up: gone", "down")
	expect(0, "no lab", "down")
	if after := hostLinks(t); !slices.Equal(before, after) {
		t.Errorf("links of this machine %v, before %v", after, before)
	}
	u.requireNothingLeft()
}

// TestLabKilled kills a process in the middle of a check, which then cannot clean up. lab down must
// leave nothing.
func TestLabKilled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		victim func(u *labUser, command int) int
	}{
		{"the command", func(_ *labUser, command int) int { return command }},
		{"the holder", func(u *labUser, _ int) int { return u.holder() }},
		{"a gateway", func(u *labUser, _ int) int { return u.process("gateway") }},
		{"a node", func(u *labUser, _ int) int { return u.process("node") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			u := newLabUser(t).ordinary()
			u.need("vxlan")
			before := hostLinks(t)
			cmd, out, _ := u.start("check", "--mode", "vxlan", "--offloads", "off")
			lines := bufio.NewScanner(out)
			for lines.Scan() && !strings.HasPrefix(lines.Text(), "ok   udp trains") { // a TCP stream is next
			}
			victim := test.victim(u, cmd.Process.Pid)
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatalf("kill process %d: %v", victim, err)
			}
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "FAIL") { // more labs would follow
					cmd.Process.Signal(os.Interrupt)
				}
			}
			if err := cmd.Wait(); err == nil {
				t.Error("lab check passed")
			}
			if _, status := u.run("down"); status != 0 {
				t.Error("lab down: status", status)
			}
			u.requireNothingLeft()
			if after := hostLinks(t); !slices.Equal(before, after) {
				t.Errorf("links of this machine %v, before %v", after, before)
			}
		})
	}
}

// TestLabInterrupted interrupts a check as Ctrl-C does.
func TestLabInterrupted(t *testing.T) {
	t.Parallel()
	u := newLabUser(t).ordinary()
	u.need("vxlan")
	cmd, out, _ := u.start("check", "--mode", "vxlan", "--offloads", "off")
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "ok   udp trains") {
	}
	began := time.Now()
	need.NoError(t, cmd.Process.Signal(os.Interrupt))
	rest, err := io.ReadAll(out)
	need.NoError(t, err)
	if err := cmd.Wait(); err == nil {
		t.Errorf("lab check passed:\n%s", rest)
	}
	if elapsed := time.Since(began); elapsed > 15*time.Second {
		t.Error("ended after", elapsed)
	}
	if _, status := u.run("down"); status != 0 {
		t.Error("lab down: status", status)
	}
	u.requireNothingLeft()
}
