package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
)

func leg(rtt float64) *control.Leg { return &control.Leg{RTTSeconds: &rtt} }

func TestTexts(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{bytesText(0), "0 B"}, {bytesText(1023), "1023 B"}, {bytesText(1024), "1 KiB"},
		{bytesText(1023 << 10), "0.999 MiB"}, {bytesText(123456789), "118 MiB"},
		{bytesText(5 << 40), "5 TiB"}, {bytesText(1 << 63), "8 EiB"},
		{ageText(0.4), "0s"}, {ageText(59.9), "59s"}, {ageText(61), "1m1s"}, {ageText(3600 * 25), "1d1h"},
		{ageText(7300), "2h1m"},
		{rttText(&control.Leg{}), "-"}, {rttText(leg(0.000412)), "0.41 ms"}, {rttText(leg(0.01234)), "12.3 ms"},
		{rttText(leg(1.234)), "1234 ms"},
		{rttText(&control.Leg{Requests: 32, RequestsLost: 4}), "-, 4/32 lost"}, {agoText(nil), "never"},
		{cli.Wrap("a short one", 20), "a short one"}, {cli.Wrap("words that do not fit in one", 12),
			"words that\n  do not fit\n  in one"},
		{cli.Wrap("unbreakablewordislong x", 5), "unbreakablewordislong\n  x"}, {cli.Wrap("a\x1b[2J b\rc", 0),
			"a�[2J b�c"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}

// TestClientErrors: a request that cannot be made gets one line, exit status 2, and nothing on
// standard output.
func TestClientErrors(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for _, tt := range []struct{ args, want string }{
		{"status --socket /no/such.sock", "/no/such.sock: no gateway answers there; is it running"},
		{"status --socket no-such-gateway-xyz", "--socket"},
		{"status -o xml", "--output: want text, json or yaml"},
		{"connections -o xml", "--output: want text, json or yaml"},
		{"trace", "which packet? Describe it, such as tcp 10.0.1.5:40000"},
		{"trace tcp 10.0.1.5 10.61.1.5", "destination: tcp needs a port; write 10.61.1.5:PORT"},
		{"trace tcp 10.0.1.5:1 fd00::1", "destination: fd00::1 is of another family than source 10.0.1.5"},
		{"trace tpc 10.0.1.5 10.61.1.5:80", "protocol: \"tpc\" is neither tcp"},
		{"trace tcp 10.0.1.256 10.61.1.5:80", "source: \"10.0.1.256\" is no address such as 10.0.1.5"},
		{"trace icmp 10.0.1.5:7 10.61.1.5", "icmp has no ports"},
		{"trace icmp 10.0.1.5:1 10.61.1.5:65535", "icmp has no ports"},
		{"trace udp 10.0.1.5 10.61.1.5:80 --flags syn", "flags: udp has none"},
		{"trace tcp 10.0.1.5 10.61.1.5:80 --flags sin", "flags: \"sin\" is none of fin, syn"},
		{"trace --flow 3 tcp 10.0.1.5 10.61.1.5:80", "--flow takes no packet; leave out tcp 10.0.1.5 10.61.1.5:80"},
		{"trace tcp 10.0.1.5", "which packet? Describe it"},
		{"trace --flow 3 --size 100", "--size: only with a packet that is described"},
		{"trace --flow 0", "0 is no connection's ID"},
		{"trace --flow 3 --socket /no/such.sock", "no gateway answers there"},
		{"connections --port 70000", "--port: \"70000\" is no number"},
		{"connections --address 10.0.0.0/33", "--address: \"10.0.0.0/33\" is neither an address nor a prefix"},
		{"connections --protocol foo", "--protocol: \"foo\" is neither tcp"},
		{"connections delete", "which? Give a filter such as --address, or --all"},
		{"capture --socket /no/such.sock", "/no/such.sock: no gateway answers there"},
		{"capture -w /no/such/folder/file --socket /no/such.sock", "no gateway answers there"},
		{"status --watch -o yaml --socket /no/such.sock", "no gateway answers there"},
		{"rules now", "see culvert rules --help"},
	} {
		out, diag, status := run(t, strings.Fields(tt.args)...)
		if status != cli.ExitBadInput || out != "" || strings.Count(diag, "\n") != 1 ||
			!strings.Contains(diag, tt.want) {
			t.Errorf("culvert %s: status %d, %q, %q; want %q", tt.args, status, out, diag, tt.want)
		}
	}
}

// TestExamplesOfClients: the examples of each command that asks a gateway fail only because no
// gateway runs.
func TestExamplesOfClients(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	n := 0
	cli.Visit(newRootCommand(), func(cmd *cobra.Command) {
		if cmd.Flags().Lookup("socket") == nil {
			return
		}
		for line := range strings.Lines(cmd.Example) {
			command, _, _ := strings.Cut(line, " | ")
			args := strings.Fields(command)[1:]
			if strings.Contains(command, "--config ") || strings.Contains(command, "--context ") ||
				strings.Contains(command, "--from ") {
				continue // it asks no gateway
			}
			out, diag, status := run(t, append(args, "--socket", "/no/such.sock")...)
			if status != cli.ExitBadInput || out != "" ||
				!strings.Contains(diag, "/no/such.sock: no gateway answers there") {
				t.Errorf("culvert %s: status %d, %q, %q", strings.Join(args, " "), status, out, diag)
			}
			n++
		}
	})
	if n < 15 {
		t.Errorf("%d examples", n)
	}
}

// TestClientsAreAlike: each command that asks a gateway takes its socket, and prints text, JSON and
// YAML unless it writes a capture; a shell completes what its flags take.
func TestClientsAreAlike(t *testing.T) {
	for _, name := range []string{"status", "connections", "connections delete", "trace", "rules", "routes",
		"reload", "capture"} {
		if socket := complete(t, append(strings.Fields(name), "--")...); !slices.Contains(socket, "--socket") {
			t.Errorf("culvert %s has no --socket: %q", name, socket)
		}
		if outputs := complete(t, append(strings.Fields(name), "-o", "")...); name != "capture" &&
			!slices.Equal(outputs, []string{"text", "json", "yaml"}) {
			t.Errorf("culvert %s -o: %q", name, outputs)
		}
		if strings.HasPrefix(name, "connections") || name == "capture" {
			if protocols := complete(t, append(strings.Fields(name), "--protocol", "")...); !slices.Contains(
				protocols, "sctp") {
				t.Errorf("culvert %s: %q", name, protocols)
			}
		}
	}
	for words, want := range map[string]string{
		"trace ": "udp", "trace --from ": "tunnel", "trace --flags ": "syn", "capture --at ": "post",
		"capture --verdict ": "deliver", "version -o ": "yaml",
	} {
		if offers := complete(t, strings.Split(words, " ")...); !slices.Contains(offers, want) {
			t.Errorf("culvert %s: %q", words, offers)
		}
	}
}
