package configfile

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

type shape struct {
	MTU  Scalar `json:"mtu"`
	Deep struct {
		Nodes []struct {
			VNI  Scalar   `json:"vni"`
			List []Scalar `json:"podCIDRs"`
		} `json:"nodes"`
		Port Scalar `json:"listenPort"`
	} `json:"deep"`
}

const text = `mtu: 5
deep:
  nodes:
    - vni: 1
      podCIDRs: [10.0.0.0/8,
                 ten]
    - {podCIDRs: []}
  listenPort: &port 7
`

// TestPositions: an error has the position of its field, or of what surrounds it.
func TestPositions(t *testing.T) {
	for path, want := range map[string]string{
		"mtu":                        "f:1:6: ",
		"deep.nodes[0].vni":          "f:4:12: ",
		"deep.nodes[0].podCIDRs[1]":  "f:6:18: ",
		"deep.nodes[1].vni":          "f:7:7: ",
		"deep.nodes[9].vni":          "f:3:3: ",
		"deep.listenPort":            "f:8:15: ",
		"deep.absent.more":           "f:2:1: ",
		"absent":                     "f:1:1: ",
		"deep.nodes[0].podCIDRs.x":   "f:5:7: ",
		"deep.nodes[18446744073709]": "f:3:3: ",
		"deep.nodes[-1]":             "f:3:3: ", // a key in quotes may be named so
	} {
		e := &Errors{File: "f"}
		if !e.Decode([]byte(text), new(shape)) {
			t.Fatal(e.Err())
		}
		e.Add(path, "bad")
		e.Warn(path, "odd")
		if got := e.Err().Error(); got != want+path+": bad" {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
		if got := e.Warnings(); len(got) != 1 || got[0] != want+path+": odd" {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// TestPositionsOfBrokenText: an error in text that is not YAML has the parser's line.
func TestPositionsOfBrokenText(t *testing.T) {
	for text, want := range map[string]string{
		"mtu: 1\n deep: 2":            "f:2:1: not YAML: ",
		"mtu: 1\nmtu: 2\n":            `f:2:1: key "mtu" is already set`,
		"mtu: 1\n---\nmtu: 2\n":       "f:1:1: the file holds more than one",
		"mtu: {a: 1}\n":               "",
		"- 1\n":                       "f:1:1: the file holds one array",
		"a: &a [1]\nmtu: *a\ndeep: 3": "f:3:7: deep: want a mapping of fields, not one number",
	} {
		e := &Errors{File: "f"}
		e.Decode([]byte(text), new(shape))
		got := ""
		if err := e.Err(); err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestUnknownFields(t *testing.T) {
	for path, want := range map[string]string{
		"mut":                  "did you mean mtu?",
		"MTU":                  "did you mean mtu?",
		"listenPort":           "no such field here; did you mean deep.listenPort? Mind the indentation",
		"deep.nodes[3].vin":    "did you mean vni?",
		"deep.nodes[3].cidrs":  "did you mean podCIDRs?",
		"deep.nodes[3].colour": "known here: vni, podCIDRs",
		"colour":               "known here: mtu, deep",
		"deep.node":            "did you mean nodes?",
		"deep.listen_port":     "did you mean listenPort?",
	} {
		if got := unknown(path, new(shape)); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "ab", 2}, {"mtu", "mut", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}, {"abcd", "abcd", 0},
	} {
		if got := distance(tt.a, tt.b); got != tt.want || distance(tt.b, tt.a) != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestSchema(t *testing.T) {
	var got struct {
		Required   []string
		Properties struct {
			Mode  struct{ Enum []string }
			Nodes struct {
				Type  string
				Items struct {
					Required   []string
					Properties struct {
						VNI struct {
							Type             string
							Minimum, Maximum int
						}
					}
				}
			}
		}
	}
	err := json.Unmarshal(Schema("x", []Field{
		{Path: "mode", Type: "one of a, b"},
		{Path: "nodes[].vni", Type: "number, 0 to 9", Default: Required},
		{Path: "name", Type: "name", Default: Required},
	}), &got)
	p := got.Properties
	if err != nil || strings.Join(got.Required, " ") != "name" || strings.Join(p.Mode.Enum, " ") != "a b" ||
		p.Nodes.Type != "array" ||
		strings.Join(p.Nodes.Items.Required, " ") != "vni" || p.Nodes.Items.Properties.VNI.Type != "integer" ||
		p.Nodes.Items.Properties.VNI.Maximum != 9 {
		t.Errorf("%+v, %v", got, err)
	}
}

// FuzzErrors: whatever the text, each error is one printable line that begins with the
// file's name, and there are not too many.
func FuzzErrors(f *testing.F) {
	for _, seed := range []string{text, "a: &a [1]\nb: *a", "- 1", "deep: {nodes: [{vni: }, {vin: 1}]}", "\t",
		"a: 1\n---\nb: 2", "mtu: 1\nmtu: 2", "? [a]\n: b", "\"a.b[0]\": 1", "<<: {mtu: 1}"} {
		f.Add(seed, "deep.nodes[0].vni")
	}
	f.Fuzz(func(t *testing.T, text, path string) {
		e := &Errors{File: "f"}
		e.Decode([]byte(text), new(shape))
		if newPositions([]byte(text)).find(path); e.Err() == nil {
			return
		}
		lines := strings.Split(e.Err().Error(), "\n")
		for _, line := range lines {
			if !strings.HasPrefix(line, "f:") || strings.ContainsFunc(line,
				func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q", line)
			}
		}
		if len(lines) > maxErrors {
			t.Errorf("%d lines", len(lines))
		}
	})
}
