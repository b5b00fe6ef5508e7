package sim

import (
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for go:linkname

	"go.uber.org/goleak"
)

// started is when the gateways' clock began: not after the clock of a bubble does.
//
//go:linkname started culvert/gateway.started
var started time.Time

func TestMain(m *testing.M) {
	flag.Parse()
	started = time.Date(1999, time.December, 31, 0, 0, 0, 0, time.UTC) // bubbles begin a day later
	goleak.VerifyTestMain(m)
}

// result is what came of a schedule.
type result struct {
	failure string
	packets int // that reached a pod
	carried int // datagrams on all legs
	faults  int
	lasted  time.Duration
	world   *world
}

// play runs a schedule in a bubble of its own.
func play(t *testing.T, s schedule) (r result) {
	t.Helper()
	// A goroutine that waits for a mutex keeps the clock of a bubble from going on, and so does one that spins.
	stuck := time.AfterFunc(stuckTime, func() { panic(fmt.Sprintf("sim: time stands still: -schedule=%x", []byte(s))) })
	defer stuck.Stop()
	synctest.Test(t, func(t *testing.T) {
		var seed uint64
		for _, b := range s {
			seed = seed*257 + uint64(b) + 1
		}
		w := newWorld(seed)
		w.traffic = &traffic{w: w, chance: rand.New(rand.NewPCG(seed, 0)), seen: make(map[sight]*conn)}
		for i := range w.sides {
			w.sides[i] = newSide(w, i)
		}
		a, b := w.sides[0], w.sides[1]
		a.peer, b.peer = b, a
		a.toPeer, b.toPeer = w.newLeg(names[0], names[1], wanLatency), w.newLeg(names[1], names[0], wanLatency)
		a.config.WireGuard.PeerPublicKey, b.config.WireGuard.PeerPublicKey = b.config.WireGuard.PrivateKey.Public(), a.config.WireGuard.PrivateKey.Public()
		a.config.WireGuard.Endpoint = b.wan.Load().String()
		for _, s := range w.sides {
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
		}
		for range 8 + int(s.head()%16) {
			w.traffic.beginAny()
		}
		calm := s.play(w)
		w.run(calm)
		w.judgeRecovery(calm)
		if w.failure == "" {
			w.judgeLedgers()
		}
		for _, s := range w.sides {
			if s.stop != nil {
				s.halt()
			}
		}
		r = result{failure: w.failure, packets: w.packets, faults: w.faults, lasted: w.now(), world: w}
		w.mu.Lock()
		r.carried = w.carried
		w.mu.Unlock()
	})
	return r
}

func (s schedule) head() byte {
	if len(s) == 0 {
		return 0
	}
	return s[0]
}

// random makes the schedule of a seed with some faults.
func random(seed uint64, faults int) schedule {
	chance := rand.New(rand.NewPCG(seed, 2))
	s := make(schedule, scheduleHead+faults*faultBytes)
	for i := range s {
		s[i] = byte(chance.UintN(256))
	}
	return s
}

// TestCalm: nothing goes wrong, and all is as it should be.
func TestCalm(t *testing.T) {
	r := play(t, schedule{15, 1})
	if r.failure != "" {
		t.Error(r.failure)
	}
	t.Logf("%d packets reached pods, %d datagrams in %v", r.packets, r.carried, r.lasted)
}

var (
	scheduleFlag = flag.String("schedule", "", "of TestReplay: the bytes in hex")
	replaysFlag  = flag.Int("replays", 100, "of TestReplay: how often")
	seedFlag     = flag.Uint64("seed", 1, "of TestSchedules: the first")
	packetsFlag  = flag.Int("packets", 0, "of TestSchedules: after how many that reach a pod it ends; 0: any number")
	countFlag    = flag.Int("schedules", 0, "of TestSchedules: how many; 0: a few, or very many if CULVERT_LONG is set")
)

// stuckTime is far more than any schedule takes.
const stuckTime = 2 * time.Minute

const (
	faultsEach = 22 // in a random schedule
	fewCount   = 6
	longCount  = 100_000
)

// TestSchedules: whatever fails in whatever order, nothing goes where it does not belong, and soon after all works again.
func TestSchedules(t *testing.T) {
	count := *countFlag
	switch {
	case count > 0:
	case os.Getenv("CULVERT_LONG") != "":
		count = longCount
	default:
		count = fewCount
	}
	var packets, carried, happened int
	var lasted time.Duration
	defer func() {
		t.Logf("seeds from %d on: %d faults, %v, %d datagrams, %d packets reached pods", *seedFlag, happened, lasted.Round(time.Second), carried, packets)
	}()
	for i := range count {
		s := random(*seedFlag+uint64(i), faultsEach)
		r := play(t, s)
		packets, carried, happened, lasted = packets+r.packets, carried+r.carried, happened+r.faults, lasted+r.lasted
		if r.failure != "" {
			t.Logf("seed %d, after %d schedules, %d packets\n%s", *seedFlag+uint64(i), i, packets, r.failure)
			report(t, s, r)
			return
		}
		if *packetsFlag > 0 && packets >= *packetsFlag {
			return
		}
		if i%1000 == 999 {
			t.Logf("%d schedules, %d packets", i+1, packets)
		}
	}
}

// report tells of a failure all that is known.
func report(t *testing.T, s schedule, r result) {
	t.Helper()
	var text strings.Builder
	r.world.diagram(&text, 80)
	t.Errorf("%s\n%v\nrun again: go test ./integration/sim -run TestReplay -artifacts -schedule=%x\n%s", r.failure, s, []byte(s), text.String())
	dir := t.ArtifactDir()
	whole, err := os.Create(filepath.Join(dir, "sequence.mmd"))
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	r.world.diagram(whole, ringSize)
	packets, err := os.Create(filepath.Join(dir, "packets.pcapng"))
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	if err := r.world.capture(packets); err != nil {
		t.Fatal(err)
	}
}

// TestReplay runs one schedule again, many times, and tells how often it fails.
func TestReplay(t *testing.T) {
	s, err := hex.DecodeString(*scheduleFlag)
	if err != nil {
		t.Fatal(err)
	}
	if len(s) == 0 {
		t.Skip("replay: no -schedule")
	}
	failed := 0
	var last result
	for range *replaysFlag {
		if r := play(t, s); r.failure != "" {
			failed++
			last = r
		}
	}
	t.Logf("%d of %d replays fail", failed, *replaysFlag)
	if failed > 0 {
		report(t, s, last)
	}
}

// FuzzSchedule lets go test -fuzz make schedules.
func FuzzSchedule(f *testing.F) {
	f.Add([]byte(random(1, faultsEach)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, s []byte) {
		if r := play(t, s); r.failure != "" {
			report(t, s, r)
		}
	})
}
