package need

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// outcome is a test that notes what becomes of it.
type outcome struct {
	testing.TB
	is string
}

func (o *outcome) Helper() {}

func (o *outcome) Name() string { return "TestOutcome/sub" }

func (o *outcome) Error(...any) { o.is = "failed" }

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
	}{{"", true, "ran"}, {"require=udp-offloads", true, "ran"}, {"", false, "skipped"}, {"require", false, "skipped"},
		{"require=udp-offloads", false, "failed"}} {
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

// TestPrograms: a test that has asked for a program may start it, and one that has not fails
// wherever it runs, without a start.
func TestPrograms(t *testing.T) {
	ran := func() string { return of(func(t testing.TB) { Command(t, "true").Run() }) }
	if got := ran(); got != "failed" {
		t.Errorf("a program that was not asked for: %s", got)
	}
	if got := of(func(t testing.TB) { Command(t, "/bin/true").Run() }); got != "failed" {
		t.Errorf("one by its path: %s", got)
	}
	if got := of(func(t testing.TB) { Programs(t, "nothing", "true", "no-such-program") }); got != "skipped" {
		t.Errorf("one that is missing: %s", got)
	}
	if got := ran(); got != "failed" {
		t.Errorf("one of several of which another is missing: %s", got)
	}
	if got := of(func(t testing.TB) {
		if cmd := Command(t, "true"); cmd.Run() == nil {
			t.Error("it started although the test has failed")
		}
	}); got != "failed" {
		t.Errorf("not asked for: %s", got)
	}
	if got := of(func(t testing.TB) {
		Programs(t, "true", "true")
		if err := Command(t, "true").Run(); err != nil {
			t.Error(err)
		}
		if got, want := Asked(t), "CULVERT_TEST_PROGRAMS=true"; got != want {
			t.Error(got)
		}
	}); got != "ran" {
		t.Errorf("asked for: %s", got)
	}
	asked.by = map[string][]string{}
	t.Setenv(askedEnv, "false,true")
	if got := ran(); got != "ran" {
		t.Errorf("asked for by the process that started this one: %s", got)
	}
	list := filepath.Join(t.TempDir(), "asked")
	t.Setenv(askedFileEnv, list)
	of(func(t testing.TB) { Programs(t, "nothing", "no-such-program") })
	of(func(t testing.TB) { Programs(t, "true", "true") })
	if text, err := os.ReadFile(list); err != nil || string(text) != "TestOutcome\nTestOutcome\n" {
		t.Errorf("tests that asked for programs: %q, %v", text, err)
	}
	t.Setenv(askedFileEnv, "")
	own := filepath.Join(t.TempDir(), "true")
	if err := os.WriteFile(own, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(askedEnv, "")
	if got := of(func(t testing.TB) { Command(t, own) }); got != "ran" {
		t.Errorf("a file of the test's own: %s", got)
	}
}
