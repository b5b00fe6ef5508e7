package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lasting reports whether a command runs until it is interrupted.
func lasting(args []string) bool {
	return args[0] == "capture" || args[0] == "page" || slices.Contains(args, "--watch")
}

// interrupted runs a lasting command beside packets of all kinds that the examples wait for, and
// interrupts it once it has written something to its output or file.
func (u *labUser) interrupted(args ...string) {
	u.t.Helper()
	cmd := u.program(u.binary, args...)
	printed, err := os.CreateTemp("", "printed")
	if err != nil {
		u.t.Fatal(err)
	}
	path := printed.Name()
	defer os.Remove(path)
	defer printed.Close()
	if i := slices.Index(args, "-w"); i >= 0 {
		path = filepath.Join(u.runtime, args[i+1])
		defer os.Remove(path)
	}
	var diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = printed, &diag
	if err := cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(startTimeout); ; {
		if info, err := os.Stat(path); err == nil && info.Size() > 0 {
			break
		}
		if time.Now().After(deadline) {
			u.t.Errorf("culvert %s says nothing", strings.Join(args, " "))
			break
		}
		u.expect(0, "", "exec", "rome/pod1", "--", "bash", "-c",
			"ping -c 1 -W 1 10.61.1.5; echo > /dev/udp/10.61.1.5/53")
	}
	cmd.Process.Signal(syscall.SIGINT)
	if err := <-ended; err != nil {
		u.t.Errorf("culvert %s: %v: %s", strings.Join(args, " "), err, diag.String())
	}
}

// A shownCommand is a command of README, with the output that README shows.
type shownCommand struct {
	args  []string
	shows []string
}

// readmeCommands returns README's commands that ask a gateway.
func readmeCommands(t *testing.T) (all []shownCommand) {
	t.Helper()
	for _, block := range blocks(t, "../README.md") {
		if !strings.HasPrefix(block, "$ culvert ") {
			continue
		}
		for line := range strings.Lines(block) {
			line = strings.TrimRight(line, "\n")
			if command, ok := strings.CutPrefix(line, "$ culvert "); ok {
				command, _, _ = strings.Cut(command, " #")
				all = append(all, shownCommand{args: strings.Fields(command)})
				continue
			}
			c := &all[len(all)-1]
			c.shows = append(c.shows, line)
		}
	}
	if len(all) == 0 {
		t.Fatal("README has no commands that ask a gateway")
	}
	return all
}

// beginOf matches the part of an output line that is the same on every machine.
var beginOf = regexp.MustCompile(`^(?:[A-Z]{2}.*|[^\d ]\S*(?: \S+)*?(?:  |$| ?\d)|)`)

// missing returns beginnings of lines that README shows and the output lacks. README shows a lab
// with a fault.
func (c *shownCommand) missing(output string) (missing []string) {
	for _, line := range c.shows {
		begin := strings.TrimRight(beginOf.FindString(line), "0123456789")
		if begin == "" || line == "…" || strings.HasPrefix(line, "warning: ") {
			continue
		}
		if strings.ToUpper(begin) == begin { // a table's heading
			begin = strings.Join(strings.Fields(begin), " ")
		}
		found := false
		for printed := range strings.Lines(output) {
			found = found || strings.HasPrefix(printed, begin) || strings.Join(strings.Fields(printed), " ") == begin
		}
		if !found {
			missing = append(missing, begin)
		}
	}
	return missing
}
