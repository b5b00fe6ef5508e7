package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/gateway/state"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
)

// A fakeNext is a new process that misbehaves.
type fakeNext struct {
	*handover.Line
	t *testing.T
}

func (f *fakeNext) want(kinds ...handover.Kind) {
	for _, k := range kinds {
		for {
			is, _, files, err := f.Receive(genevetest.Timeout)
			for _, file := range files {
				file.Close()
			}
			if err != nil {
				f.t.Errorf("waiting for message %d: %v", k, err)
				return
			}
			if is == k {
				break
			}
		}
	}
}

// talkSteps are the steps of the conversation for the new process: the message that it waits for,
// and its answer.
var talkSteps = []struct {
	name  string
	await []handover.Kind
	say   handover.Kind // 0 = nothing
}{
	{"at the start", nil, 0},
	{"after the offer", []handover.Kind{handover.KindOffer}, 0},
	{"after the records", []handover.Kind{handover.KindStanding}, 0},
	{"after it was ready", nil, handover.KindReady},
	{"after the cut", []handover.Kind{handover.KindCut}, 0},
	{"after it forwards", nil, handover.KindForwarding},
}

// TestNewProcessFailsAtEachStep: a new process that dies, lies or hangs at any step leaves the old
// one in charge, which stops forwarding for two seconds at most, and not at all before the cut.
func TestNewProcessFailsAtEachStep(t *testing.T) {
	p, socket := newHandPair(t)
	number := uint32(0)
	passes := func(t *testing.T) {
		t.Helper()
		number++
		p.there(t, number)
		p.back(t)
	}
	for last, step := range talkSteps {
		for name, fail := range map[string]func(*fakeNext){
			"dies": func(f *fakeNext) { f.Close() },
			"lies": func(f *fakeNext) { f.Send(handover.KindOffer, []byte("mine"), time.Second) },
			"says nonsense": func(f *fakeNext) {
				f.Send(handover.KindRefusal+1, nil, time.Second)
			},
			"hangs": func(*fakeNext) {},
		} {
			if name == "hangs" && step.say == handover.KindForwarding {
				continue // the old process kills it: TestSuccessorHangs of the command
			}
			t.Run(step.name+" it "+name, func(t *testing.T) {
				conn, err := control.TakeOver(t.Context(), socket, control.TakeoverOptions{Protocol: handover.Version,
					Cluster: "rome", Peer: "milan"})
				need.NoError(t, err)
				f := &fakeNext{handover.NewLine(conn), t}
				defer f.Close()
				for _, s := range talkSteps[:last+1] {
					f.want(s.await...)
					if s.say != 0 {
						f.Send(s.say, nil, time.Second)
					}
				}
				began := time.Now()
				fail(f)
				if name == "hangs" && last < 3 { // the old process waits longer, because it still forwards
					passes(t)
					if p.rome.life.Changeable() == nil {
						t.Error("the hand-over has ended")
					}
					f.Close()
				}
				waitFor(t, "the end of the hand-over", func() bool { return p.rome.life.Changeable() == nil })
				passes(t)
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the old process went on after %v", took)
				}
			})
		}
	}
	g, err := p.nextRome(t, socket, nil) // a proper hand-over afterwards
	need.NoError(t, err)
	serve(t, g)
	passes(t)
}

// TestFaultyNewProcess: the old process says what the new one did wrong.
func TestFaultyNewProcess(t *testing.T) {
	p, socket := newHandPair(t)
	const offer, standing, ready, cut, forwarding = handover.KindOffer, handover.KindStanding, handover.KindReady,
		handover.KindCut, handover.KindForwarding
	for _, tt := range []struct {
		name string
		do   func(f *fakeNext)
		said string // by the old process
	}{
		{"refuses", func(f *fakeNext) { f.want(offer, standing); f.Refuse(errors.New("no room")) },
			`refuses: \"no room\"`},
		{"says that it forwards before the cut", func(f *fakeNext) {
			f.want(offer, standing)
			f.Send(forwarding, nil,
				time.Second)
		}, "message 6 in the place of 4"},
		{"says too much", func(f *fakeNext) {
			f.want(offer, standing)
			f.Send(ready, make([]byte, handover.MaxBody+1), time.Second)
		}, "message 4 of 1048577 bytes"},
		{"hangs after the cut", func(f *fakeNext) {
			f.want(offer, standing)
			f.Send(ready, nil, time.Second)
			f.want(cut)
			<-f.t.Context().Done()
		}, "does not forward in 500ms"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			said := new(lockedText)
			p.rome.log.Logger.SetOutput(said)
			conn, err := control.TakeOver(t.Context(), socket, control.TakeoverOptions{Protocol: handover.Version,
				Cluster: "rome", Peer: "milan"})
			need.NoError(t, err)
			f := &fakeNext{handover.NewLine(conn), t}
			defer f.Close()
			acted := make(chan struct{})
			go func() { defer close(acted); tt.do(f) }()
			if !strings.HasPrefix(tt.name, "hangs") {
				<-acted
			}
			began := time.Now()
			waitFor(t, "the end of the hand-over", func() bool { return p.rome.life.Changeable() == nil })
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("the old process went on after %v", took)
			}
			p.there(t, 1)
			p.back(t)
			if !strings.Contains(said.String(), tt.said) {
				t.Errorf("said %s, want %q", said, tt.said)
			}
			if tt.name == "hangs after the cut" {
				if err := f.Send(forwarding, nil, time.Second); err == nil {
					t.Error("the new process can say that it forwards after the old one has gone on")
				}
			}
		})
	}
}

