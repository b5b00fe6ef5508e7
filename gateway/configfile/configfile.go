// Package configfile reads culvert's YAML configuration files so that one run reports all faults of
// a file, each with its path (geneve.nodes[1].vni: …).
//
// A file is decoded in two steps. Decode fills structs whose leaves are Scalars, which accept any
// text, and reports unknown and duplicate fields. The owner of the structs then turns each Scalar
// into a value with the methods of Errors, which record what does not fit and continue.
package configfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Scalar is a YAML text, number or boolean as written; "" if absent.
type Scalar string

// UnmarshalJSON keeps the text of any scalar. For a list or mapping it keeps the JSON text, which
// later conversions reject.
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

// MaxSize is the maximum size of a file, in bytes: the YAML parser takes about a second for 2 MiB,
// and a ConfigMap holds 1 MiB.
const MaxSize = 8 << 20

// Read returns the content of a file of at most limit bytes. Its error does not name the file.
func Read(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, withoutPath(err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("larger than %d bytes", limit)
	}
	return text, nil
}

func withoutPath(err error) error {
	if e := new(fs.PathError); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// The maximum numbers of reported errors and warnings per file.
const (
	maxErrors   = 1000
	maxWarnings = 20
)

// Errors collects the faults of one file.
type Errors struct {
	File   string  // name, for messages; "" = they say no file, line and column
	Fields []Field // the fields that the file may have, for messages about missing ones

	text     []byte
	list     []problem
	warnings []problem
	bad      map[string]bool
}

// printable makes a text that may quote the file safe for one line of a log: no line breaks, no
// control characters.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.Join(strings.Fields(s), " "))
}

// add records an error, unless there are too many.
func (e *Errors) add(p problem) { e.list = capped(e.list, p, maxErrors) }

func capped(list []problem, p problem, most int) []problem {
	switch len(list) {
	case most:
		return list
	case most - 1:
		return append(list, problem{text: "and more; fix these first"})
	}
	return append(list, p)
}

// Add records an error at path. Only the first error of a path is kept, so a later check does not
// report an unreadable value again.
func (e *Errors) Add(path, format string, args ...any) {
	if e.bad[path] || len(e.list) == maxErrors {
		return
	}
	if e.bad == nil {
		e.bad = make(map[string]bool)
	}
	e.bad[path] = true
	e.add(problem{path: path, text: fmt.Sprintf(format, args...)})
}

// Warn records what is valid but probably not meant.
func (e *Errors) Warn(path, format string, args ...any) {
	e.warnings = capped(e.warnings, problem{path: path, text: fmt.Sprintf(format, args...)}, maxWarnings)
}

// Warnings returns all warnings, one line each.
func (e *Errors) Warnings() []string { return e.lines(e.warnings) }

// Bad reports whether there is an error at path.
func (e *Errors) Bad(path string) bool { return e.bad[path] }

// Err joins all errors, one per line, or returns nil.
func (e *Errors) Err() error {
	var all []error
	for _, line := range e.lines(e.list) {
		all = append(all, errors.New(line))
	}
	return errors.Join(all...)
}

// Missing records that path has no value, and what it should be.
func (e *Errors) Missing(path string) {
	name := general(path)
	for _, f := range e.Fields {
		if f.Path == name || f.Path == name+"[]" {
			e.Add(path, "missing; want %s: %s", f.Type, f.Doc)
			return
		}
	}
	e.Add(path, "missing")
}

// Text requires a value.
func (e *Errors) Text(path string, s Scalar) string {
	if s == "" {
		e.Missing(path)
	}
	return string(s)
}

var (
	name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	// A DNS name in the letters of RFC 1123, Section 2.1; it may be fully qualified.
	hostName = regexp.MustCompile(
		`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\.?$`)
)

// Maximum lengths of a label and a domain name (RFC 1123, Section 2.1), as used by Kubernetes for
// clusters and nodes.
const (
	MaxLabel  = 63
	MaxDomain = 253
)

// Name requires a name of at most high letters, digits, dots, dashes and underscores, because it is
// used unescaped in logs, metrics and file names.
func (e *Errors) Name(path, s string, high int) {
	switch {
	case s == "":
		e.Missing(path)
	case len(s) > high:
		e.Add(path, "%d characters; a name here has at most %d", len(s), high)
	case !name.MatchString(s):
		e.Add(path, "%q is no name: want letters, digits, dots, dashes and underscores, a letter or digit first", s)
	}
}

// IsHostName reports whether s is a DNS name.
func IsHostName(s string) bool { return len(s) <= MaxDomain && hostName.MatchString(s) }

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
	hint := ""
	if w := Closest(string(s), words); w != "" {
		hint = "; did you mean " + w + "?"
	}
	e.Add(path, "%q is not one of %s%s", s, strings.TrimPrefix(strings.Join(words, ", "), ", "), hint)
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

// maxCPUs is more than any machine has.
const maxCPUs = 1 << 12

// CPUsField is the reference of what CPUs reads.
var CPUsField = Field{Path: "cpus", Type: "number, 1 to 4096", Default: "1", Live: true,
	Doc: "Number of threads that run Go code at once. One is fastest until it is no longer enough; the log and culvert status say when. More than the machine's CPUs, or than the control group's quota allows, is refused. GOMAXPROCS in the environment takes precedence."}

// CPUs reads that field.
func (e *Errors) CPUs(s Scalar) int { return e.Int(CPUsField.Path, s, 1, 1, maxCPUs) }

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

// Underlay requires an address outside the tunnels, of either family.
func (e *Errors) Underlay(path string, s Scalar) netip.Addr {
	a := e.IP(path, s)
	if a.Is6() && a.IsLinkLocalUnicast() {
		// Linux refuses it too, for Geneve: a tunnel has no zone.
		e.Add(path,
			"%s is link-local, and a tunnel cannot say on which link; write another address of that machine, such as a unique local one (fd00::/8)", a)
		return netip.Addr{}
	}
	return a
}

// Prefix requires a prefix of either family without host bits.
func (e *Errors) Prefix(path string, s Scalar) netip.Prefix {
	if e.Text(path, s) == "" {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(string(s))
	switch {
	case err != nil:
		e.Add(path, "%q is not a CIDR such as 10.0.0.0/16", s)
	case p.Addr().Is4In6():
		e.Add(path, "%s is IPv4 mapped into IPv6; write it as IPv4", p)
	case p.Masked() != p:
		e.Add(path, "%s has host bits set; write %s", s, p.Masked())
		return p.Masked() // the intended prefix, so that later checks report no false errors
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
