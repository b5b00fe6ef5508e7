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

// TestOperating runs each command that asks a gateway as a user would, beside the gateways of a
// lab.
func TestOperating(t *testing.T) {
	needPrograms(t, []probe{probeTshark, programs("bash", "bash"), programs("ping", "ping")})
	u := newLabUser(t).ordinary()
	u.need("vxlan")
	want := func(status int, text string, args ...string) string {
		t.Helper()
		out, diag, got := u.culvert(args...)
		if got != status || !strings.Contains(out+diag, text) {
			t.Errorf("culvert %s: status %d, want %d and %q:\n%s%s", strings.Join(args, " "), got, status,
				text, out, diag)
		}
		return out
	}
	want(2, "--socket", "status") // no gateway runs
	u.up()
	want(2, "2 gateways run here", "status")
	want(2, "--socket", "status", "--socket", "paris")
	want(0, "rome to milan, client", "status", "--socket", "rome")
	u.readPage("milan", "rome")
	want(0, "RFC 8439", "doctor", "--socket", "rome")
	archive := filepath.Join(u.runtime, "fault.tar.gz")
	want(0, archive+": 5 files, ", "gather", "--socket", "rome", "-w", archive)
	want(0, "rome to milan, client", "status", "--from", archive)
	need.NoError(t, os.Remove(archive))

	file := filepath.Join(u.runtime, "ping.pcapng")
	capture := u.program(u.binary, "capture", "--socket", "rome", "--at", "pre,post", "--protocol", "icmp", "-a",
		"10.61.1.5", "-w", file)
	var lost bytes.Buffer
	capture.Stderr = &lost
	need.NoError(t, capture.Start())
	await(t, "the file has its header, so the capture runs", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	u.expect(0, " 0% packet loss", "exec", "rome/pod1", "--", "ping", "-c", "3", "-i", "0.2", "10.61.1.5")
	capture.Process.Signal(syscall.SIGINT)
	if err := capture.Wait(); err != nil || !strings.Contains(lost.String(), "12 packets captured, 0 lost") {
		t.Errorf("capture: %v, %s", err, lost.String())
	}
	var c control.Connection
	if err := json.Unmarshal([]byte(want(0, "", "connections", "--socket", "rome", "--address", "10.61.1.5", "-o",
		"json")), &c); err != nil ||
		c.ID == 0 || c.From != "rome-node1" || c.To != "tunnel" || c.Sent.Packets != 3 || c.Received.Packets != 3 ||
		c.Uses[0] != "remap" {
		t.Errorf("%+v, %v", c, err)
	}
	want(0, "10.61.1.5", "connections", "--socket", "rome", "--node", "rome-node1")
	want(0, "- action: ", "rules", "--socket", "rome", "-o", "yaml")
	flow := fmt.Sprint(c.ID)
	want(0, "connection  "+flow+": icmp, direction original", "trace", "--socket", "rome", "--flow", flow)
	want(0, "drop: no-route: no remote CIDR has it", "trace", "--socket", "rome", "tcp", "10.0.1.5", "8.8.8.8:443")
	want(2, "no node has pods with the address 172.16.0.1; say where the packet comes in", "trace", "--socket", "rome",
		"tcp", "172.16.0.1", "10.61.1.5:80")
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
				want(0, "", args...)
			}
		}
	}
	out, err := need.Command(t, "tshark", "-r", file, "-Y", "_ws.expert.severity == error or _ws.malformed").Output()
	if err != nil || len(out) > 0 {
		t.Errorf("tshark: %v, %s", err, out)
	}
	out, err = need.Command(t, "tshark", "-r", file, "-T", "fields", "-e", "frame.interface_name", "-e", "ip.dst", "-e",
		"frame.comment", "-c", "2").Output()
	if s := string(out); err != nil ||
		!strings.Contains(s, "pre\t10.61.1.5\tforward from rome-node1 to tunnel; connection ") ||
		!strings.Contains(s, ", icmp 10.0.1.5:") || !strings.Contains(s, ", translated by remap to 10.0.1.5:") ||
		!strings.Contains(s, "post\t10.0.1.5\t") {
		t.Errorf("tshark: %v, %s", err, s)
	}

	want(2, "rome-node1, rome-node2, tunnel", "connections", "--socket", "rome", "--node", "nope")
	want(2, "connections delete: which?", "connections", "delete", "--socket", "rome")
	if deleted := want(0, " connections deleted", "connections", "delete", "--socket", "rome", "--address",
		"10.61.1.5"); strings.HasPrefix(deleted, "0 ") {
		t.Error(deleted)
	}
	want(0, "0 connections deleted", "connections", "delete", "--socket", "rome", "--address", "10.61.1.5")
	want(0, "remap-podcidr/outgoing/10.61.0.0/16", "rules", "--socket", "rome")
	want(0, "10.0.1.0/24", "routes", "--socket", "rome")
	want(0, `"stage":"dnat"`, "rules", "--socket", "rome", "-o", "json")

	config := filepath.Join(u.runtime, "culvert/lab/up/rome/gateway.yaml")
	text, err := os.ReadFile(config)
	need.NoError(t, err)
	write := func(more string) {
		t.Helper()
		need.NoError(t, os.WriteFile(config, append(bytes.Clone(text), more...), 0o600))
	}
	write("\nrules: [{name: no-ssh-in, from: remote, protocol: tcp, ports: \"22\", action: drop}]\n")
	for _, c := range readmeCommands(t) {
		if missing := c.missing(want(0, "", append(c.args, "--socket", "rome")...)); len(missing) > 0 {
			t.Errorf("culvert %s does not print what README shows: %q", strings.Join(c.args, " "), missing)
		}
	}
	want(0, "applied: rules: 1 added (no-ssh-in)", "reload", "--socket", "rome")
	want(0, "nothing would change", "reload", "--dry-run", "--socket", "rome")
	want(0, "gateway.yaml:", "rules", "--socket", "rome")
	want(0, "gateway.yaml:", "trace", "--socket", "rome", "--from", "tunnel", "tcp", "10.0.1.5", "10.0.1.5:22")
	write("\nmtuu: 3\n")
	want(2, "mtuu: no such field; did you mean mtu?", "reload", "--socket", "rome")

	if os.Getuid() == 0 {
		other := *u
		other.runtime = "/" // another user may not open the first one's sockets
		other.credential = &syscall.Credential{Uid: 65533, Gid: 65533}
		path := filepath.Join(u.runtime, "culvert/lab/up/culvert/rome-milan.sock")
		if _, diag, status := other.culvert("status", "--socket", path); status != 2 ||
			!strings.Contains(diag, "permission denied; run this as ") || strings.Count(diag, "\n") != 1 {
			t.Errorf("another user: status %d, %s", status, diag)
		}
	}
	os.Remove(file)
	u.expect(0, "gone", "down")
	u.requireNothingLeft()
}
