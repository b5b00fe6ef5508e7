package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
)

// A mutant is a fault of the product, made by one replacement, that the simulation has to find.
type mutant struct {
	fault    string
	file     string
	old, new string
}

// mutants are those that schedules with one pod a side find.
var mutants = []mutant{
	{"the checksum of an answer keeps the port's difference", "nat/conn.go",
		"packet.Negate(c.addresses), packet.Negate(c.ports)", "packet.Negate(c.addresses), c.ports"},
	{"two connections get one port", "nat/ports.go",
		"link, now); !taken {", "link, now); !taken || d.shared {"},
	{"what has waited for a neighbour does not count as sent", "geneve/hold.go",
		"\t\tt.sentPackets.Add(uint64(train.Sent))\n", ""},
	{"of a batch, only so many messages count as sent", "gateway/wg/bind.go",
		"\t\t\tb.out.take(data)", "\t\t\tb.out.take(min(data, 3))"},
	{"a full window waits for ever for what WireGuard has discarded", "gateway/wg/inflight.go",
		"quiet == windowPatience || w.stalled.Load()", "quiet < 0"},
	{"the queue of answers does not wake who is to take them", "gateway/path/queue.go",
		"\tif len(q.packets) == 1 {", "\tif len(q.packets) == 2 {"},
	{"a peer may begin a handshake twice a minute", "gateway/wg/admission.go",
		"\tallPace = limit{10 * time.Millisecond, 8}", "\tallPace = limit{30 * time.Second, 1}"},
	{"nobody is told that a packet is too long", "nat/refuse.go",
		"\tif v.Action != Drop || ", "\tif v.Action != Drop || v.MTU > 0 || "},
	{"an ICMP error quotes the port that only this gateway knows", "nat/packet/icmp.go",
		"\tq.Rewrite(to, addresses, ports)", "\tto.Ports = from.Ports\n\tq.Rewrite(to, addresses, ports)"},
	{"a gateway that takes over does without the connections", "gateway/handover/table.go",
		"\t\tr.Write(body)\n", ""},
	{"of SCTP, what arrives broken leaves sound", "nat/fit.go",
		"\tp.DecrementHops()",
		"\tif p.DecrementHops(); pl.ports != 0 && p.Protocol() == packet.SCTP {\n\t\tp.SumSCTP()\n\t}"},
}

// replicaMutants are faults of what two pods of a gateway do, found by schedules with two pods.
var replicaMutants = []mutant{
	{"what has changed since the full copy is not copied", "nat/feedmarks.go",
		"\t\t*word |= bit\n\t\tm.waiting++\n", "\t\tm.waiting += 0\n"},
	{"a full copy lacks connections", "nat/feedmarks.go",
		"\t\tm.changed[i] = ^uint64(0)\n", "\t\tm.changed[i] = 0xf\n"},
	{"a pod whose Lease has run out takes it for its own", "gateway/role/role.go",
		"m.role == Active && m.now >= m.ends", "m.role == Active && m.now < m.since"},
	{"told of a newer Lease it goes on", "kube/election/leave.go",
		"e.machine.Told(n.Pod, n.Term, e.now())", "_ = n.Term"},
	{"a lost peer is called where it was last", "gateway/wg/resolve.go",
		"vain = vain && lost // a", "vain = false // a"},
}

// switchMutants are found by TestSwitches: random schedules do not kill one pod again and again.
var switchMutants = []mutant{
	{"a pod that has only started renews the Lease", "kube/election/elector.go",
		"e.gateway == nil {", "e.gateway == nil && (have == nil || have.Holder != e.Pod) {"},
}

// mutantPackets is within how many packets each is found.
const mutantPackets = 1_000_000

// TestMutants: each is one replacement in the product as it is; and with CULVERT_LONG, each is
// found.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range slices.Concat(mutants, replicaMutants, switchMutants) {
		test, replicas := "TestSchedules", "none"
		switch {
		case i >= len(mutants)+len(replicaMutants):
			test = "TestSwitches"
		case i >= len(mutants):
			replicas = "all"
		}
		t.Run(strings.ReplaceAll(m.fault, " ", "-"), func(t *testing.T) {
			file := filepath.Join(root, m.file)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), m.old); n != 1 {
				t.Fatalf("%s has %q %d times, want once", m.file, m.old, n)
			}
			if os.Getenv("CULVERT_LONG") != "" {
				t.Log(find(t, file, strings.Replace(string(text), m.old, m.new, 1), test, replicas))
			}
		})
	}
}

var (
	foundAfter = regexp.MustCompile(`seed \d+, after \d+ schedules, \d+ packets\n.*\n`)
	replays    = regexp.MustCompile(`\d+ of \d+ replays fail`)
	standsAt   = regexp.MustCompile(`sim: time stands still: .*`)
	switchedAt = regexp.MustCompile(`switch_test\.go:\d+: .*`)
)

// find runs a test with another text in place of a file's until it fails, TestSchedules with two
// pods in all schedules or none, and returns how that was found.
func find(t *testing.T, file, text, test, replicas string) string {
	t.Helper()
	dir := t.TempDir()
	mutant, overlay, binary := filepath.Join(dir, filepath.Base(file)), filepath.Join(dir, "overlay.json"),
		filepath.Join(dir, "sim.test")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{mutant: []byte(text), overlay: replace} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := need.Go("test", "-c", "-vet=off", "-overlay", overlay, "-o", binary,
		".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := need.Command(t, binary, "-test.v", "-test.timeout=30m", "-test.run=^"+test+"$", "-replays=10", "-time=25m",
		"-replicas="+replicas,
		fmt.Sprintf("-packets=%d", mutantPackets))
	run.Env = append(os.Environ(), "CULVERT_LONG=1")
	out, err := run.CombinedOutput()
	if err == nil {
		t.Fatalf("not found: %s", out)
	}
	if how := foundAfter.Find(out); how != nil {
		return string(how) + string(replays.Find(out))
	}
	how := standsAt.Find(out)
	if test == "TestSwitches" {
		how = switchedAt.Find(out)
	}
	if how == nil {
		t.Fatalf("found nothing, and failed: %s", out)
	}
	return string(how)
}
