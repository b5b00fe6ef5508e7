package integration

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// up starts a lab, which is stopped at the end of the test at the latest.
func (u *labUser) up() {
	u.t.Helper()
	need.Programs(u.t, "shell", shell...)
	u.need("vxlan")
	u.t.Cleanup(func() { u.run("down") })
	u.expect(0, "milan/pod2", "up", "--mode", "vxlan")
}

// TestLabNames: hosts of the lab know their own names and each other's. This machine keeps its
// name, and its own names of other hosts.
func TestLabNames(t *testing.T) {
	u := newLabUser(t).ordinary()
	about := func() string {
		name, err := os.Hostname()
		hosts, err2 := os.ReadFile("/etc/hosts")
		need.NoError(t, errors.Join(err, err2))
		return name + "\n" + string(hosts)
	}
	before := about()
	u.up()
	u.expect(0, "rome-pod1\n", "exec", "rome/pod1", "--", "cat", "/proc/sys/kernel/hostname")
	u.expect(0, "milan-gateway\n", "exec", "milan/gateway", "--", "cat", "/proc/sys/kernel/hostname")
	u.expect(0, "\n10.61.1.5 milan/pod1 milan-pod1\n", "exec", "rome/pod1", "--", "cat", "/etc/hosts")
	u.expect(0, "\n10.0.1.5 milan/pod1 milan-pod1\n", "exec", "milan/pod2", "--", "cat", "/etc/hosts")
	u.expect(0, "rome/pod1# ", "exec", "rome/pod1", "--", "sh", "-c", `echo "$PS1"`)
	if after := about(); after != before {
		t.Errorf("this machine is %s, was %s", after, before)
	}
	u.expect(0, "gone", "down")
	u.requireNothingLeft()
}

// TestLabTerminal: a shell in a host controls its terminal: it prompts, and Ctrl-C stops the
// command in it, not the shell.
func TestLabTerminal(t *testing.T) {
	u := newLabUser(t).ordinary()
	u.up()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	need.NoError(t, err)
	master := os.NewFile(uintptr(fd), "ptmx")
	defer master.Close()
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = master.SetReadDeadline(time.Now().Add(startTimeout))
	}
	need.NoError(t, err)
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	need.NoError(t, err)
	cooked, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	need.NoError(t, err)
	cmd := u.command("exec", "rome/pod1", "--", "sh")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	need.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	screen := bufio.NewReader(master)
	var all strings.Builder
	expect := func(text string) {
		t.Helper()
		for seen := ""; !strings.HasSuffix(seen, text); {
			b, err := screen.ReadByte()
			if err != nil {
				t.Fatalf("no %q on the screen (%v):\n%s", text, err, all.String())
			}
			seen += string(b)
			all.WriteByte(b)
		}
	}
	for _, step := range []struct{ typed, want string }{
		{"", "rome/pod1# "},
		{"tty\n", "/dev/pts/"}, {"", "rome/pod1# "},
		{"sh -c 'echo be\"\"gin; exec sleep 1000'\n", "\nbegin"}, // the typed text is echoed too, but with its quotes
		{"\x03", "rome/pod1# "},
		{"echo st'ill' $?\n", "\nstill 130"}, {"", "rome/pod1# "},
		{"exit 7\n", "exit 7"},
	} {
		if _, err := io.WriteString(master, step.typed); err != nil {
			t.Fatal(err)
		}
		expect(step.want)
	}
	go io.Copy(io.Discard, screen)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("%v, want exit status 7", err)
	}
	if after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || *after != *cooked {
		t.Errorf("the terminal is left in mode %+v (%v), was %+v", after, err, cooked)
	}
	slave.Close()
	u.expect(0, "gone", "down")
	u.requireNothingLeft()
}

