package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"culvert/cmd/internal/cli"
	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/integration/need"
)

// A fakeGateway refuses to reload and to capture. This process serves its socket; its status has
// another process ID, as that of a gateway in a container.
type fakeGateway struct {
	control.Source
	pid atomic.Int64
}

func (f *fakeGateway) Status() control.Status { return control.Status{PID: int(f.pid.Load())} }

func (f *fakeGateway) Reload(context.Context, bool) (*control.Reloaded, error) {
	return nil, errors.New("mtu: " + config.TakesOver)
}

func (f *fakeGateway) Capture(context.Context, *control.CaptureOptions, io.Writer, func() error) (packets,
	lost uint64, err error) {
	return 0, 0, errors.New("another capture is running")
}

// serve returns the socket of f.
func (f *fakeGateway) serve(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rome.sock")
	l, err := net.Listen("unix", path)
	need.NoError(t, err)
	s := control.NewServer(f, log.New(io.Discard, "", 0))
	go s.Serve(l)
	t.Cleanup(s.Close)
	return path
}

// TestReloadElsewhere: culvert reload --takeover signals the process that serves the socket, not
// the one that has here the number of the gateway in its container.
func TestReloadElsewhere(t *testing.T) {
	const nobody = 1<<22 + 1 // more than a process can have (pid_max(5))
	f := &fakeGateway{}
	f.pid.Store(nobody)
	usr2 := make(chan os.Signal, 1)
	signal.Notify(usr2, syscall.SIGUSR2)
	defer signal.Stop(usr2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-usr2
		f.pid.Store(nobody + 1)
	}()
	out, said, status := run(t, "reload", "--takeover", "--socket", f.serve(t))
	if status != 0 || !strings.Contains(out, "process 4194306 has taken over from process 4194305") {
		t.Fatalf("status %d, %s%s", status, out, said)
	}
	<-done
}

// TestRefusedCapture: a capture that the gateway refuses leaves the file of an earlier one as it
// is, and makes none.
func TestRefusedCapture(t *testing.T) {
	socket, file := (&fakeGateway{}).serve(t), filepath.Join(t.TempDir(), "pod.pcapng")
	for _, before := range []string{"", "packets of yesterday"} {
		if before != "" {
			need.NoError(t, os.WriteFile(file, []byte(before), 0o600))
		}
		if _, said, status := run(t, "capture", "--socket", socket, "-w", file); status != 2 ||
			!strings.Contains(said, "another capture is running") {
			t.Errorf("status %d, %s", status, said)
		}
		if got, err := os.ReadFile(file); string(got) != before || before == "" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file has %q (%v), want %q", got, err, before)
		}
	}
}

// TestCutOff: a command has exit status 1 where a gateway disappears while it answers, and 2 where
// another program answers.
func TestCutOff(t *testing.T) {
	for text, want := range map[string]int{`{"pid": 7`: cli.ExitFailed, "7": cli.ExitBadInput} {
		path := filepath.Join(t.TempDir(), "rome.sock")
		l, err := net.Listen("unix", path)
		need.NoError(t, err)
		defer l.Close()
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if want == cli.ExitBadInput {
				io.WriteString(w, text)
				return
			}
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"+text)
				conn.Close()
			}
		}))
		for _, command := range []string{"status", "rules", "capture -w " + filepath.Join(t.TempDir(), "file")} {
			if strings.HasPrefix(command, "capture") && want == cli.ExitBadInput {
				continue // it writes what it gets
			}
			out, said, status := run(t, append(strings.Fields(command), "--socket", path)...)
			if status != want || out != "" && command != "rules" ||
				strings.Contains(said, "cut off") != (want == cli.ExitFailed) {
				t.Errorf("culvert %s of %s: status %d, %s%s; want %d", command, text, status, out, said, want)
			}
		}
	}
}
