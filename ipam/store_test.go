package ipam

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

// asAcquirer makes this test binary acquire without end; see acquirer.
const asAcquirer = "IPAM_TEST_ACQUIRER"

func TestMain(m *testing.M) {
	if args := os.Getenv(asAcquirer); args != "" {
		acquirer(strings.Fields(args))
		return
	}
	os.Exit(m.Run())
}

// acquirer acquires from the file args[0] for the peer args[1], owners from number args[2]
// on, and prints "real remapped" once it has the answer. It releases every fourth, and
// prints "real" before that. With args[3], a number of bytes, no file may grow larger.
func acquirer(args []string) {
	s := Open(args[0])
	n, _ := strconv.Atoi(args[2])
	if len(args) > 3 {
		limit, _ := strconv.ParseUint(args[3], 10, 64)
		signal.Ignore(syscall.SIGXFSZ) // a write ends early, then with EFBIG
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			fmt.Println("error", err)
			return
		}
	}
	plan, err := NewPlan(nil, nil)
	for ; err == nil; n++ {
		o := Owner{args[1], Pod, fmt.Sprintf("10.%d.%d.0/24", n>>8&255, n&255)}
		start := time.Now()
		var got any
		err = s.Update(context.Background(), func(l *Ledger) (err error) {
			got, err = l.Network(plan, o, cidr(o.Real), time.Unix(0, 0))
			return err
		})
		if err == nil {
			fmt.Println(o.Real, got, time.Since(start).Microseconds())
		}
		if err == nil && n%4 == 3 {
			fmt.Println(o.Real)
			err = s.Update(context.Background(), func(l *Ledger) error { return l.Release(o) })
		}
	}
	fmt.Println("error", err)
}

func acquirerCommand(args ...any) *exec.Cmd {
	cmd := need.Self()
	cmd.Env = append(os.Environ(), asAcquirer+"="+strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
	cmd.Stderr = os.Stderr
	return cmd
}

// promised follows what acquirers printed: what the file must hold, and what it may.
type promised map[Owner]struct {
	remapped string
	released bool // or about to be
}

// read takes in the output of peer's acquirer, and returns how often it answered and the
// longest time that an answer took.
func (p promised) read(t *testing.T, peer, output string) (answers int, longest time.Duration) {
	t.Helper()
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if !strings.HasSuffix(line, "\n") || len(fields) == 0 || fields[0] == "error" {
			continue // cut off by the kill, or the last word
		}
		o := Owner{peer, Pod, fields[0]}
		entry := p[o]
		if entry.released = len(fields) == 1; !entry.released {
			if entry.remapped != "" && entry.remapped != fields[1] {
				// Only what was released may come back as something else.
				t.Errorf("%s was given %s, then %s", o, entry.remapped, fields[1])
			}
			entry.remapped = fields[1]
			us, _ := strconv.Atoi(fields[2])
			longest = max(longest, time.Duration(us)*time.Microsecond)
			answers++
		}
		p[o] = entry
	}
	return answers, longest
}

// check compares the file with what was promised.
func (p promised) check(t *testing.T, s *Store) *Ledger {
	t.Helper()
	l, err := s.Read()
	need.NoError(t, err)
	held := map[Owner]string{}
	for _, e := range l.given {
		held[e.Owner] = e.RemappedText()
	}
	for o, entry := range p {
		if got := held[o]; got != entry.remapped && !entry.released {
			t.Fatalf("%s was promised %s; the file says %q", o, entry.remapped, got)
		}
	}
	return l
}

// TestKills: a process that acquires, releases and prints is killed at random moments.
// What it printed is in the file, and the file always loads.
func TestKills(t *testing.T) {
	kills := 60
	if long() {
		kills = 2000
	}
	s := Open(filepath.Join(t.TempDir(), "ipam.json"))
	known := promised{}
	answers := 0
	for i := range kills {
		cmd := acquirerCommand(s.path, "milan", answers%2000)
		pipe, err := cmd.StdoutPipe()
		need.NoError(t, err)
		need.NoError(t, cmd.Start())
		out := bufio.NewReader(pipe)
		said := ""
		if i%4 > 0 { // most are killed at work, some while they start
			if said, err = out.ReadString('\n'); err != nil {
				t.Fatalf("%v: %s", err, said)
			}
		}
		time.Sleep(rand.N(20 * time.Millisecond)) // the kill comes at a random time
		cmd.Process.Kill()
		rest, err := io.ReadAll(out)
		need.NoError(t, err)
		cmd.Wait()
		n, _ := known.read(t, "milan", said+string(rest))
		answers += n
		known.check(t, s)
	}
	if answers == 0 {
		t.Fatal("no process answered before it was killed")
	}
	t.Logf("%d kills, %d answers", kills, answers)
}

