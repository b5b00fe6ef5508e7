package sim

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for go:linkname

	"go.uber.org/goleak"

	"culvert/integration/need"
)

// started is when the gateways' clock began: not after the clock of a bubble does.
//
//go:linkname started culvert/gateway/path.started
var started time.Time

func TestMain(m *testing.M) {
	flag.Parse()
	// one goroutine waits for the other: a second core only wakes up in vain
	runtime.GOMAXPROCS(1)
	started = time.Date(1999, time.December, 31, 0, 0, 0, 0, time.UTC) // bubbles begin a day later
	goleak.VerifyTestMain(m)
}

// result is what came of a schedule.
type result struct {
	failure   string
	schedules int
	packets   int // that reached a pod
	carried   int // datagrams on all legs
	faults    int
	moved     int // gateways that another one has taken over from
	switches  int // how often one of two pods began to forward
	lasted    time.Duration
	world     *world
}

// play runs a schedule in a bubble of its own, in a world that edit may have changed.
func play(t *testing.T, s schedule, edit ...func(*world)) (r result) {
	t.Helper()
	// A goroutine that waits for a mutex keeps the clock of a bubble from going on, and so does one
	// that spins.
	stuck := time.AfterFunc(stuckTime, func() { panic(fmt.Sprintf("sim: time stands still: -schedule=%x", []byte(s))) })
	defer stuck.Stop()
	synctest.Test(t, func(t *testing.T) {
		var seed uint64
		for _, b := range s {
			seed = seed*257 + uint64(b) + 1
		}
		w := newWorld(seed)
		w.traffic = &traffic{w: w, chance: rand.New(rand.NewPCG(seed, 0)), seen: make(map[sight]*conn),
			sent: make(map[flow]int), cutting: s.head()&16 != 0}
		for _, change := range edit {
			change(w)
		}
		most := maxConnections
		if s.head()%2 == 1 {
			most = fewConnections
		}
		for i := range w.sides {
			if w.sides[i] = newSide(w, i, most); s.replicas()>>i&1 != 0 {
				w.sides[i].replicate()
			}
		}
		w.connect()
		for _, side := range w.sides {
			for _, p := range side.pods {
				if s.head()&32 != 0 {
					p.folder = memoryDir(t)
					p.config.State = p.folder
				}
				if err := p.start(); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.watch()
		for range 1 + int(s.head()/2%8) {
			w.traffic.beginAny()
		}
		calm := s.play(w)
		w.run(calm)
		w.judgeRecovery(calm)
		if w.failure == "" {
			w.judgeLedgers()
		}
		for _, p := range w.pods() {
			p.halt()
		}
		r = result{schedules: 1, failure: w.failure, packets: w.packets, faults: w.faults, moved: w.moved,
			switches: w.switches, lasted: w.now(), world: w}
		w.mu.Lock()
		r.carried = w.carried
		w.mu.Unlock()
	})
	return r
}

// memoryDir returns a folder that no disk has, where there is such: a gateway waits until what it
// keeps is durable.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "sim")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s schedule) head() byte {
	if len(s) == 0 {
		return 0
	}
	return s[0]
}

// withReplicas makes the schedule of a seed with some faults, in which gateways of a side or of
// both have two pods.
func withReplicas(seed uint64, faults int) schedule {
	return append(random(seed, faults), byte(1+seed/2%3))
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
	if r.failure != "" || r.packets < 200 {
		t.Errorf("%q after %d packets", r.failure, r.packets)
	}
	t.Logf("%d packets reached pods, %d datagrams in %v", r.packets, r.carried, r.lasted)
}

// TestHandOver: of what pods send while gateways hand over, everything arrives, however far the
// peer is, and with the next gateway at another port, too.
func TestHandOver(t *testing.T) {
	for _, roundTrip := range []time.Duration{2 * wanLatency, 400 * time.Millisecond, 800 * time.Millisecond} {
		t.Run(roundTrip.String(), func(t *testing.T) { testHandOver(t, roundTrip) })
	}
}

func testHandOver(t *testing.T, roundTrip time.Duration) {
	number := func(name string) byte {
		return byte(slices.IndexFunc(faults, func(f fault) bool { return f.name == name }))
	}
	s := schedule{14, 1}
	for how := range byte(4) {
		s = append(s, number("upgrade"), how, 0xf0) // each side every three seconds
	}
	for _, how := range []byte{0x12, 0x22, 2} { // to other ports, while the other side does nothing
		s = append(s, number("roam"), 0, 0xf0, number("upgrade"), how, 0xf0)
	}
	r := play(t, s, func(w *world) {
		w.traffic.pace = 2 * time.Millisecond
		w.after(time.Second, func() { // when there is a session
			for _, s := range w.sides {
				s.toPeer.set(func(l *leg) { l.delay = roundTrip/2 - wanLatency })
			}
		})
	})
	if r.failure != "" || r.moved != 7 || r.packets < 1000 || r.packets != r.world.sent {
		t.Errorf("%q after %d hand-overs: %d packets of %d arrive", r.failure, r.moved, r.packets, r.world.sent)
	}
	t.Logf("%d hand-overs, %d packets, %d datagrams in %v", r.moved, r.packets, r.carried, r.lasted)
}

// TestNextGatewayDies: whenever a gateway is killed within the second after it has taken over,
// under traffic both ways, the one before goes on.
func TestNextGatewayDies(t *testing.T) {
	upgrade := byte(slices.IndexFunc(faults, func(f fault) bool { return f.name == "upgrade" }))
	for _, after := range []time.Duration{20, 50, 120, 200, 400, 800, 990} {
		t.Run((after * time.Millisecond).String(), func(t *testing.T) {
			r := play(t, schedule{14, 1, upgrade, 0, 0xf0, upgrade, 1, 0xf0}, func(w *world) {
				w.traffic.pace = 2 * time.Millisecond
				w.dies = after * time.Millisecond
			})
			if r.failure != "" || r.world.survived != 2 || r.packets < 1000 {
				t.Errorf("%q; in %d of 2 hand-overs the gateway before went on; %d packets", r.failure,
					r.world.survived, r.packets)
			}
		})
	}
}

var (
	scheduleFlag = flag.String("schedule", "", "of TestSchedules: the only one, its bytes in hex")
	replaysFlag  = flag.Int("replays", 100, "of TestSchedules: how often one that fails is run again")
	seedFlag     = flag.Uint64("seed", 1, "of TestSchedules: the first")
	countFlag    = flag.Int("schedules", 0, "of TestSchedules: how many; 0: as many as there is time for")
	timeFlag     = flag.Duration("time", 20*time.Second, "of TestSchedules: for how long, if it is not told how many")
	packetsFlag  = flag.Int("packets", 0, "of TestSchedules: after how many that reach a pod it ends; 0: any number")
	replicasFlag = flag.String("replicas", "some",
		"of TestSchedules: which schedules have gateways with two pods: none, some or all")
	workersFlag = flag.Int("workers", 1, "of TestSchedules: how many processes share the schedules")
)

const (
	faultsEach = 22      // in a random schedule
	longCount  = 100_000 // with CULVERT_LONG, by a process for each core

	// stuckTime is far more than any schedule takes.
	stuckTime = 2 * time.Minute
)

// TestSchedules: whatever fails in whatever order, nothing goes where it does not belong, and soon
// after all works again.
func TestSchedules(t *testing.T) {
	only, err := hex.DecodeString(*scheduleFlag)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(only) > 0:
		*countFlag = 1
	case os.Getenv("CULVERT_LONG") != "" && *countFlag == 0 && *packetsFlag == 0:
		*countFlag, *workersFlag = longCount, runtime.NumCPU()
	}
	if *workersFlag > 1 {
		spread(t)
		return
	}
	var sum result
	end := time.Now().Add(*timeFlag)
	for *countFlag == 0 && time.Now().Before(end) || sum.schedules < *countFlag {
		seed := *seedFlag + uint64(sum.schedules)
		s := random(seed, faultsEach)
		switch {
		case len(only) > 0:
			s = only
		case *replicasFlag == "all", *replicasFlag == "some" && seed%2 == 0:
			s = withReplicas(seed, faultsEach)
		}
		r := play(t, s)
		if sum.add(r); r.failure != "" {
			t.Logf("seed %d, after %d schedules, %d packets\n%s", seed, sum.schedules-1, sum.packets, r.failure)
			report(t, s, r)
			replay(t, s)
			break
		}
		r.world.release()
		if sum.schedules%1000 == 0 {
			t.Logf("%d schedules, %d packets", sum.schedules, sum.packets)
		}
		if *packetsFlag > 0 && sum.packets >= *packetsFlag {
			break
		}
	}
	t.Logf("seeds from %d on: %v", *seedFlag, &sum)
}

