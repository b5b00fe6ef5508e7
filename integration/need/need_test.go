package need

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
)

// outcome is a test that notes what becomes of it.
type outcome struct {
	testing.TB
	is string
}

func (o *outcome) Helper() {}

func (o *outcome) Skipf(string, ...any) { o.end("skipped") }

func (o *outcome) Fatalf(string, ...any) { o.end("failed") }

func (o *outcome) end(is string) {
	o.is = is
	runtime.Goexit()
}

// of runs body as a test.
func of(body func(testing.TB)) string {
	o, ended := &outcome{is: "ran"}, make(chan struct{})
	go func() {
		defer close(ended)
		body(o)
	}()
	<-ended
	return o.is
}

// TestLAB: it makes a failure of what it names, and LAB=require of all that this kernel can do.
func TestLAB(t *testing.T) {
	refused, cannot := errors.New("operation not permitted"), fmt.Errorf("add a link: %w", errors.ErrUnsupported)
	for _, tt := range []struct {
		lab, probe      string
		err             error
		kernel, program string
	}{
		{"", "tun", nil, "ran", "ran"},
		{"require=tun", "tun", nil, "ran", "ran"},
		{"", "tun", refused, "skipped", "skipped"},
		{"off", "tun", refused, "skipped", "skipped"},
		{"require", "tun", refused, "failed", "skipped"},
		{"require", "geneve", cannot, "skipped", "skipped"},
		{"require=root,tun", "tun", refused, "failed", "failed"},
		{"require=root,vxlan", "tun", refused, "skipped", "skipped"},
		{"require=geneve", "geneve", cannot, "failed", "failed"},
		{"require=", "geneve", cannot, "skipped", "skipped"},
	} {
		t.Setenv("LAB", tt.lab)
		if got := of(func(t testing.TB) { Kernel(t, tt.probe, tt.err) }); got != tt.kernel {
			t.Errorf("LAB=%q, %s %v: %s, want %s", tt.lab, tt.probe, tt.err, got, tt.kernel)
		}
		if got := of(func(t testing.TB) { Program(t, tt.probe, tt.err) }); got != tt.program {
			t.Errorf("LAB=%q, program %s %v: %s, want %s", tt.lab, tt.probe, tt.err, got, tt.program)
		}
	}
}

// TestOffloads: trains are the kernel's, which LAB=require takes as it is.
func TestOffloads(t *testing.T) {
	for _, tt := range []struct {
		lab   string
		there bool
		want  string
	}{{"", true, "ran"}, {"require=udp-offloads", true, "ran"}, {"", false, "skipped"}, {"require", false, "skipped"}, {"require=udp-offloads", false, "failed"}} {
		t.Setenv("LAB", tt.lab)
		if got := of(func(t testing.TB) { Offloads(t, tt.there) }); got != tt.want {
			t.Errorf("LAB=%q, %v: %s, want %s", tt.lab, tt.there, got, tt.want)
		}
	}
}

// TestLong: long tests run when they are asked for.
func TestLong(t *testing.T) {
	for long, want := range map[string]string{"": "skipped", "1": "ran"} {
		t.Setenv(longEnv, long)
		if got := of(func(t testing.TB) { Long(t, "four minutes") }); got != want {
			t.Errorf("%s=%q: %s, want %s", longEnv, long, got, want)
		}
	}
}