// fakeOld serves a control socket like a gateway, and misbehaves.
func fakeOld(t *testing.T, talk func(*handover.Line)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "old.sock")
	fakeOldAt(t, socket, talk)
	return socket
}

func fakeOldAt(t *testing.T, socket string, talk func(*handover.Line)) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	need.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buffer := make([]byte, 4096)
		conn.Read(buffer)
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: culvert-takeover\r\n\r\n")
		talk(handover.NewLine(conn.(*net.UnixConn)))
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

// TestFaultyOldProcess: the new one gives up, says why, and leaves nothing open.
func TestFaultyOldProcess(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close leaked descriptors
	p, _ := newHandPair(t)
	file, err := os.Open("/dev/null")
	need.NoError(t, err)
	defer file.Close()
	good := state.Identity{Cluster: "rome"}
	for _, tt := range []struct {
		name string
		talk func(l *handover.Line)
		want string
	}{
		{"goes at once", func(l *handover.Line) { l.Close() }, "EOF"},
		{"refuses", func(l *handover.Line) { l.Refuse(errors.New("not today")) }, `refuses: "not today"`},
		{"offers what is no offer", func(l *handover.Line) {
			l.Send(handover.KindOffer, []byte("{"), time.Second,
				int(file.Fd()))
		}, "protocol violation"},
		{"says something else", func(l *handover.Line) { l.Send(handover.KindCut, nil, time.Second) },
			"message 5 in the place of 1"},
		{"has no identity", func(l *handover.Line) { l.SendJSON(handover.KindOffer, &handover.Offer{}, time.Second) },
			"damaged"},
		{"has no relay", func(l *handover.Line) {
			l.SendJSON(handover.KindOffer, &handover.Offer{Identity: good.Encode()}, time.Second)
		}, "no relay"},
		{"gives files for sockets", func(l *handover.Line) {
			l.SendJSON(handover.KindOffer, &handover.Offer{Identity: good.Encode(),
				Sockets: []handover.Socket{{Name: "relay"}}}, time.Second, int(file.Fd()))
		}, "relay"},
		{"gives more than it names", func(l *handover.Line) {
			l.SendJSON(handover.KindOffer, &handover.Offer{Identity: good.Encode()}, time.Second, int(file.Fd()),
				int(file.Fd()))
		}, "no relay"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := fakeOld(t, tt.talk)
			before := openFDs(t)
			g, err := p.nextRome(t, socket, nil)
			if g != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			// the fake closes its own
			waitFor(t, "no more descriptors than before", func() bool { return openFDs(t) <= before })
		})
	}
	p.there(t, 1)
}

func openFDs(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	need.NoError(t, err)
	return len(all)
}

// TestOldProcessHangs: the new one gives up in time, says why, and leaves the sockets to the old
// one.
func TestOldProcessHangs(t *testing.T) {
	p, _ := newHandPair(t)
	good := state.Identity{Cluster: "rome"}
	hang := func(l *handover.Line) { l.Receive(time.Minute) } // until the new one has given up
	for name, tt := range map[string]struct {
		talk func(*handover.Line)
		want string
	}{
		"before its offer": {hang, "i/o timeout"},
		"in its offer": {func(l *handover.Line) {
			l.SendJSON(handover.KindOffer, &handover.Offer{Identity: good.Encode()[:10]}, time.Second)
			hang(l)
		}, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			g, err := p.nextRome(t, fakeOld(t, tt.talk), nil)
			if g != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if took := time.Since(began); took > 2*askTime {
				t.Errorf("it gave up after %v", took)
			}
		})
	}
	p.there(t, 1)
}
