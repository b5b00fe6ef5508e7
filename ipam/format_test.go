package ipam

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

const goodFile = `{
  "version": 1,
  "given": [
    {"peer": "milan", "kind": "service", "real": "web", "network": "10.70.0.0/16", "remapped": "10.70.0.1", "since": "2026-11-21T12:00:00Z"},
    {"peer": "milan", "kind": "pod", "real": "10.0.0.0/16", "remapped": "10.71.0.0/16", "since": "2026-11-21T12:00:00Z"},
    {"peer": "paris", "kind": "pod", "real": "fd00::/48", "remapped": "fd00::/48", "since": "2026-11-21T12:00:00Z"}
  ],
  "last": [
    {"network": "10.70.0.0/16", "address": "10.70.0.1"}
  ]
}
`

// TestGoodFile: a file that was read is written unchanged, and a file whose layout somebody has
// edited is still read.
func TestGoodFile(t *testing.T) {
	for name, text := range map[string]string{
		"as written": goodFile,
		"one line":   strings.ReplaceAll(goodFile, "\n", ""),
		"CRLF":       strings.ReplaceAll(goodFile, "\n", "\r\n"),
	} {
		l, err := decode(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := string(l.encode()); got != goodFile {
			t.Errorf("%s: written as\n%s", name, got)
		}
	}
}

// badFiles are edits of goodFile, with what the error says.
var badFiles = []struct{ name, old, new, want string }{
	{"empty", goodFile, "", "1: not JSON: want \"{\", found the end of the file"},
	{"torn", goodFile[250:], "", "5: given[1].remapped: not JSON: a text without its end"},
	{"torn between entries", "  ],\n  \"last\"", "\x00", "7: given[2]: not JSON: want \"]\", found \"\\x00\""},
	{"not an object", goodFile, "[]", "1: not JSON: want \"{\", found \"[\""},
	{"YAML", goodFile, "version: 1\n", "1: not JSON: want \"{\", found \"v\""},
	{"two documents", "}\n  ]\n}\n", "}\n  ]\n}\n{}", "12: not JSON: \"{\" after the end"},
	{"byte order mark", "{\n  \"version\"", "\ufeff{\n  \"version\"", "1: not JSON: want \"{\", found \"\\ufeff\""},
	{"later version", `"version": 1`, `"version": 2`, "2: version: 2 is of a later culvert"},
	{"no version", `  "version": 1,` + "\n", "", "version: missing"},
	{"version zero", `"version": 1`, `"version": 0`, "2: version: want 1"},
	{"version as text", `"version": 1`, `"version": "1"`, "2: version: not a number"},
	{"nothing given", `"given"`, `"gave"`, "3: gave: no such field"},
	{"no last", goodFile[strings.Index(goodFile, ",\n  \"last\""):], "}", "given or last: missing"},
	{"unknown field", `"peer": "paris"`, `"peer": "paris", "ttl": "1"`, "6: given[2].ttl: no such field"},
	{"field twice", `"kind": "service"`, `"peer": "oslo", "kind": "service"`, "4: given[0].peer: is there twice"},
	{"list twice", `"last": [`, `"given": [], "last": [`, "8: given: is there twice"},
	{"field in capitals", `"peer": "paris"`, `"Peer": "paris"`, "6: given[2].Peer: no such field"},
	{"no peer", `"peer": "paris", `, "", `6: given[2]: peer: "" is no name`},
	{"bad kind", `"kind": "service"`, `"kind": "node"`, `4: given[0]: kind: "node" is not one of`},
	{"bad CIDR", `"real": "10.0.0.0/16"`, `"real": "10.0.0.0"`, `5: given[1]: real: "10.0.0.0" is no CIDR`},
	{"host bits", `"remapped": "10.71.0.0/16"`, `"remapped": "10.71.0.1/16"`,
		"5: given[1]: remapped: 10.71.0.1/16 is no CIDR without host bits"},
	{"unequal lengths", `"remapped": "10.71.0.0/16"`, `"remapped": "10.71.0.0/17"`,
		"5: given[1]: remapped: 10.71.0.0/17 and 10.0.0.0/16 differ"},
	{"no remap", `"remapped": "10.71.0.0/16", `, "", "5: given[1]: remapped: missing"},
	{"no time", `, "since": "2026-11-21T12:00:00Z"},` + "\n    {\"peer\": \"paris\"", "},\n    {\"peer\": \"paris\"",
		"5: given[1]: since: missing"},
	{"bad time", `"remapped": "10.71.0.0/16", "since": "2026`, `"remapped": "10.71.0.0/16", "since": "26`,
		`5: given[1]: since: "26-11-21T12:00:00Z" is not understood`},
	{"a number for a text", `"real": "web"`, `"real": 7`, `4: given[0].real: not JSON: want """, found "7"`},
	{"address outside", `"remapped": "10.70.0.1"`, `"remapped": "10.69.0.1"`,
		"4: given[0]: remapped: 10.69.0.1 is not in 10.70.0.0/16"},
	{"address is U", `"remapped": "10.70.0.1"`, `"remapped": "10.70.0.0"`,
		"4: given[0]: remapped: 10.70.0.0 is the first"},
	{"address without network", `"network": "10.70.0.0/16", "remapped"`, `"remapped"`, "4: given[0]: network: missing"},
	{"CIDR with network", `"real": "10.0.0.0/16", `, `"real": "10.0.0.0/16", "network": "10.0.0.0/8", `,
		"5: given[1]: network: only"},
	{"overlap", `"remapped": "10.71.0.0/16"`, `"remapped": "10.70.0.0/16"`,
		"4: remapped: 10.70.0.1 overlaps 10.70.0.0/16 in line 5"},
	{"owner twice", `"paris", "kind": "pod", "real": "fd00::/48", "remapped": "fd00::/48"`,
		`"milan", "kind": "pod", "real": "10.0.0.0/16", "remapped": "10.72.0.0/16"`,
		"6: milan pod 10.0.0.0/16 is in line 5 too"},
	{"last outside", `"address": "10.70.0.1"`, `"address": "10.71.0.1"`,
		"9: last[0]: address: 10.71.0.1 is not in a network 10.70.0.0/16"},
	{"last twice", `"address": "10.70.0.1"}`,
		`"address": "10.70.0.1"}, {"network": "10.70.0.0/16", "address": "10.70.0.2"}`,
		"9: last[1]: network: 10.70.0.0/16 is there twice"},
	{"bad UTF-8", "paris", "p\xe4ris", `6: given[2].peer: "\xe4" inside a text`},
	{"an escape", "paris", `\u0070aris`, `6: given[2].peer: "\\" inside a text`},
	{"control character", "paris", "p\tris", `6: given[2].peer: "\t" inside a text`},
	{"a name with a space", "paris", "p ris", `6: given[2]: peer: "p ris" is no name`},
	{"comma at the end", "00Z\"}\n  ],", "00Z\"},\n  ],", "7: given[3]: not JSON: want \"{\", found \"]\""},
}

func TestBadFiles(t *testing.T) {
	for _, tt := range badFiles {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(goodFile, tt.old) {
				t.Fatalf("no %q in the file", tt.old)
			}
			l, err := decode(strings.Replace(goodFile, tt.old, tt.new, 1))
			if err == nil {
				t.Fatalf("read as\n%s", l.encode())
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v\nwant %q in it", err, tt.want)
			}
		})
	}
}

// TestTruncatedFile: a file that is cut short anywhere is refused.
func TestTruncatedFile(t *testing.T) {
	whole := strings.TrimSuffix(goodFile, "\n")
	for n := range len(whole) {
		if _, err := decode(whole[:n]); err == nil {
			t.Fatalf("the first %d bytes are read", n)
		}
	}
}

// FuzzDecode: any text is read or refused; what is read is JSON for others too, and comes
// back the same.
func FuzzDecode(f *testing.F) {
	f.Add(goodFile)
	for _, tt := range badFiles {
		f.Add(strings.Replace(goodFile, tt.old, tt.new, 1))
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := decode(text)
		if err != nil {
			return
		}
		var general struct{ Given []json.RawMessage }
		if err := json.Unmarshal([]byte(text), &general); err != nil || len(general.Given) != len(l.given) {
			t.Fatalf("%d entries, encoding/json: %d, %v", len(l.given), len(general.Given), err)
		}
		written := l.encode()
		again, err := decode(string(written))
		if err != nil {
			t.Fatalf("%v\n%s", err, written)
		}
		if !bytes.Equal(again.encode(), written) {
			t.Fatalf("%s\nthen\n%s", written, again.encode())
		}
	})
}