// TestLabAnswersAfterKill kills processes of a running lab, one kind after the other. Each command
// must report that and continue to work.
func TestLabAnswersAfterKill(t *testing.T) {
	u := newLabUser(t).ordinary()
	u.up()
	kill := func(pid int) {
		t.Helper()
		proc := fmt.Sprintf("/proc/%d", pid)
		// A holder's parent may never reap it: a zombie without threads has ended, with its
		// sockets.
		holder := pid == u.holder()
		need.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		// A process that has ended exists until its parent has reaped it.
		await(t, fmt.Sprint("process ", pid, " ends"), func() bool {
			stat, err := os.ReadFile(proc + "/stat")
			threads, _ := os.ReadDir(proc + "/task")
			return err != nil || holder && len(threads) == 1 && bytes.Contains(stat, []byte(") Z "))
		})
	}
	for _, host := range []string{"rome/gateway", "milan/node2"} {
		cluster, name, _ := strings.Cut(host, "/")
		kill(u.find(filepath.Join(cluster, name+".yaml")))
		u.expect(0, "signal: killed; culvert-lab restart "+host, "status")
		u.expect(0, "", "exec", host, "--", "true")
		u.expect(0, host+": restarted", "restart", host)
		if out, _ := u.run("status"); strings.Contains(out, "killed") {
			t.Error("after lab restart", host, "\n", out)
		}
	}
	const dead = "its first process was killed, and all others ended with it"
	kill(u.holder())
	u.expect(1, dead, "status")
	u.expect(1, dead, "break", "node-off")
	u.expect(2, dead, "exec", "rome/pod1", "--", "true")
	u.expect(0, "removed what was left of a lab that was killed", "up", "--mode", "vxlan")
	u.expect(0, "running", "status")
	kill(u.holder())
	u.expect(0, "up: gone", "down")
	u.expect(1, "none is up; start one", "status")
	u.requireNothingLeft()
}

// TestLabUpOnce starts several labs at the same time: exactly one is up.
func TestLabUpOnce(t *testing.T) {
	u := newLabUser(t).ordinary()
	u.need("vxlan")
	t.Cleanup(func() { u.run("down") })
	answers := make(chan string)
	const commands = 4
	for range commands {
		go func() {
			cmd := u.command("up", "--mode", "vxlan")
			out, err := cmd.CombinedOutput()
			if err == nil {
				out = []byte("up")
			}
			answers <- string(out)
		}()
	}
	up := 0
	for range commands {
		switch answer := <-answers; {
		case answer == "up":
			up++
		case !strings.Contains(answer, "there is one up already") && !strings.Contains(answer,
			"another command is starting one"):
			t.Error(answer)
		}
	}
	if up != 1 {
		t.Errorf("%d labs are up, want 1", up)
	}
	u.expect(0, "running", "status")
	u.expect(0, "up: gone", "down")
	u.requireNothingLeft()
}

// TestLabInterruptedAnyTime interrupts commands at several moments, as Ctrl-C does.
func TestLabInterruptedAnyTime(t *testing.T) {
	t.Parallel()
	folder := func(u *labUser, _ io.Reader) {
		for files := []string(nil); len(files) == 0; {
			files, _ = filepath.Glob(filepath.Join(u.runtime, "culvert/lab/*/state.json"))
		}
	}
	after := func(text string) func(*labUser, io.Reader) {
		return func(_ *labUser, out io.Reader) {
			lines := bufio.NewScanner(out)
			for lines.Scan() && !strings.Contains(lines.Text(), text) {
			}
		}
	}
	for _, test := range []struct {
		name   string
		moment func(u *labUser, out io.Reader)
		args   []string
	}{
		{"check begins", folder, []string{"check", "--mode", "vxlan", "--offloads", "on"}},
		{"a lab is being built", after("nodes vxlan"), []string{"check", "--mode", "vxlan", "--offloads", "on"}},
		{"a stream goes", after("ok   udp trains"), []string{"check", "--mode", "vxlan", "--offloads", "on"}},
		{"the second lab is being built", after("mtu 1340 and 1280"), []string{"check", "--mode", "vxlan",
			"--offloads", "on"}},
		{"brief", after("milan"), []string{"check", "--brief", "--mode", "vxlan", "--offloads", "on"}},
		{"a fault is made", after("wrong-key-milan"), []string{"check", "--faults", "--mode", "vxlan",
			"--offloads", "on"}},
		{"up begins", folder, []string{"up", "--mode", "vxlan"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			u := newLabUser(t).ordinary()
			u.need("vxlan")
			cmd, out, stderr := u.start(test.args...)
			test.moment(u, out)
			need.NoError(t, cmd.Process.Signal(os.Interrupt))
			rest, err := io.ReadAll(out)
			need.NoError(t, err)
			err = cmd.Wait()
			if exit := new(exec.ExitError); err == nil && test.args[0] == "up" {
				u.expect(0, "up: gone", "down") // up was faster
			} else if !errors.As(err, &exit) || exit.ExitCode() != 1 ||
				stderr.String() != "culvert-lab: interrupted; nothing of the lab is left\n" {
				t.Errorf("%v: %q, want a clean word and exit status 1", err, stderr)
			}
			if strings.Contains(string(rest), "FAIL") {
				t.Errorf("after the interrupt:\n%s", rest)
			}
			u.requireNothingLeft()
		})
	}
}
