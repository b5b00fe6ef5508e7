package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"culvert/gateway/config"
	"culvert/gateway/control"
)

// TestReloadTakesOver: culvert reload applies a change in place if it can. With --takeover, another
// process applies a change that needs a restart. A bad file starts no process.
func TestReloadTakesOver(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	reload := func(args ...string) (out, said string, status int) {
		return run(t, append([]string{"reload", "--socket", r.socket}, args...)...)
	}
	edit(t, r.dir, r.socket, r.socket+"\nmssClamp: 1000")
	if out, said, status := reload("--takeover"); status != 0 || !strings.Contains(out, "applied: mssClamp changed") {
		t.Fatalf("status %d, %s%s", status, out, said)
	}
	edit(t, r.dir, "mssClamp: 1000", "mtu: 1300\nmssClamps: 1000")
	if _, said, status := reload("--takeover"); status != 2 || !strings.Contains(said, "mssClamps: no such field") {
		t.Fatalf("status %d, %s", status, said)
	}
	edit(t, r.dir, "mssClamps: 1000", "mssClamp: 1000")
	if _, said, status := reload(); status != 2 ||
		!strings.Contains(said,
			"mtu: cannot change while the gateway runs; to keep connections start culvert gateway --takeover") {
		t.Fatalf("status %d, %s", status, said)
	}
	pid := fmt.Sprint(r.Process.Pid)
	if out, said, status := reload("--takeover"); status != 0 ||
		!strings.Contains(out, "has taken over from process "+pid) {
		t.Fatalf("status %d, %s%s\n%s", status, out, said, r.log)
	}
	next := r.replaced()
	if s, err := control.NewClient(r.socket).Status(t.Context()); err != nil || s.PID != next || s.MTU != 1300 {
		t.Errorf("%+v, %v; want process %d with mtu 1300", s, err, next)
	}
	if err := syscall.Kill(next, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// TestNeedsTakeover: another process starts only if the file has no other fault.
func TestNeedsTakeover(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{&control.Error{Message: "mtu: " + config.TakesOver + " start it"}, true},
		{fmt.Errorf("asked: %w", &control.Error{Message: "mtu: " + config.TakesOver + "\nstate: " + config.TakesOver}),
			true},
		{&control.Error{Message: "mtu: " + config.TakesOver +
			"\npeer: cannot change while the gateway runs; restart it"}, false},
		{&control.Error{Message: "mtuu: no such field"}, false},
		{&control.Error{}, false},
		{errors.New(config.TakesOver), false},
	} {
		if got := needsTakeover(tt.err); got != tt.want {
			t.Errorf("%q: %v, want %v", tt.err, got, tt.want)
		}
	}
}
