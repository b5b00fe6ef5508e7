package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"culvert/gateway/control"
	"culvert/integration/need"
)

// culvert runs culvert as this user and returns what it printed, and its exit status.
func (u *labUser) culvert(args ...string) (stdout, stderr string, status int) {
	u.t.Helper()
	var out, diag bytes.Buffer
	cmd := u.program(u.binary, args...)
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		u.t.Fatal(err)
	}
	return out.String(), diag.String(), cmd.ProcessState.ExitCode()
}

// examplesOf returns the arguments of the example commands in a help text, up to a pipe.
func examplesOf(help string) (all [][]string) {
	_, rest, _ := strings.Cut(help, "Examples:\n")
	examples, _, _ := strings.Cut(rest, "\n\n")
	for line := range strings.Lines(examples) {
		command, _, _ := strings.Cut(line, " | ")
		all = append(all, strings.Fields(command)[1:])
	}
	return all
}

// want runs culvert, and requires its exit status and a text. It returns what culvert printed.
func (u *labUser) want(status int, text string, args ...string) string {
	u.t.Helper()
	out, diag, got := u.culvert(args...)
	if got != status || !strings.Contains(out+diag, text) {
		u.t.Errorf("culvert %s: status %d, want %d and %q:\n%s%s", strings.Join(args, " "), got, status,
			text, out, diag)
	}
	return out
}

// TestOperating runs each command that asks a gateway as a user would, beside the gateways of a
// lab.
func TestOperating(t *testing.T) {
	needPrograms(t, []probe{probeTshark, programs("bash", "bash"), programs("ping", "ping")})
	u := newLabUser(t).ordinary()
	u.need("vxlan")
	u.want(2, "--socket", "status") // no gateway runs
	u.up()
	u.want(2, "2 gateways run here", "status")
	u.want(2, "--socket", "status", "--socket", "paris")
	u.want(0, "rome to milan, client", "status", "--socket", "rome")
	u.readPage("milan", "rome")
	u.want(0, "RFC 8439", "doctor", "--socket", "rome")
	u.gather()
	file := u.capturePings()
	flow := u.askFlow()
	u.runExamples(flow)
	u.readCapture(file)

	u.want(2, "rome-node1, rome-node2, tunnel", "connections", "--socket", "rome", "--node", "nope")
	u.deleteConnections()
	u.want(0, "remap-podcidr/outgoing/10.61.0.0/16", "rules", "--socket", "rome")
	u.want(0, "10.0.1.0/24", "routes", "--socket", "rome")
	u.want(0, `"stage":"dnat"`, "rules", "--socket", "rome", "-o", "json")
	u.editFile()
	u.requireOthersDenied()
	os.Remove(file)
	u.expect(0, "gone", "down")
	u.requireNothingLeft()
}

// gather makes an archive of what rome's gateway says, and asks it.
func (u *labUser) gather() {
	u.t.Helper()
	archive := filepath.Join(u.runtime, "fault.tar.gz")
	u.want(0, archive+": 5 files, ", "gather", "--socket", "rome", "-w", archive)
	u.want(0, "rome to milan, client", "status", "--from", archive)
	need.NoError(u.t, os.Remove(archive))
}

