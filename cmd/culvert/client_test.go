package main

import (
	"strings"
	"testing"

	"culvert/gateway/control"
)

func leg(rtt float64) *control.Leg { return &control.Leg{RTTSeconds: &rtt} }

func TestTexts(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{bytesText(0), "0 B"}, {bytesText(1023), "1023 B"}, {bytesText(1024), "1 KiB"}, {bytesText(1023 << 10), "0.999 MiB"}, {bytesText(123456789), "118 MiB"},
		{bytesText(5 << 40), "5 TiB"}, {bytesText(1 << 63), "8 EiB"},
		{ageText(0.4), "0s"}, {ageText(59.9), "59s"}, {ageText(61), "1m1s"}, {ageText(3600 * 25), "1d1h"}, {ageText(7300), "2h1m"},
		{rttText(&control.Leg{}), "-"}, {rttText(leg(0.000412)), "0.41 ms"}, {rttText(leg(0.01234)), "12.3 ms"}, {rttText(leg(1.234)), "1234 ms"},
		{rttText(&control.Leg{Requests: 32, RequestsLost: 4}), "-, 4/32 lost"}, {agoText(nil), "never"},
		{wrap("a short one", 20), "a short one"}, {wrap("words that do not fit in one", 12), "words that\n  do not fit\n  in one"},
		{wrap("unbreakablewordislong x", 5), "unbreakablewordislong\n  x"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}

// TestClientErrors: what cannot be asked is said in one line, with exit status 2, and nothing
// on standard output.
func TestClientErrors(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for _, tt := range []struct{ args, want string }{
		{"status --socket /no/such.sock", "/no/such.sock: no gateway answers there; is it running"},
		{"status --socket no-such-gateway-xyz", "--socket"},
		{"status -o xml", "--output: want text, json or yaml"},
		{"connections -o yaml", "--output: want text or json"},
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
		if status != exitBadInput || out != "" || strings.Count(diag, "\n") != 1 || !strings.Contains(diag, tt.want) {
			t.Errorf("culvert %s: status %d, %q, %q; want %q", tt.args, status, out, diag, tt.want)
		}
	}
}
