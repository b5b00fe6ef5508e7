package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/integration/need"
)

// A fakeGateway refuses to reload and to capture. This process serves its socket; its status has another process ID, as that of a gateway in a container.
type fakeGateway struct {
	control.Source
	pid atomic.Int64
}

func (f *fakeGateway) Status() control.Status { return control.Status{PID: int(f.pid.Load())} }

func (f *fakeGateway) Reload(context.Context, bool) (*control.Reloaded, error) {
	return nil, errors.New("mtu: " + config.TakesOver)
}

func (f *fakeGateway) Capture(context.Context, *control.CaptureOptions, io.Writer, func() error) (packets, lost uint64, err error) {
	return 0, 0, errors.New("somebody else captures already")
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

// TestReloadElsewhere: culvert reload --takeover signals the process that serves the socket, not the one that has here the number of the gateway in its
// container.
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

// TestRefusedCapture: a capture that the gateway refuses leaves the file of an earlier one as it is, and makes none.
func TestRefusedCapture(t *testing.T) {
	socket, file := (&fakeGateway{}).serve(t), filepath.Join(t.TempDir(), "pod.pcapng")
	for _, before := range []string{"", "packets of yesterday"} {
		if before != "" {
			need.NoError(t, os.WriteFile(file, []byte(before), 0o600))
		}
		if _, said, status := run(t, "capture", "--socket", socket, "-w", file); status != 2 || !strings.Contains(said, "somebody else captures already") {
			t.Errorf("status %d, %s", status, said)
		}
		if got, err := os.ReadFile(file); string(got) != before || before == "" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file has %q (%v), want %q", got, err, before)
		}
	}
}
