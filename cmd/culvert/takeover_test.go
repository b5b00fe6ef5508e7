package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/state"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// TestReplacedBySignal: at SIGUSR2 the program that is at the path now takes over, the service
// manager is told, and the process before ends in good order.
func TestReplacedBySignal(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	install(t, r.program)
	r.signal(syscall.SIGUSR2)
	next := r.replaced()
	need.NoError(t, syscall.Kill(next, syscall.SIGTERM))
	until(t, "the end of the gateway that has taken over", func() bool {
		_, err := os.Lstat(r.socket)
		return os.IsNotExist(err)
	}, r.log)
}

// TestBadSuccessors: whatever file is at the program's path, and whatever its configuration, the
// gateway continues and logs why it could not hand over.
func TestBadSuccessors(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	script := func(text string, mode os.FileMode) func() error {
		return func() error { return os.WriteFile(r.program, []byte(text), mode) }
	}
	nothing := func() error { return nil }
	for _, tt := range []struct {
		name string
		put  func() error // at the path, where nothing is
		also func()       // and before
		said string
	}{
		{"missing", nothing, func() {}, "no such file or directory"},
		{"not executable", script("#!/bin/sh\n", 0o600), func() {}, "permission denied"},
		{"no program", script("\x7fjunk", 0o700), func() {}, "exec format error"},
		{"an older version", script("#!/bin/sh\necho culvert: unknown flag: --takeover >&2\nexit 2\n", 0o700),
			func() {}, "unknown flag: --takeover"},
		{"another configuration", func() error { install(t, r.program); return nil },
			func() { edit(t, r.dir, "vni: 1,", "vni: -1,") }, "geneve.nodes[0].vni: "},
		{"another peering", func() error { install(t, r.program); return nil },
			func() { edit(t, r.dir, "vni: -1,", "vni: 1,"); edit(t, r.dir, "peer: milan", "peer: oslo") },
			"towards milan, not of rome towards oslo"},
	} {
		need.NoError(t, os.Remove(r.program))
		need.NoError(t, tt.put())
		tt.also()
		refused := strings.Count(r.log.String(), "no hand-over: this process goes on")
		r.signal(syscall.SIGUSR2)
		r.says("no hand-over: this process goes on", refused+1)
		if !strings.Contains(r.log.String(), tt.said) {
			t.Errorf("%s: no %q in\n%s", tt.name, tt.said, r.log)
		}
		r.serves()
		if _, err := os.Lstat(r.program); err != nil {
			install(t, r.program) // for the next one to remove
		}
	}
	// And then a good one.
	edit(t, r.dir, "peer: oslo", "peer: milan")
	r.signal(syscall.SIGUSR2)
	r.replaced()
}

// TestSignalledTwice: two signals start only one hand-over.
func TestSignalledTwice(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	r.signal(syscall.SIGUSR2)
	r.says("starting the process that takes over", 1)
	r.signal(syscall.SIGUSR2)
	r.replaced()
	if n := strings.Count(r.log.String(), "taken over"); n != 1 {
		t.Errorf("taken over %d times\n%s", n, r.log)
	}
}

// TestSignalledBeforeItRuns: SIGUSR2 and SIGHUP wait for a gateway that is starting.
func TestSignalledBeforeItRuns(t *testing.T) {
	for _, tt := range []struct {
		signal syscall.Signal
		said   string
	}{{syscall.SIGHUP, "configuration applied"}, {syscall.SIGUSR2, "taken over"}} {
		t.Run(tt.signal.String(), func(t *testing.T) {
			lock := ""
			hold := func(dir string) *os.File { // what a gateway waits for that is about to start
				store := filepath.Join(dir, "state")
				lock = filepath.Join(store, "ipam.json.milan.lock")
				need.NoError(t, os.MkdirAll(store, 0o700))
				f, err := os.Create(lock)
				if err == nil {
					err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
				}
				need.NoError(t, err)
				return f
			}
			var held *os.File
			r := newReplaceableAfter(t, func(dir string) { held = hold(dir) })
			defer held.Close()
			until(t, "a gateway that waits for "+lock, func() bool {
				all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.Process.Pid))
				for _, fd := range all {
					if at, _ := os.Readlink(fd); at == lock {
						return true
					}
				}
				return false
			}, r.log)
			r.signal(tt.signal)
			held.Close()
			r.hears("READY=1")
			r.says(tt.said, 1)
			if tt.signal == syscall.SIGUSR2 {
				r.replaced()
			}
		})
	}
}

// TestEndedMeanwhile: SIGTERM to a gateway that is handing over a large table ends that gateway,
// and the one that takes over has all connections.
func TestEndedMeanwhile(t *testing.T) {
	const n = manyStrangers
	r := newReplaceableAfter(t, func(dir string) { keepStrangers(t, dir, n) })
	r.hears("READY=1")
	r.signal(syscall.SIGUSR2)
	r.says("handing over", 1)
	r.signal(syscall.SIGTERM)
	r.says("stopping when the hand-over has ended", 1)
	r.replaced()
	s, err := control.NewClient(r.socket).Status(t.Context())
	need.NoError(t, err)
	if s.Table.Connections < n {
		t.Errorf("%d connections, want %d\n%s", s.Table.Connections, n, r.log)
	}
}

