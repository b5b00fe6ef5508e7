package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/handover"
	"culvert/gateway/state"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
)

// oldSteps are the steps of the conversation for the old process: the message that it sends, and
// the answer that it waits for.
var oldSteps = []struct {
	name  string
	say   func(l *handover.Line, relay int) error
	await handover.Kind // 0 = nothing
}{
	{"at the start", nil, 0},
	{"after its offer", func(l *handover.Line, relay int) error {
		offer := handover.Offer{Identity: (&state.Identity{Cluster: "rome"}).Encode(),
			Sockets: []handover.Socket{{Name: "relay"}}} // no session: it has no socket that answers come to
		return l.SendJSON(handover.KindOffer, &offer, time.Second, relay)
	}, 0},
	{"in its records", func(l *handover.Line, _ int) error { return l.Send(handover.KindRecords, nil, time.Second) },
		0},
	{"in the place of the cut", func(l *handover.Line, _ int) error {
		return l.Send(handover.KindStanding, nil,
			time.Second)
	}, handover.KindReady},
	{"after the cut", func(l *handover.Line, _ int) error {
		return l.SendJSON(handover.KindCut, &handover.Cut{Stopped: handover.Monotonic()}, time.Second)
	}, handover.KindForwarding},
}

// sayUpTo performs the first steps.
func sayUpTo(t *testing.T, l *handover.Line, relay, steps int) {
	for i := range steps {
		sayStep(t, l, relay, i)
	}
}

func sayStep(t *testing.T, l *handover.Line, relay, i int) {
	s := &oldSteps[i]
	if s.say != nil {
		if err := s.say(l, relay); err != nil {
			t.Error(err)
		}
	}
	if s.await != 0 {
		if _, _, err := l.Want(s.await, genevetest.Timeout); err != nil {
			t.Error(err)
		}
	}
}

// askTime is how long package lifecycle waits for an answer before the cut.
const askTime = 5 * time.Second

// hungEnv makes this a process that hangs in a hand-over, on the socket of that name.
const hungEnv = "CULVERT_HUNG_OLD"

// TestHungOldProcessIsEnded: an old process that does not answer the order to stop may have stopped
// forwarding. It is killed, and packets pass within two seconds.
func TestHungOldProcessIsEnded(t *testing.T) {
	if socket := os.Getenv(hungEnv); socket != "" {
		fakeOldAt(t, socket, func(l *handover.Line) {
			_, theirs, err := handover.RelayPair()
			need.NoError(t, err)
			sayUpTo(t, l, theirs, len(oldSteps)-1)
			fmt.Println("told to stop")
			select {}
		})
		fmt.Println("listens")
		select {}
	}
	p, _ := newHandPair(t)
	p.rome.stop() // its ports are free
	socket := filepath.Join(t.TempDir(), "hung.sock")
	cmd := need.Self("-test.run=^" + t.Name() + "$")
	cmd.Env = append(os.Environ(), hungEnv+"="+socket)
	out, err := cmd.StdoutPipe()
	need.NoError(t, err)
	need.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	lines := bufio.NewScanner(out)
	said := func(want string) {
		for lines.Scan() && lines.Text() != want {
		}
	}
	said("listens")
	stopped := make(chan time.Time, 1)
	go func() {
		said("told to stop")
		stopped <- time.Now()
		io.Copy(io.Discard, out)
	}()
	g, err := p.nextRome(t, socket, nil)
	need.NoError(t, err)
	serve(t, g)
	p.there(t, 1)
	if took := time.Since(<-stopped); took > 2*time.Second {
		t.Errorf("packets pass %v after it was told to stop", took)
	}
	cmd.Wait()
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		t.Errorf("the process that hung: %v", cmd.ProcessState)
	}
}

// oldFaults are faults of an old process, and what the new one says about each before the cut.
var oldFaults = []struct {
	name string
	do   func(l *handover.Line)
	want string
}{
	{"dies", func(l *handover.Line) { l.Close() }, "EOF"},
	{"lies", func(l *handover.Line) { l.Send(handover.KindReady, nil, time.Second) }, "protocol violation"},
	{"says nonsense", func(l *handover.Line) { l.Send(handover.KindRefusal+1, nil, time.Second) },
		"protocol violation"},
	{"says half of a message", func(l *handover.Line) { l.Send(handover.KindCut, []byte("{"), time.Second) },
		"protocol violation"},
	{"refuses", func(l *handover.Line) { l.Refuse(errors.New("not today")) }, `refuses: "not today"`},
	{"hangs", func(*handover.Line) {}, "i/o timeout"},
}

// TestOldProcessFailsAtEachStep: if the old process dies, lies or hangs before the cut, the new one
// says so and leaves forwarding to it. After the cut the new one forwards within two seconds,
// whatever the old one does.
func TestOldProcessFailsAtEachStep(t *testing.T) {
	for last, step := range oldSteps {
		for _, fault := range oldFaults {
			t.Run(step.name+" it "+fault.name, func(t *testing.T) {
				t.Parallel() // some wait for long
				p, _ := newHandPair(t)
				p.rome.stop() // its ports are free, and its replacement has none
				ours, theirs, err := handover.RelayPair()
				need.NoError(t, err)
				defer ours.Close()
				defer unix.Close(theirs)
				cut := make(chan time.Time, 1)
				socket := fakeOld(t, func(l *handover.Line) {
					sayUpTo(t, l, theirs, last)
					if last == len(oldSteps)-1 {
						cut <- time.Now()
					}
					sayStep(t, l, theirs, last)
					fault.do(l)
					if fault.name == "hangs" {
						l.Want(handover.KindRefusal, time.Minute) // until the new one has given up
					}
				})
				began := time.Now()
				g, err := p.nextRome(t, socket, nil)
				if last < len(oldSteps)-1 {
					if g != nil || err == nil || !strings.Contains(err.Error(), fault.want) ||
						!strings.Contains(err.Error(), "the previous gateway goes on") {
						t.Errorf("%v, want %q", err, fault.want)
					}
					if took := time.Since(began); took > 2*askTime {
						t.Errorf("it gave up after %v", took)
					}
					return
				}
				need.NoError(t, err)
				serve(t, g)
				p.there(t, 1)
				p.back(t)
				if took := time.Since(<-cut); took > 2*time.Second {
					t.Errorf("packets pass %v after the cut", took)
				}
			})
		}
	}
}
