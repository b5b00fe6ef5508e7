// Package configfile reads culvert's YAML configuration files so that one run
// reports everything that is wrong with a file, each error with its path in the
// file (geneve.nodes[1].vni: …).
//
// A file is decoded in two steps. Decode fills structs whose leaves are Scalars,
// which accept any text, and reports unknown and duplicate fields. The owner of
// the structs then turns each Scalar into a value with the methods of Errors,
// which note what does not fit and go on.
package configfile

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Scalar is a YAML text, number or boolean as it was written; "" if absent.
type Scalar string

// UnmarshalJSON keeps the text of any scalar. A list or mapping is kept as its
// JSON text, which no later conversion accepts.
func (s *Scalar) UnmarshalJSON(b []byte) error {
	text := string(b)
	if text == "null" {
		text = ""
	} else if unquoted, err := strconv.Unquote(text); err == nil {
		text = unquoted
	} else if strings.HasPrefix(text, `"`) {
		// JSON escapes that Go does not know, such as \/.
		return errors.New("text with unusual escapes")
	}
	*s = Scalar(text)
	return nil
}

// Errors collects what is wrong with one file.
type Errors struct {
	list []error
	bad  map[string]bool
}

// Decode fills v, a pointer to a struct with json tags, from YAML text. Unknown
// and duplicate fields are added to e; the rest of the file is decoded all the
// same. It returns false if the text is no YAML or its shape does not fit v.
func (e *Errors) Decode(text []byte, v any) bool {
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		e.list = append(e.list, fmt.Errorf("not YAML: %s", oneLine(strings.TrimPrefix(err.Error(), "yaml: "))))
		return false
	}
	strict, err := json.UnmarshalStrict(asJSON, v)
	for _, err := range strict {
		e.list = append(e.list, fmt.Errorf("%s: no such field; compare its name and indentation with the README", fieldOf(err.Error())))
	}
	if err != nil {
		e.list = append(e.list, fmt.Errorf("%s", oneLine(shapeError(err.Error()))))
		return false
	}
	return true
}

// fieldOf takes the path out of sigs.k8s.io/json's `unknown field "a.b[0].c"`.
func fieldOf(msg string) string {
	if _, rest, ok := strings.Cut(msg, `"`); ok {
		if path, _, ok := strings.Cut(rest, `"`); ok {
			return path
		}
	}
	return msg
}

// shapeError rewrites `json: cannot unmarshal string into Go struct field T.a.b
// of type c` in words of the file: which path holds what it should not.
func shapeError(msg string) string {
	const intro, field, kind = "json: cannot unmarshal ", " into Go struct field ", " of type "
	rest, ok := strings.CutPrefix(msg, intro)
	if !ok {
		return msg
	}
	got, rest, ok := strings.Cut(rest, field)
	if !ok {
		got, _, _ = strings.Cut(rest, " into ")
		return fmt.Sprintf("the file holds one %s where a mapping of fields is wanted", got)
	}
	path, _, _ := strings.Cut(rest, kind)
	if _, after, ok := strings.Cut(path, "."); ok {
		path = after
	}
	want := "a mapping of fields"
	if strings.Contains(rest, kind+"[]") {
		want = "a list"
	}
	return fmt.Sprintf("%s: want %s, not one %s", path, want, got)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Add notes an error at path. The first error of a path is kept, so that a value
// that could not be read is not reported again by a later check.
func (e *Errors) Add(path, format string, args ...any) {
	if e.bad[path] {
		return
	}
	if e.bad == nil {
		e.bad = make(map[string]bool)
	}
	e.bad[path] = true
	e.list = append(e.list, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// Bad reports whether an error was noted at path.
func (e *Errors) Bad(path string) bool { return e.bad[path] }

// Err joins all errors, one a line, or returns nil.
func (e *Errors) Err() error { return errors.Join(e.list...) }

// Text requires a value.
func (e *Errors) Text(path string, s Scalar) string {
	if s == "" {
		e.Add(path, "missing")
	}
	return string(s)
}

// OneOf requires one of the given words; an absent value is the first of them.
func (e *Errors) OneOf(path string, s Scalar, words ...string) string {
	if s == "" {
		return words[0]
	}
	for _, w := range words {
		if string(s) == w {
			return w
		}
	}
	e.Add(path, "%q is not one of %s", s, strings.Join(words, ", "))
	return words[0]
}

// Int requires a number from low to high; an absent value is def.
func (e *Errors) Int(path string, s Scalar, def, low, high int) int {
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(string(s))
	if err != nil || n < low || n > high {
		e.Add(path, "%q is not a number from %d to %d", s, low, high)
		return def
	}
	return n
}

// Bool requires true or false; an absent value is def.
func (e *Errors) Bool(path string, s Scalar, def bool) bool {
	switch s {
	case "":
		return def
	case "true":
		return true
	case "false":
		return false
	}
	e.Add(path, "%q is not true or false", s)
	return def
}

// Duration requires a duration such as 25s from 0 to high; an absent value is def.
func (e *Errors) Duration(path string, s Scalar, def, high time.Duration) time.Duration {
	if s == "" {
		return def
	}
	d, err := time.ParseDuration(string(s))
	if err != nil || d < 0 || d > high {
		e.Add(path, "%q is not a duration from 0s to %v, such as 25s", s, high)
		return def
	}
	return d
}

// Addr requires an IPv4 address.
func (e *Errors) Addr(path string, s Scalar) netip.Addr {
	if e.Text(path, s) == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(string(s))
	switch {
	case err != nil:
		e.Add(path, "%q is not an IP address", s)
	case !a.Is4():
		e.Add(path, "%s: IPv6 is not supported yet", s)
	default:
		return a
	}
	return netip.Addr{}
}

// Prefix requires an IPv4 prefix without host bits.
func (e *Errors) Prefix(path string, s Scalar) netip.Prefix {
	if e.Text(path, s) == "" {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(string(s))
	switch {
	case err != nil:
		e.Add(path, "%q is not a CIDR such as 10.0.0.0/16", s)
	case !p.Addr().Is4():
		e.Add(path, "%s: IPv6 is not supported yet", s)
	case p.Masked() != p:
		e.Add(path, "%s has bits set behind its prefix length; write %s", s, p.Masked())
		return p.Masked() // what was meant, so that later checks find no errors that are none
	default:
		return p
	}
	return netip.Prefix{}
}

// Prefixes requires each element to be a Prefix; invalid ones are left out.
func (e *Errors) Prefixes(path string, list []Scalar) []netip.Prefix {
	var ps []netip.Prefix
	for i, s := range list {
		if p := e.Prefix(fmt.Sprintf("%s[%d]", path, i), s); p.IsValid() {
			ps = append(ps, p)
		}
	}
	return ps
}