// TestEightProcesses: no two get overlapping CIDRs, no owner is lost, nobody starves.
func TestEightProcesses(t *testing.T) {
	duration, patience := 2*time.Second, 20*time.Second
	if long() {
		duration, patience = time.Minute, time.Second
	}
	s := Open(filepath.Join(t.TempDir(), "ipam.json"))
	type acquirer struct {
		cmd    *exec.Cmd
		first  string
		out    *bufio.Reader
		output chan string // all of it, at the end
	}
	var all []*acquirer
	for i := range 8 {
		a := &acquirer{cmd: acquirerCommand(s.path, fmt.Sprint("peer", i), 0), output: make(chan string, 1)}
		pipe, err := a.cmd.StdoutPipe()
		need.NoError(t, err)
		need.NoError(t, a.cmd.Start())
		a.out = bufio.NewReader(pipe)
		all = append(all, a)
	}
	for i, a := range all {
		var err error
		if a.first, err = a.out.ReadString('\n'); err != nil {
			t.Errorf("process %d: %q, %v", i, a.first, err)
		}
		go func() {
			rest, _ := io.ReadAll(a.out)
			a.output <- a.first + string(rest)
		}()
	}
	time.Sleep(duration) // the processes compete meanwhile
	known := promised{}
	for _, a := range all {
		a.cmd.Process.Kill()
	}
	for i, a := range all {
		output := <-a.output
		a.cmd.Wait()
		answers, longest := known.read(t, fmt.Sprint("peer", i), output)
		t.Logf("process %d: %d answers, the longest took %v", i, answers, longest)
		if longest > patience || strings.Contains(output, "error") {
			t.Errorf("process %d: the longest answer took %v; %s", i, longest, output[max(0, len(output)-200):])
		}
	}
	l := known.check(t, s) // reading refuses overlaps
	t.Logf("%d entries", len(l.given))
}

// acquire acquires n CIDRs.
func acquire(s *Store, first, n int) error {
	plan, err := NewPlan(nil, nil)
	if err != nil {
		return err
	}
	return s.Update(context.Background(), func(l *Ledger) error {
		for i := first; i < first+n; i++ {
			c := fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255)
			if _, err := l.Network(plan, Owner{"milan", Pod, c}, cidr(c), noon); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestWriteFaults: whichever step of a write fails, there is an error, and the file has its old
// content or, from the rename on, may have the new one. The next try succeeds.
func TestWriteFaults(t *testing.T) {
	steps := []string{"create", "write", "sync", "rename", "sync the folder"}
	for _, failing := range steps {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
			s := Open(filepath.Join(t.TempDir(), "ipam.json"))
			need.NoError(t, acquire(s, 0, 1))
			before, _ := os.ReadFile(s.path)
			s.disk.Fault = func(step string) error {
				if step == failing {
					return cause
				}
				return nil
			}
			err := acquire(s, 1, 1)
			if !errors.Is(err, ErrFile) || !errors.Is(err, cause) {
				t.Errorf("%s fails: %v", failing, err)
			}
			after, _ := os.ReadFile(s.path)
			if same := bytes.Equal(before, after); same != (failing != "sync the folder") {
				t.Errorf("%s fails: file unchanged: %v", failing, same)
			}
			if _, err := os.Stat(s.path + ".new"); err == nil {
				t.Errorf("%s fails: the new file stays", failing)
			}
			s.disk.Fault = nil
			if err := acquire(s, 2, 1); err != nil {
				t.Errorf("after %s failed: %v", failing, err)
			}
		}
	}
}

// TestTornWrites: a write that the kernel cuts off at any size of the file loses nothing.
func TestTornWrites(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "ipam.json"))
	need.NoError(t, acquire(s, 0, 3))
	before, _ := os.ReadFile(s.path)
	for limit := 0; limit <= len(before); limit += 37 {
		out, err := acquirerCommand(s.path, "milan", 100, limit).Output()
		if err != nil || !strings.HasPrefix(string(out), "error "+ErrFile.Error()) || !strings.Contains(string(out),
			"file too large") {
			t.Errorf("files of at most %d bytes: %s", limit, out)
		}
		if after, _ := os.ReadFile(s.path); !bytes.Equal(before, after) {
			t.Fatalf("files of at most %d bytes: the file is\n%s", limit, after)
		}
	}
}