// TestBothEndedMeanwhile: if both processes of a hand-over get SIGTERM, as when a service manager
// stops the gateway, neither remains.
func TestBothEndedMeanwhile(t *testing.T) {
	r := newReplaceableAfter(t, func(dir string) { keepStrangers(t, dir, manyStrangers) })
	r.hears("READY=1")
	r.signal(syscall.SIGUSR2)
	r.says("handing over", 1)
	next := r.started()
	r.signal(syscall.SIGTERM)
	need.NoError(t, syscall.Kill(next, syscall.SIGTERM))
	if err := r.Wait(); err != nil {
		t.Errorf("%v\n%s", err, r.log)
	}
	until(t, "the end of the other process", func() bool { return syscall.Kill(next, 0) == syscall.ESRCH }, r.log)
	if !strings.Contains(r.log.String(), "hand-over failed") {
		t.Errorf("no word of it in\n%s", r.log)
	}
}

// TestKilledMeanwhile: if a gateway is killed while it hands over, the other one starts from the
// state folder within two seconds.
func TestKilledMeanwhile(t *testing.T) {
	const n = 20_000
	r := newReplaceableAfter(t, func(dir string) { keepStrangers(t, dir, n) })
	r.hears("READY=1")
	r.signal(syscall.SIGUSR2)
	r.says("handing over", 1)
	began := time.Now()
	r.signal(syscall.SIGKILL)
	next := r.started()
	r.says("the previous gateway ended during the hand-over: this one starts as if there had been none", 1)
	until(t, "a gateway that answers", func() bool {
		s, err := control.NewClient(r.socket).Status(t.Context())
		return err == nil && s.Table.Connections >= n
	}, r.log)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it started after %v\n%s", took, r.log)
	}
	r.Wait() // for what was killed
	need.NoError(t, syscall.Kill(next, syscall.SIGTERM))
	until(t, "the end of the other process", func() bool { return syscall.Kill(next, 0) == syscall.ESRCH }, r.log)
}

// manyStrangers are as many connections as take half a second to hand over: a test has so long to
// do something meanwhile.
const manyStrangers = 60_000

// keepStrangers leaves n translated connections in the state of a gateway whose folder is dir.
func keepStrangers(t *testing.T, dir string, n int) {
	t.Helper()
	edit(t, dir, `metrics: ""`, fmt.Sprintf("metrics: \"\"\nnat: {maxConnections: %d}", 4*n))
	c, err := config.Load(filepath.Join(dir, "gateway.yaml"))
	need.NoError(t, err)
	var none config.Links
	links := none.Assign(c.Geneve.Nodes)
	identity := state.Identity{Cluster: c.Cluster, PortKey: state.PortKey{1}}
	engine, err := nat.New(identity.PortKey, c.NAT(links, 0))
	need.NoError(t, err)
	now := nat.Time(time.Second)
	template := nattest.IP{Source: "11.0.0.0", Destination: "10.61.1.5", Body: nattest.UDP{SourcePort: 4000,
		DestinationPort: 53, Payload: []byte("x")}}.Bytes()
	var p packet.Packet
	for i := range n {
		one := bytes.Clone(template)
		binary.BigEndian.PutUint32(one[12:], 11<<24|uint32(i))
		binary.BigEndian.PutUint16(one[18:], uint16(i)) // the ports of U are shared out by where they lead to
		p.Parse(nattest.Fix(one))
		if v := engine.Process(&p, links.ByName["rome-1"], now); v.Action != nat.Forward || v.Untracked {
			t.Fatalf("connection %d: %+v", i, v)
		}
	}
	d, err := state.Open(c.State, c.Peer)
	if err == nil {
		err = errors.Join(d.KeepIdentity(&identity), d.KeepConnections(time.Now(), func(w io.Writer) error {
			return engine.Records(0, links.Name).Write(w, now, func() {})
		}))
		d.Close()
	}
	need.NoError(t, err)
}

// TestSuccessorHangs: a new process that says that it carries packets, and then hangs, is killed,
// and the old gateway continues.
func TestSuccessorHangs(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	r.signal(syscall.SIGUSR2)
	r.says("taken over", 1)
	next := r.started()
	need.NoError(t, syscall.Kill(next, syscall.SIGSTOP))
	began := time.Now()
	r.says("the new process hung and was ended", 1)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it went on after %v", took)
	}
	until(t, "the end of the other process", func() bool { return syscall.Kill(next, 0) == syscall.ESRCH }, r.log)
	r.serves()
	r.refuted()
}

// TestFailedAfterHandOver: a gateway that has taken over continues when the next process fails to
// take over from it.
func TestFailedAfterHandOver(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	r.signal(syscall.SIGUSR2)
	r.replaced()
	r.refuted()
}
