package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/gateway/control"
)

// newServiceManager is what NOTIFY_SOCKET names; it tells what it is told.
func newServiceManager(t *testing.T, name string) (told chan string) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if closeErr := to.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestReplacedBySignal: at SIGUSR2 the program that is at the path now takes over, the service
// manager is told, and the process before ends in good order. A program that cannot start
// changes nothing.
func TestReplacedBySignal(t *testing.T) {
	dir, _ := folder(t)
	socket, program := filepath.Join(dir, "rome.sock"), filepath.Join(dir, "culvert")
	edit(t, dir, `metrics: ""`, "metrics: \"\"\ncontrol: "+socket)
	install(t, program)
	name := "@culvert-test-" + strconv.Itoa(os.Getpid())
	told := newServiceManager(t, name)
	cmd := culvert("gateway", "--config", filepath.Join(dir, "gateway.yaml"))
	cmd.Path, cmd.Args[0] = program, program
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+name)
	file, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	log := logFile{file}
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := cmd.Process.Pid
	t.Cleanup(func() { syscall.Kill(last, syscall.SIGKILL) })
	if said := hear(t, told, log); said != "READY=1" {
		t.Fatalf("the service manager is told %q\n%s", said, log)
	}

	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(log.String(), "no hand-over: this gateway goes on"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no word of a program that is not there:\n%s", log)
		}
	}
	if _, err := control.NewClient(socket).Status(t.Context()); err != nil {
		t.Fatal(err)
	}

	install(t, program)
	if err := cmd.Process.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	if said := hear(t, told, log); said != "READY=1" {
		t.Fatalf("the service manager is told %q\n%s", said, log)
	}
	var next int
	if _, err := fmt.Sscanf(hear(t, told, log), "MAINPID=%d", &next); err != nil || next == last {
		t.Fatalf("process %d: %v\n%s", next, err, log)
	}
	last = next
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the process before: %v\n%s", err, log)
	}
	if _, err := control.NewClient(socket).Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(next, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Lstat(socket); os.IsNotExist(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the gateway that has taken over does not end:\n%s", log)
		}
	}
}

// logFile is what processes have logged, whichever of them still runs.
type logFile struct{ *os.File }

func (f logFile) String() string {
	text, err := os.ReadFile(f.Name())
	return fmt.Sprint(string(text), err)
}
