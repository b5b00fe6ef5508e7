package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/gather"
	"culvert/integration/need"
)

// A told gateway says always the same.
type told struct {
	control.Source
	rules error
}

func (told) Status() control.Status {
	return control.Status{Cluster: "romulus", Peer: "milanese", Role: "client", UptimeSeconds: 7,
		Started: time.Unix(1e9, 0).UTC(),
		Findings: []control.Finding{{Level: "warning", Cause: "peer-lost", Of: "198.51.100.7:51840",
			Text: "the peer at 198.51.100.7:51840 has not answered for 10s: is it running?"}},
		Tunnel: control.Tunnel{State: "down", Endpoint: "198.51.100.7:51840"},
		Nodes: []control.Node{{Name: "kestrel", State: "up", Underlay: netip.MustParseAddr("172.30.0.77"), Encap: "geneve",
			Address: netip.MustParseAddr("10.80.0.2"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")}}},
		Sockets: map[string]control.Socket{"geneve": {}}}
}

func (told) Doctor() []control.Condition {
	return []control.Condition{{Name: "receive buffer", State: "good", Found: "4 MiB of 4 MiB"}}
}

func (g told) Rules(_ context.Context, yield func(*control.Rule) bool) error {
	yield(&control.Rule{Origin: "network", Match: "to 10.61.0.0/16", Action: "remap"})
	return g.rules
}

func (told) Routes(_ context.Context, yield func(*control.Route) bool) error {
	yield(&control.Route{Destination: "10.244.7.0/24", To: "kestrel"})
	return nil
}

func (told) Connections(_ context.Context, _ *control.Filter, yield func(*control.Connection) bool) error {
	yield(&control.Connection{Protocol: "tcp", From: "kestrel",
		Original: control.Tuple{Source: netip.MustParseAddr("10.244.7.123")}})
	return nil
}

func (g told) serve(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "romulus-milanese.sock")
	l, err := net.Listen("unix", socket)
	need.NoError(t, err)
	s := control.NewServer(g, log.New(io.Discard, "", 0))
	go s.Serve(l)
	t.Cleanup(s.Close)
	return socket
}

// unpacked returns the text of all files in an archive.
func unpacked(t *testing.T, file string) (text string) {
	t.Helper()
	f, err := os.Open(file)
	need.NoError(t, err)
	defer f.Close()
	c, err := gather.Read(f, func(name string, data []byte) error {
		text += name + "\n" + string(data)
		return nil
	})
	need.NoError(t, err)
	return strings.Join(c.Files, "\n") + text
}

// TestGather: culvert status prints the same of an archive as of the gateway, in each format;
// pseudonyms leave no name or address, and a file that others may read is none.
func TestGather(t *testing.T) {
	socket, dir := told{}.serve(t), t.TempDir()
	file, logs := filepath.Join(dir, "plain.tar.gz"), filepath.Join(dir, "osprey.log")
	need.NoError(t, os.WriteFile(logs, []byte("time=x level=info msg=\"node heard\" node=heron\n"), 0o600))
	out, said, status := run(t, "gather", "--socket", socket, "--log", logs, "-w", file)
	if status != 0 || said != "" || !strings.HasPrefix(out, file+": 6 files, ") {
		t.Fatalf("status %d, %s%s", status, out, said)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, format := range []string{"text", "json", "yaml"} {
		want, _, _ := run(t, "status", "--socket", socket, "-o", format)
		got, said, status := run(t, "status", "--from", file, "-o", format)
		if status != 0 || got != want || want == "" {
			t.Errorf("-o %s: status %d, %s%s\nwant\n%s", format, status, got, said, want)
		}
	}
	if text := unpacked(t, file); !strings.Contains(text, "heron") || strings.Contains(text, "10.244.7.123") {
		t.Errorf("%s", text)
	}

	hidden, _, status := run(t, "gather", "--socket", socket, "--log", logs, "--anonymise", "-w", "-")
	anonymised := filepath.Join(dir, "anonymised.tar.gz")
	need.NoError(t, os.WriteFile(anonymised, []byte(hidden), 0o600))
	shown, said, shownStatus := run(t, "status", "--from", anonymised)
	if status != 0 || shownStatus != 0 || !strings.Contains(shown, "has not answered for 10s: is it running?") {
		t.Errorf("status %d, %d: %s%s", status, shownStatus, shown, said)
	}
	for _, name := range []string{"romulus", "milanese", "kestrel", "heron", "osprey", "198.51.100.7", "172.30.0.77", "10.80.0.2",
		"10.244.7", "10.61."} {
		if strings.Contains(shown+unpacked(t, anonymised), name) {
			t.Errorf("%s is in it:\n%s", name, unpacked(t, anonymised))
		}
	}
}

// TestGatherLacks: an archive that lacks something is written, and who gathers and who reads is
// told.
func TestGatherLacks(t *testing.T) {
	socket, file := told{rules: errors.New("rules: gone")}.serve(t), filepath.Join(t.TempDir(), "half.tar.gz")
	_, said, status := run(t, "gather", "--socket", socket, "-w", file)
	if status != 1 || !strings.Contains(said, "gather: the archive is written, and lacks 1 thing:\n") ||
		!strings.Contains(said, "missing: gateways: romulus-milanese: rules: ") {
		t.Errorf("status %d, %s", status, said)
	}
	if out, said, status := run(t, "status", "--from", file); status != 0 || !strings.Contains(out,
		"missing: gateways: romulus-milanese: rules: ") || !strings.HasPrefix(out, "romulus to milanese, client, up 7s") {
		t.Errorf("status %d, %s%s", status, out, said)
	}
}

// TestGatherRefuses: bad input has one line with a remedy, and leaves no file.
func TestGatherRefuses(t *testing.T) {
	dir := t.TempDir()
	file, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	need.NoError(t, os.WriteFile(other, []byte("PK"), 0o600))
	for _, c := range []struct{ args, want string }{
		{"gather --socket " + dir + "/none -w " + file, "no gateway answers there"},
		{"gather --kubeconfig x -w " + file, "--kubeconfig: only with --context; add that"},
		{"gather --log " + dir + "/none -w " + file, "--log: open "},
		{"gather --socket x --context y -w " + file, "none of the others can be"},
		{"status --from " + other, "this is no archive of culvert gather"},
		{"status --from " + dir + "/none", "--from: open "},
		{"status --from x --watch", "none of the others can be"},
	} {
		out, said, status := run(t, strings.Fields(c.args)...)
		if status != 2 || out != "" || strings.Count(said, "\n") != 1 || !strings.Contains(said, c.want) {
			t.Errorf("culvert %s: status %d, %s%s; want %q", c.args, status, out, said, c.want)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("culvert %s: the file was written", c.args)
		}
	}
}