// TestFileMode: only the owner may read the file and its locks; a symbolic link to the file stays a
// link.
func TestFileMode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := Open(filepath.Join(dir, "ipam.json"))
	need.NoError(t, acquire(s, 0, 1))
	mark, err := s.Claim(context.Background(), "milan")
	need.NoError(t, err)
	defer mark.Close()
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("%s has mode %v", dir, info.Mode())
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, _ := e.Info(); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	link := filepath.Join(t.TempDir(), "link.json")
	need.NoError(t, os.Symlink(s.path, link))
	need.NoError(t, acquire(Open(link), 1, 1))
	if info, _ := os.Lstat(link); info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link became %v", info.Mode())
	}
	if l, err := s.Read(); err != nil || len(l.given) != 2 {
		t.Errorf("behind the link: %v, %v", l, err)
	}
}

// TestNoFile: anything but an ordinary file is refused without waiting.
func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	need.NoError(t, syscall.Mkfifo(fifo, 0o600))
	large := filepath.Join(dir, "large")
	need.NoError(t, os.WriteFile(large, nil, 0o600))
	need.NoError(t, os.Truncate(large, maxFile+1))
	for path, want := range map[string]string{
		dir:                             "is no ordinary file",
		fifo:                            "is no ordinary file",
		large:                           "is larger than 64 MiB",
		filepath.Join(large, "no-file"): "not a directory",
	} {
		if err := acquire(Open(path), 0, 1); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestLocks: an Update waits for another no longer than its context allows; what a running gateway
// uses is not released; both locks end with their holder.
func TestLocks(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "ipam.json"))
	ctx, cancel := context.WithCancelCause(context.Background())
	err := s.Update(context.Background(), func(*Ledger) error {
		cancel(errors.New("waited long enough"))
		return s.Update(ctx, func(*Ledger) error { return errors.New("two at once") })
	})
	if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(),
		"ipam.json.lock is locked by another process: waited long enough") {
		t.Errorf("an Update within another: %v", err)
	}
	background := context.Background()
	first, err := s.Claim(background, "milan")
	need.NoError(t, err)
	second, err := s.Claim(background, "milan")
	if err != nil {
		t.Fatalf("a second gateway: %v", err)
	}
	first.Close()
	if _, err := s.Exclude(background, "milan"); !errors.Is(err, ErrRunning) {
		t.Errorf("exclude a gateway that runs: %v", err)
	}
	if other, err := s.Exclude(background, "paris"); err != nil {
		t.Errorf("exclude one that does not run: %v", err)
	} else {
		other.Close()
	}
	second.Close()
	excluded, err := s.Exclude(background, "milan")
	if err != nil {
		t.Fatalf("exclude one that has ended: %v", err)
	}
	if _, err := s.Claim(ctx, "milan"); err == nil {
		t.Error("a gateway starts while it is excluded")
	}
	excluded.Close()
}

// BenchmarkAcquire: one more owner beside 10,000, the sync included.
func BenchmarkAcquire(b *testing.B) {
	s := Open(filepath.Join(b.TempDir(), "ipam.json"))
	need.NoError(b, acquire(s, 0, 10_000))
	n := 10_000
	for b.Loop() {
		need.NoError(b, acquire(s, n, 1))
		n++
	}
}

// BenchmarkRead: what list does, with 10,000 owners.
func BenchmarkRead(b *testing.B) {
	s := Open(filepath.Join(b.TempDir(), "ipam.json"))
	need.NoError(b, acquire(s, 0, 10_000))
	for b.Loop() {
		if l, err := s.Read(); err != nil || len(l.Entries()) != 10_000 {
			b.Fatal(err)
		}
	}
}