// capturePings captures three pings through rome's gateway to a file.
func (u *labUser) capturePings() (file string) {
	u.t.Helper()
	file = filepath.Join(u.runtime, "ping.pcapng")
	capture := u.program(u.binary, "capture", "--socket", "rome", "--at", "pre,post", "--protocol", "icmp", "-a",
		"10.61.1.5", "-w", file)
	var lost bytes.Buffer
	capture.Stderr = &lost
	need.NoError(u.t, capture.Start())
	await(u.t, "the file has its header, so the capture runs", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	u.expect(0, " 0% packet loss", "exec", "rome/pod1", "--", "ping", "-c", "3", "-i", "0.2", "10.61.1.5")
	capture.Process.Signal(syscall.SIGINT)
	if err := capture.Wait(); err != nil || !strings.Contains(lost.String(), "12 packets captured, 0 lost") {
		u.t.Errorf("capture: %v, %s", err, lost.String())
	}
	return file
}

// readCapture requires that tshark understands a capture of the pings, and their comments.
func (u *labUser) readCapture(file string) {
	u.t.Helper()
	out, err := need.Command(u.t, "tshark", "-r", file, "-Y", "_ws.expert.severity == error or _ws.malformed").Output()
	if err != nil || len(out) > 0 {
		u.t.Errorf("tshark: %v, %s", err, out)
	}
	out, err = need.Command(u.t, "tshark", "-r", file, "-T", "fields", "-e", "frame.interface_name", "-e", "ip.dst",
		"-e", "frame.comment", "-c", "2").Output()
	if s := string(out); err != nil ||
		!strings.Contains(s, "pre\t10.61.1.5\tforward from rome-node1 to tunnel; connection ") ||
		!strings.Contains(s, ", icmp 10.0.1.5:") || !strings.Contains(s, ", translated by remap to 10.0.1.5:") ||
		!strings.Contains(s, "post\t10.0.1.5\t") {
		u.t.Errorf("tshark: %v, %s", err, s)
	}
}

// askFlow asks about the connection of the pings, and about packets of none. It returns its ID.
func (u *labUser) askFlow() string {
	u.t.Helper()
	var c control.Connection
	if err := json.Unmarshal([]byte(u.want(0, "", "connections", "--socket", "rome", "--address", "10.61.1.5", "-o",
		"json")), &c); err != nil ||
		c.ID == 0 || c.From != "rome-node1" || c.To != "tunnel" || c.Sent.Packets != 3 || c.Received.Packets != 3 ||
		c.Uses[0] != "remap" {
		u.t.Errorf("%+v, %v", c, err)
	}
	u.want(0, "10.61.1.5", "connections", "--socket", "rome", "--node", "rome-node1")
	u.want(0, "- action: ", "rules", "--socket", "rome", "-o", "yaml")
	flow := fmt.Sprint(c.ID)
	u.want(0, "connection  "+flow+": icmp, direction original", "trace", "--socket", "rome", "--flow", flow)
	u.want(0, "drop: no-route: no remote CIDR has it", "trace", "--socket", "rome", "tcp", "10.0.1.5", "8.8.8.8:443")
	u.want(2, "no node has pods with the address 172.16.0.1; say where the packet comes in", "trace", "--socket",
		"rome", "tcp", "172.16.0.1", "10.61.1.5:80")
	return flow
}

// runExamples runs the examples of the commands' help texts, for a connection of this lab.
func (u *labUser) runExamples(flow string) {
	u.t.Helper()
	ours := strings.NewReplacer("--flow 17", "--flow "+flow, "--port 8090", "--port 0", "rome-1", "rome-node1")
	for _, command := range []string{"status", "connections", "trace", "capture", "rules", "routes", "reload", "page",
		"connections delete"} {
		help, _, _ := u.culvert(append(strings.Fields(command), "--help")...)
		for _, example := range examplesOf(help) {
			args := strings.Fields(ours.Replace(strings.Join(example, " ")))
			if !slices.Contains(args, "--socket") {
				args = append(args, "--socket", "rome")
			}
			if lasting(args) {
				u.interrupted(args...)
			} else {
				u.want(0, "", args...)
			}
		}
	}
}

// deleteConnections deletes those of the pings, once.
func (u *labUser) deleteConnections() {
	u.t.Helper()
	u.want(2, "connections delete: which?", "connections", "delete", "--socket", "rome")
	if deleted := u.want(0, " connections deleted", "connections", "delete", "--socket", "rome", "--address",
		"10.61.1.5"); strings.HasPrefix(deleted, "0 ") {
		u.t.Error(deleted)
	}
	u.want(0, "0 connections deleted", "connections", "delete", "--socket", "rome", "--address", "10.61.1.5")
}

// editFile adds a rule to the file of rome's gateway, which README's commands show, and a mistake.
func (u *labUser) editFile() {
	u.t.Helper()
	config := filepath.Join(u.runtime, "culvert/lab/up/rome/gateway.yaml")
	text, err := os.ReadFile(config)
	need.NoError(u.t, err)
	write := func(more string) {
		u.t.Helper()
		need.NoError(u.t, os.WriteFile(config, append(bytes.Clone(text), more...), 0o600))
	}
	write("\nrules: [{name: no-ssh-in, from: remote, protocol: tcp, ports: \"22\", action: drop}]\n")
	for _, c := range readmeCommands(u.t) {
		if missing := c.missing(u.want(0, "", append(c.args, "--socket", "rome")...)); len(missing) > 0 {
			u.t.Errorf("culvert %s does not print what README shows: %q", strings.Join(c.args, " "), missing)
		}
	}
	u.want(0, "applied: rules: 1 added (no-ssh-in)", "reload", "--socket", "rome")
	u.want(0, "nothing would change", "reload", "--dry-run", "--socket", "rome")
	u.want(0, "gateway.yaml:", "rules", "--socket", "rome")
	u.want(0, "gateway.yaml:", "trace", "--socket", "rome", "--from", "tunnel", "tcp", "10.0.1.5", "10.0.1.5:22")
	write("\nmtuu: 3\n")
	u.want(2, "mtuu: no such field; did you mean mtu?", "reload", "--socket", "rome")
}

// requireOthersDenied: another user may not open this one's sockets.
func (u *labUser) requireOthersDenied() {
	u.t.Helper()
	if os.Getuid() != 0 {
		return // and cannot become another user
	}
	other := *u
	other.runtime = "/"
	other.credential = &syscall.Credential{Uid: 65533, Gid: 65533}
	path := filepath.Join(u.runtime, "culvert/lab/up/culvert/rome-milan.sock")
	if _, diag, status := other.culvert("status", "--socket", path); status != 2 ||
		!strings.Contains(diag, "permission denied; run this as ") || strings.Count(diag, "\n") != 1 {
		u.t.Errorf("another user: status %d, %s", status, diag)
	}
}
