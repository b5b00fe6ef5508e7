package ipam

import (
	"fmt"
	"slices"
	"strings"
)

// reader parses the JSON of the file: objects, lists, texts and one number. It is stricter than
// encoding/json, which accepts duplicate keys and keys in any case; it reports the line; and it
// reads 10,000 entries in a fifth of the time. After the first error it reads nothing more.
type reader struct {
	text string
	at   int
	err  error

	// The value being read, list[n].key, for errors.
	list, key string
	n         int
}

func (r *reader) fail(format string, args ...any) {
	if r.err != nil {
		return
	}
	field := r.key
	if r.list != "" {
		field = strings.TrimSuffix(fmt.Sprintf("%s[%d].%s", r.list, r.n, r.key), ".")
	}
	if field != "" {
		field += ": "
	}
	r.err = fmt.Errorf("%d: %s%s", r.line(r.at), field, fmt.Sprintf(format, args...))
}

func (r *reader) line(at int) int { return 1 + strings.Count(r.text[:at], "\n") }

func (r *reader) space() {
	for r.at < len(r.text) {
		switch r.text[r.at] {
		case ' ', '\t', '\r', '\n':
			r.at++
		default:
			return
		}
	}
}

// found skips c if it is next.
func (r *reader) found(c byte) bool {
	r.space()
	if r.err != nil || r.at == len(r.text) || r.text[r.at] != c {
		return false
	}
	r.at++
	return true
}

func (r *reader) want(c byte) {
	if !r.found(c) {
		r.fail(`not JSON: want "%c", found %s`, c, r.here())
	}
}

// here quotes the next input, for errors.
func (r *reader) here() string {
	if r.at == len(r.text) {
		return "the end of the file"
	}
	return fmt.Sprintf("%+.1q", r.text[r.at:])
}

func (r *reader) end() {
	r.space()
	if r.at < len(r.text) {
		r.fail("not JSON: %s after the end", r.here())
	}
}

// object calls value for each key.
func (r *reader) object(value func(key string)) {
	var seen [8]string // no object has more keys; one more is not a key
	r.want('{')
	for n := 0; r.err == nil && (n > 0 || !r.found('}')); n++ {
		key := r.quoted()
		r.key = key
		if r.err == nil && slices.Contains(seen[:min(n, len(seen))], key) {
			r.fail("is there twice")
		}
		seen[n%len(seen)] = key
		r.want(':')
		if r.err == nil {
			value(key)
			r.key = ""
		}
		if !r.found(',') {
			r.want('}')
			return
		}
	}
}

// record reads an object of texts and returns the value of each key, "" if it is missing.
func (r *reader) record(keys ...string) (values [6]string) {
	r.object(func(key string) {
		if i := slices.Index(keys, key); i >= 0 {
			values[i] = r.quoted()
		} else {
			r.fail("no such field")
		}
	})
	return values
}

// array calls element for each element of list name, of which there may be at most most.
func (r *reader) array(name string, most int, element func()) {
	r.want('[')
	for r.list, r.n = name, 0; r.err == nil && (r.n > 0 || !r.found(']')); r.n++ {
		if r.n == most {
			r.fail("more than %d entries", most)
		}
		element()
		if !r.found(',') {
			r.want(']')
			break
		}
	}
	r.list = ""
}

// quoted reads one text of printable ASCII without escapes: the file needs nothing else.
func (r *reader) quoted() string {
	r.want('"')
	for start := r.at; r.err == nil && r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			r.at++
			return r.text[start : r.at-1]
		case c < ' ' || c > '~' || c == '\\':
			r.fail("%s inside a text", r.here())
		}
	}
	r.fail("not JSON: a text without its end")
	return ""
}

// number reads one number without sign, fraction or leading zeros.
func (r *reader) number() int {
	r.space()
	n, start := 0, r.at
	for r.at < len(r.text) && r.text[r.at] >= '0' && r.text[r.at] <= '9' && r.at-start < 9 {
		n = n*10 + int(r.text[r.at]-'0')
		r.at++
	}
	if r.at == start || r.text[start] == '0' && r.at > start+1 {
		r.fail("not a number such as %d", version)
	}
	return n
}
