package gateway

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/handover"
	"culvert/gateway/state"
)

// oldSteps are the conversation as an old process sees it: what it says, and what it waits for then.
var oldSteps = []struct {
	name  string
	say   func(l *handover.Line, relay int) error
	await handover.Kind // 0 = nothing
}{
	{"at the start", nil, 0},
	{"after its offer", func(l *handover.Line, relay int) error {
		offer := handover.Offer{Identity: (&state.Identity{Cluster: "rome"}).Encode(), Sockets: []handover.Socket{{Name: "relay"}}, Session: true}
		return l.SendJSON(handover.KindOffer, &offer, time.Second, relay)
	}, 0},
	{"in its records", func(l *handover.Line, _ int) error { return l.Send(handover.KindRecords, nil, time.Second) }, 0},
	{"in the place of the cut", func(l *handover.Line, _ int) error { return l.Send(handover.KindStanding, nil, time.Second) }, handover.KindReady},
	{"after the cut", func(l *handover.Line, _ int) error {
		return l.SendJSON(handover.KindCut, &handover.Cut{Stopped: monotonic()}, time.Second)
	}, handover.KindForwarding},
}

// oldFaults are what an old process may do, and what the new one says of it before the cut.
var oldFaults = []struct {
	name string
	do   func(l *handover.Line)
	want string
}{
	{"dies", func(l *handover.Line) { l.Close() }, "EOF"},
	{"lies", func(l *handover.Line) { l.Send(handover.KindReady, nil, time.Second) }, "says what it must not"},
	{"says nonsense", func(l *handover.Line) { l.Send(handover.KindRefusal+1, nil, time.Second) }, "says what it must not"},
	{"says half of a message", func(l *handover.Line) { l.Send(handover.KindCut, []byte("{"), time.Second) }, "says what it must not"},
	{"refuses", func(l *handover.Line) { l.Refuse(errors.New("not today")) }, `refuses: "not today"`},
	{"hangs", func(*handover.Line) {}, "i/o timeout"},
}

// TestOldProcessFailsAtEachStep: of an old process that dies, lies or hangs before the cut, the new one says so, and leaves the packets to it. After the
// cut the new one carries them, within two seconds, whatever the old one does.
func TestOldProcessFailsAtEachStep(t *testing.T) {
	for last, step := range oldSteps {
		for _, fault := range oldFaults {
			t.Run(step.name+" it "+fault.name, func(t *testing.T) {
				t.Parallel() // some wait for long
				p, _ := newHandPair(t)
				p.rome.stop() // its ports are free: what it is replaced by has none
				ours, theirs, err := relayPair()
				if err != nil {
					t.Fatal(err)
				}
				defer ours.Close()
				defer unix.Close(theirs)
				cut := make(chan time.Time, 1)
				socket := fakeOld(t, func(l *handover.Line) {
					for _, s := range oldSteps[:last+1] {
						if s.say != nil {
							if err := s.say(l, theirs); err != nil {
								t.Error(err)
							}
						}
						if s.await == handover.KindForwarding {
							cut <- time.Now()
						}
						if s.await != 0 {
							if _, _, err := l.Want(s.await, 5*time.Second); err != nil {
								t.Error(err)
							}
						}
					}
					fault.do(l)
					if fault.name == "hangs" {
						l.Want(handover.KindRefusal, time.Minute) // until the new one has gone
					}
				})
				began := time.Now()
				g, err := p.nextRome(t, socket, nil)
				if last < len(oldSteps)-1 {
					if g != nil || err == nil || !strings.Contains(err.Error(), fault.want) || !strings.Contains(err.Error(), "the gateway before goes on") {
						t.Errorf("%v, want %q", err, fault.want)
					}
					if took := time.Since(began); took > askTime+time.Second {
						t.Errorf("it gave up after %v", took)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
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