// add adds what came of another schedule, or of several.
func (r *result) add(more result) {
	r.schedules += more.schedules
	r.packets, r.carried = r.packets+more.packets, r.carried+more.carried
	r.faults, r.moved, r.switches, r.lasted = r.faults+more.faults, r.moved+more.moved, r.switches+more.switches,
		r.lasted+more.lasted
}

const (
	totals = "%d schedules, %d faults, %d hand-overs, %d switches, %s of virtual time, %d datagrams, %d packets reached pods"
	atEnd  = "seeds from %d on: " + totals
)

func (r *result) String() string {
	return fmt.Sprintf(totals, r.schedules, r.faults, r.moved, r.switches, r.lasted.Round(time.Second),
		r.carried, r.packets)
}

// spread has several processes run TestSchedules, each with a part of the schedules.
func spread(t *testing.T) {
	var (
		wait sync.WaitGroup
		mu   sync.Mutex
		sum  result
	)
	each := (*countFlag + *workersFlag - 1) / *workersFlag
	for i := range *workersFlag {
		run := need.Self("-test.v", "-test.timeout=6h", "-test.run=^TestSchedules$", fmt.Sprintf("-replays=%d",
			*replaysFlag), "-replicas="+*replicasFlag,
			fmt.Sprintf("-time=%v", *timeFlag), fmt.Sprintf("-schedules=%d", each),
			fmt.Sprintf("-seed=%d", *seedFlag+uint64(i*each)))
		wait.Go(func() {
			out, err := run.CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			_, line, _ := strings.Cut(string(out), "seeds from ")
			var r result
			var from uint64
			var lasted string
			if _, err := fmt.Sscanf("seeds from "+line, atEnd, &from, &r.schedules, &r.faults, &r.moved, &r.switches,
				&lasted, &r.carried, &r.packets); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			r.lasted, _ = time.ParseDuration(lasted)
			sum.add(r)
		})
	}
	wait.Wait()
	t.Logf(atEnd, *seedFlag, sum.schedules, sum.faults, sum.moved, sum.switches, sum.lasted, sum.carried, sum.packets)
}

