package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// requireNothingLeft fails if the user's labs have left a process, namespace, link, route, socket
// or file. Links, routes and sockets are in network namespaces, which end with their processes
// unless they are mounted.
func (u *labUser) requireNothingLeft() {
	u.t.Helper()
	eventually(u.t, "processes end", func() error {
		if left := u.processes(); len(left) > 0 {
			return fmt.Errorf("left are %v", left)
		}
		return nil
	})
	filepath.WalkDir(u.runtime, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || strings.HasPrefix(filepath.Base(path), "check-") {
			u.t.Errorf("%s is left (%v)", path, err)
		}
		return nil
	})
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		u.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " - nsfs ") && strings.Contains(line, u.runtime) {
			u.t.Error("a namespace is mounted:", line)
		}
	}
}

// processes returns the processes of this user's labs: those that run the binary with the user's
// runtime directory in their environment.
func (u *labUser) processes() map[int]string {
	found := make(map[int]string)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		u.t.Fatal(err)
	}
	for _, dir := range dirs {
		environment, err := os.ReadFile(dir + "/environ")
		here := "XDG_RUNTIME_DIR=" + u.runtime // this folder or one below it
		if err != nil || !strings.Contains(string(environment), here+"\x00") &&
			!strings.Contains(string(environment), here+"/") {
			continue // ended, or another user's
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(line) == 0 { // ended, or not reaped yet
			continue
		}
		found[pid] = strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ")
	}
	return found
}

// process returns one of the lab's culvert processes of a kind.
func (u *labUser) process(kind string) int {
	u.t.Helper()
	return u.find("culvert " + kind + " ")
}

// find returns one of the lab's processes with a text in its command line.
func (u *labUser) find(text string) int {
	u.t.Helper()
	processes := u.processes()
	for pid, line := range processes {
		if strings.Contains(line, text) {
			return pid
		}
	}
	u.t.Fatalf("no %q among %v", text, processes)
	return 0
}

// holder returns the process that owns the only lab.
func (u *labUser) holder() int {
	u.t.Helper()
	files, err := filepath.Glob(filepath.Join(u.runtime, "culvert/lab/*/state.json"))
	if err != nil || len(files) != 1 {
		u.t.Fatalf("state files %v (%v), want one", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		u.t.Fatal(err)
	}
	var state struct{ Holder struct{ PID int } }
	if err := json.Unmarshal(text, &state); err != nil {
		u.t.Fatal(err)
	}
	return state.Holder.PID
}

// hostLinks returns the links and routes of the namespace in which the tests run.
func hostLinks(t *testing.T) []string {
	t.Helper()
	var links []netlink.Link
	var routes []netlink.Route
	// Ask again if anybody changes something while the kernel answers.
	eventually(t, "the links and routes of this machine", func() (err error) {
		if links, err = netlink.LinkList(); err == nil {
			routes, err = netlink.RouteList(nil, netlink.FAMILY_ALL)
		}
		return err
	})
	var all []string
	for _, l := range links {
		all = append(all, fmt.Sprintf("%d %s %v", l.Attrs().Index, l.Attrs().Name, l.Attrs().Flags))
	}
	for _, r := range routes {
		all = append(all, r.String())
	}
	return all
}
