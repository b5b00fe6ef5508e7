package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/integration/need"
)

// newServiceManager is what NOTIFY_SOCKET names; it tells what it is told.
func newServiceManager(t *testing.T, name string) (told chan string) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	need.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	told = make(chan string, 16)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			told <- string(buffer[:n])
		}
	}()
	return told
}

func hear(t *testing.T, told chan string, log logFile) string {
	t.Helper()
	select {
	case text := <-told:
		return text
	case <-time.After(20 * time.Second):
		t.Fatalf("the service manager is told nothing:\n%s", log)
	}
	return ""
}

// install puts a copy of this program at a path, in the place of what is there.
func install(t *testing.T, path string) {
	t.Helper()
	from, err := os.Open(os.Args[0])
	need.NoError(t, err)
	defer from.Close()
	to, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	need.NoError(t, err)
	_, err = io.Copy(to, from)
	if closeErr := to.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	need.NoError(t, err)
}

// A replaceable gateway is a process that SIGUSR2 has replaced.
type replaceable struct {
	*exec.Cmd
	t                    *testing.T
	dir, program, socket string
	log                  logFile
	told                 chan string // to the service manager
}

// newReplaceable starts one. It runs when it has told so.
func newReplaceable(t *testing.T) *replaceable {
	t.Helper()
	return newReplaceableAfter(t, func(string) {})
}

// newReplaceableAfter starts one after something was done to its folder.
func newReplaceableAfter(t *testing.T, before func(dir string)) *replaceable {
	t.Helper()
	r := &replaceable{t: t}
	r.dir, _ = folder(t)
	r.program, r.socket = filepath.Join(r.dir, "culvert"), filepath.Join(r.dir, "rome.sock")
	edit(t, r.dir, `metrics: ""`, "metrics: \"\"\ncontrol: "+r.socket+"\nstate: "+filepath.Join(r.dir, "state"))
	install(t, r.program)
	before(r.dir)
	name := "@culvert-test-" + strconv.Itoa(os.Getpid()) + t.Name()
	r.told = newServiceManager(t, name)
	r.Cmd = culvert("gateway", "--config", filepath.Join(r.dir, "gateway.yaml"))
	r.Path, r.Args[0] = r.program, r.program
	r.Env = append(r.Env, "NOTIFY_SOCKET="+name)
	file, err := os.Create(filepath.Join(r.dir, "log"))
	need.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	r.log, r.Stderr = logFile{file}, file
	need.NoError(t, r.Start())
	t.Cleanup(func() {
		r.Process.Kill()
		r.Wait() // or it has been waited for
	})
	return r
}

// hears wants the service manager to be told something that begins so, and returns the rest.
func (r *replaceable) hears(begins string) string {
	r.t.Helper()
	said := hear(r.t, r.told, r.log)
	rest, ok := strings.CutPrefix(said, begins)
	if !ok {
		r.t.Fatalf("the service manager is told %q, want %q\n%s", said, begins, r.log)
	}
	return rest
}

func (r *replaceable) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// says waits until a text is in the log, count times.
func (r *replaceable) says(text string, count int) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("%q in the log", text), func() bool { return strings.Count(r.log.String(), text) >= count },
		r.log)
}

// serves wants a gateway to answer.
func (r *replaceable) serves() {
	r.t.Helper()
	if s, err := control.NewClient(r.socket).Status(r.t.Context()); err != nil || s.Peer != "milan" {
		r.t.Fatalf("%v, %v\n%s", s, err, r.log)
	}
}

// replaced wants the process that the service manager has been told of to be another one, and this
// one to have ended. It returns that.
func (r *replaceable) replaced() (next int) {
	r.t.Helper()
	r.hears("READY=1")
	next, err := strconv.Atoi(r.hears("MAINPID="))
	if err != nil || next == r.Process.Pid {
		r.t.Fatalf("process %d: %v\n%s", next, err, r.log)
	}
	r.t.Cleanup(func() { syscall.Kill(next, syscall.SIGKILL) })
	if err := r.Wait(); err != nil {
		r.t.Fatalf("the process before: %v\n%s", err, r.log)
	}
	r.serves()
	return next
}

// refuted wants a process that cannot open its sockets to leave the gateway alone that runs,
// whichever process that is.
func (r *replaceable) refuted() {
	r.t.Helper()
	taken, err := net.ListenUDP("udp", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer taken.Close()
	text, err := os.ReadFile(filepath.Join(r.dir, "gateway.yaml"))
	if err != nil {
		r.t.Fatal(err)
	}
	port := fmt.Sprintf("listenPort: %d", taken.LocalAddr().(*net.UDPAddr).Port)
	file := filepath.Join(r.dir, "taken.yaml")
	if err := os.WriteFile(file, regexp.MustCompile(`listenPort: \d+`).ReplaceAll(text, []byte(port)),
		0o600); err != nil {
		r.t.Fatal(err)
	}
	var said string
	var status int
	until(r.t, "the end of the hand-over before", func() bool {
		_, said, status = run(r.t, "gateway", "--config", file, "--takeover="+r.socket)
		return !strings.Contains(said, "ask again")
	}, r.log)
	if status == 0 || !strings.Contains(said, "the previous gateway goes on") || strings.Contains(said, "has ended") {
		r.t.Errorf("status %d, %s", status, said)
	}
	r.serves()
}

// started returns the process that was started last to take over.
func (r *replaceable) started() (next int) {
	r.t.Helper()
	log := r.log.String()
	_, rest, _ := strings.Cut(log[max(strings.LastIndex(log, "starting the process that takes over"), 0):], "process=")
	if _, err := fmt.Sscan(rest, &next); err != nil {
		r.t.Fatalf("%v\n%s", err, r.log)
	}
	r.t.Cleanup(func() { syscall.Kill(next, syscall.SIGKILL) })
	return next
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool, log logFile) {
	t.Helper()
	need.Eventually(t, 20*time.Second, what, func() error {
		if !is() {
			return errors.New(log.String())
		}
		return nil
	})
}

// logFile is what processes have logged, whichever of them still runs.
type logFile struct{ *os.File }

func (f logFile) String() string {
	text, err := os.ReadFile(f.Name())
	return fmt.Sprint(string(text), err)
}