// report tells of a failure all that is known.
func report(t *testing.T, s schedule, r result) {
	t.Helper()
	var text strings.Builder
	r.world.diagram(&text, 80)
	t.Errorf("%s\n%v\nrun again: go test ./integration/sim -run TestSchedules -artifacts -schedule=%x\n%s", r.failure,
		s, []byte(s), text.String())
	dir := t.ArtifactDir()
	for name, write := range map[string]func(io.Writer) error{
		"sequence.mmd":   func(to io.Writer) error { r.world.diagram(to, ringSize); return nil },
		"packets.pcapng": r.world.capture,
	} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(write(file), file.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// replay runs a schedule again, many times, and tells how often it fails.
func replay(t *testing.T, s schedule) {
	t.Helper()
	failed := 0
	for range *replaysFlag {
		if play(t, s).failure != "" {
			failed++
		}
	}
	t.Logf("%d of %d replays fail", failed, *replaysFlag)
}

// FuzzSchedule lets go test -fuzz make schedules.
func FuzzSchedule(f *testing.F) {
	f.Add([]byte(random(1, faultsEach)))
	f.Add([]byte(withReplicas(2, faultsEach)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, s []byte) {
		if *replicasFlag == "none" && len(s) > scheduleHead {
			s = s[:len(s)-(len(s)-scheduleHead)%faultBytes]
		}
		if r := play(t, s); r.failure != "" {
			report(t, s, r)
		}
	})
}
