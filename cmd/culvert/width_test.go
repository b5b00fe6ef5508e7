package main

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/integration/need"
)

// onTerminal returns what a command shows on a terminal of so many columns.
func onTerminal(t *testing.T, columns int, args ...string) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	need.NoError(t, err)
	defer master.Close()
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: uint16(columns)})
	}
	need.NoError(t, err)
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	need.NoError(t, err)
	shown := make(chan string)
	go func() {
		var all bytes.Buffer
		io.Copy(&all, master) // until EIO: nobody has the other end
		shown <- strings.ReplaceAll(all.String(), "\r\n", "\n")
	}()
	cmd := culvert(args...)
	cmd.Stdout = slave
	err = cmd.Run()
	slave.Close()
	text := <-shown
	if err != nil {
		t.Fatalf("culvert %s: %v: %s", strings.Join(args, " "), err, text)
	}
	return text
}

// wide returns the lines of a text that have more columns and could be broken.
func wide(text string, columns int) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); utf8.RuneCountInString(line) > columns &&
			strings.ContainsAny(strings.TrimSpace(line), " /") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestWidth: text follows the terminal, and is not broken in a pipe.
func TestWidth(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	for _, args := range [][]string{
		{"status"}, {"rules"}, {"routes"}, {"trace", "tcp", "10.0.1.5", "8.8.8.8:443"}, {"trace", "tcp", "10.0.1.5",
			"10.61.1.5:443"}, {"doctor"},
	} {
		args = append(args, "--socket", r.socket)
		at80, at200 := onTerminal(t, 80, args...), onTerminal(t, 200, args...)
		if lines := wide(at80, 80); len(lines) > 0 {
			t.Errorf("culvert %s at 80 columns:\n%s", strings.Join(args, " "), strings.Join(lines, "\n"))
		}
		if strings.Count(at80, "\n") < strings.Count(at200, "\n") {
			t.Errorf("culvert %s: fewer lines at 80 columns than at 200:\n%s%s", strings.Join(args, " "), at80, at200)
		}
	}
	const remedy = "make the node's routes and the remaps of network.remote the same; its sender is told by ICMP: network unreachable"
	if out, _, _ := run(t, "trace", "tcp", "10.0.1.5", "8.8.8.8:443", "--socket", r.socket); !strings.Contains(
		out, remedy) {
		t.Errorf("broken in a pipe: %s", out)
	}
	if out := onTerminal(t, 80, "trace", "tcp", "10.0.1.5", "8.8.8.8:443", "--socket", r.socket); strings.Contains(
		out, remedy) {
		t.Errorf("not broken at 80 columns: %s", out)
	}
}

// TestTraceShows: in short, what decides, by the field that it comes from; with -v every step, by
// the rule's own name.
func TestTraceShows(t *testing.T) {
	steps := []control.TraceStep{
		{Kind: "decode", Name: "vxlan", Passed: true, Detail: "rome-1 has VNI 1", Origin: "node/rome-1",
			Field: "geneve.nodes[0]", Place: "g.yaml:5"},
		{Kind: "check", Name: "source", Passed: true},
		{Kind: "rule", Name: "gw-ext/outgoing/x", Passed: true, Detail: "set-mark 65536", Origin: "network/outbound",
			Field: "network.remote.podCIDRs[0]", From: "a", To: "b"},
		{Kind: "rule", Name: "remap/outgoing/x", Passed: true, Detail: "dnat 10.0.0.0/16", Origin: "network/remap",
			Field: "network.remote.podCIDRs[0]", From: "a", To: "b"},
		{Kind: "rule", Name: "mss/mss/in", Detail: "only for in tunnel", Origin: "network/mss", Field: "mssClamp",
			From: "a", To: "c"},
		{Kind: "route", Name: "gw-ext/1", Passed: true, Detail: "to tunnel via 169.254.18.1, with mark 65536",
			Origin: "network/routes", Field: "network.remote", From: "a", To: "c"},
		{Kind: "rule", Name: "rules/forward/no-ssh", Passed: true, Detail: "drop", Origin: "network/rules",
			Field: "rules[0]", Place: "g.yaml:46", From: "a", To: "c"},
		{Kind: "rule", Name: "deny/x/y", Passed: true, Detail: "drop", Origin: "FirewallConfiguration/liqo/deny",
			Field: "tables[0].chains[0].rules[1]", From: "a", To: "c"},
		{Kind: "check", Name: "room in the table"},
	}
	trace := &control.Trace{From: "rome-1", Verdict: "drop", Reason: "filtered", Steps: steps}
	for _, tt := range []struct {
		all        bool
		want, none []string
	}{
		{false, []string{
			"  decode      geneve.nodes[0] (g.yaml:5): vxlan: rome-1 has VNI 1\n",
			"  rule        network.remote.podCIDRs[0]: dnat 10.0.0.0/16\n  becomes     a > c\n",
			"  route       network.remote: to tunnel via 169.254.18.1\n",
			"  rule        rules[0] no-ssh (g.yaml:46): drop\n",
			"  rule        FirewallConfiguration/liqo/deny tables[0].chains[0].rules[1]: drop\n",
			"  no check    room in the table\n", "drop: filtered\n",
		}, []string{"mark", "gw-ext", "mss", "check       source"}},
		{true, []string{"  yes  check       source\n", "gw-ext/outgoing/x: set-mark 65536",
			"  no   rule        mss/mss/in: only for in tunnel",
			"gw-ext/1: to tunnel via 169.254.18.1, with mark 65536"}, nil},
	} {
		var b strings.Builder
		need.NoError(t, printTrace(&b, trace, false, tt.all))
		for _, want := range tt.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("all %v: no %q in\n%s", tt.all, want, b.String())
			}
		}
		for _, none := range tt.none {
			if strings.Contains(b.String(), none) {
				t.Errorf("all %v: %q in\n%s", tt.all, none, b.String())
			}
		}
	}
}

// TestTable: cells are broken beside their column where a terminal is too narrow, and only there.
func TestTable(t *testing.T) {
	for _, tt := range []struct {
		columns int
		want    string
	}{
		{0, "NAME    SAYS\na       some words that go on\nlonger  x\n\nalone\n"},
		{20, "NAME    SAYS\na       some words\n        that go on\nlonger  x\n\nalone\n"},
		// no word is broken
		{3, "NAME    SAYS\na       some\n        words\n        that\n        go on\nlonger  x\n\nalone\n"},
	} {
		page := &cli.Page{Columns: tt.columns}
		table := cli.NewTable(page)
		io.WriteString(table, "NAME\tSAYS\na\tsome words that go on\nlonger\tx\n\nalone\n")
		if err := table.Flush(); err != nil || page.String() != tt.want {
			t.Errorf("%d columns: %v\n%swant\n%s", tt.columns, err, page, tt.want)
		}
	}
}
