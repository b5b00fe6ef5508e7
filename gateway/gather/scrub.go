package gather

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// hidden stands for a secret.
const hidden = "(hidden)"

// A scrubber removes secrets, and replaces names. It has to learn from all texts first.
type scrubber struct {
	names  *Pseudonyms     // may be nil
	public map[string]bool // keys that are no secrets
}

// pem matches a private key of many lines.
var pem = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`)

// secrets are texts that look like one; the first group, if any, stays.
var secrets = []*regexp.Regexp{
	pem,
	regexp.MustCompile(`(?i)((?:private|preshared)[-_ ]?key["']?\s*[=:]\s*["']?)[A-Za-z0-9+/]{16,}=*`),
	regexp.MustCompile(`(?i)(\b(?:[a-z]+[-_])?(?:token|password|passwd|passphrase|client[-_]secret|api[-_]?key)["']?\s*[=:]\s*)(?:"[^"]*"|'[^']*'|\S+)`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}`),
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`),
	regexp.MustCompile(`(://)[^/\s:@"']+:[^/\s@"']+@`),
}

// key matches a key of WireGuard.
var key = regexp.MustCompile(`[A-Za-z0-9+/]{43}=`)

// hide removes secrets.
func (s *scrubber) hide(text string) string {
	for _, x := range secrets {
		text = x.ReplaceAllString(text, "${1}"+hidden)
	}
	return key.ReplaceAllStringFunc(text, func(k string) string {
		if s.public[k] {
			return k
		}
		return hidden
	})
}

// secretFields are fields of JSON that hold secrets; publicFields hold keys that are none.
var (
	secretFields = set("privateKey presharedKey token password secret clientSecret data stringData caBundle")
	publicFields = set("publicKey peerPublicKey")
)

// learn notes public keys and names.
func (s *scrubber) learn(e *Entry) {
	s.learnPlace(e.Place)
	note := &rewriter{word: func(text string) string { s.learnText(text); return text },
		name: s.learnName, label: s.learnLabel}
	note.public = func(text string) { s.public[text] = true }
	note.entry(e)
}

func (s *scrubber) learnPlace(place []string) {
	if s.names == nil {
		return
	}
	for _, name := range place {
		switch {
		case plain(name):
		case strings.HasPrefix(name, "culvert-"):
			s.names.value(name, s.names.learn)
		default:
			s.names.learn(name) // as a whole: that of a context may have slashes
		}
	}
}

func (s *scrubber) learnName(text string) string {
	if s.names != nil {
		s.names.value(text, s.names.learn)
	}
	return text
}

func (s *scrubber) learnLabel(text string) string {
	if !plainKey(text) {
		return s.learnName(text)
	}
	return text
}

// learnText notes what stands in quotation marks or behind the kind of an object, unless it may be
// an ordinary word.
func (s *scrubber) learnText(text string) {
	if s.names == nil {
		return
	}
	for _, m := range append(quoted.FindAllStringSubmatch(text, -1), ofKind.FindAllStringSubmatch(text, -1)...) {
		if strings.ContainsAny(m[1], "-/0123456789") {
			s.learnName(m[1])
		}
	}
}

// place returns the folders of a place.
func (s *scrubber) place(place []string) []string {
	place = slices.Clone(place)
	for i, name := range place {
		switch {
		case s.names == nil || plain(name):
		case strings.HasPrefix(name, "culvert-"):
			name = s.names.value(name, ignore)
		default:
			name = s.names.Name(name)
		}
		place[i] = pathSafe(name)
	}
	return place
}

func ignore(string) {}

// data returns the content of a file.
func (s *scrubber) data(e *Entry) []byte {
	return (&rewriter{word: s.text, public: ignore,
		name: func(text string) string {
			if text = s.hide(text); s.names == nil || text == hidden {
				return text
			}
			return s.names.value(text, ignore)
		},
		label: func(text string) string {
			if s.names == nil || plainKey(text) {
				return text
			}
			return s.names.value(text, ignore)
		}}).entry(e)
}

var (
	quoted = regexp.MustCompile(`"([^"\s\\]+)\\?"`)
	ofKind = regexp.MustCompile(`\b(?:` + strings.Join(strings.Fields(kindWords), "|") + `) ([a-z0-9][a-z0-9.-]*(?:/[a-z0-9.-]*)?[a-z0-9])`)
	four   = regexp.MustCompile(`[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9]{1,2})?`)
	// special matches what is replaced wherever it stands in a sentence.
	special = regexp.MustCompile(`"[^"\s\\]+\\?"` +
		`|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}` +
		`|[A-Za-z0-9+/]{43}=` +
		`|[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}` +
		`|[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*(?:%[A-Za-z0-9._-]+)?(?:/[0-9]{1,3})?` +
		`|` + four.String() +
		`|(?:/[A-Za-z0-9._@-]+){2,}` +
		`|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+`)
	uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}-.{27}$`)
	mac  = regexp.MustCompile(`^[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}$`)
)

// text returns a sentence without secrets, and with pseudonyms.
func (s *scrubber) text(text string) string {
	text = s.hide(text)
	if s.names == nil {
		return text
	}
	return pieces(text, special, s.names.replace, s.special)
}

// pieces replaces what matches x by one function, and what is between by another.
func pieces(text string, x *regexp.Regexp, between, matched func(string) string) string {
	var out strings.Builder
	end := 0
	for _, at := range x.FindAllStringIndex(text, -1) {
		out.WriteString(between(text[end:at[0]]))
		out.WriteString(matched(text[at[0]:at[1]]))
		end = at[1]
	}
	out.WriteString(between(text[end:]))
	return out.String()
}

// special returns the pseudonym of what matches the expression of that name.
func (s *scrubber) special(text string) string {
	p := s.names
	switch {
	case text[0] == '"':
		inner, end := text[1:len(text)-1], `"`
		if strings.HasSuffix(inner, `\`) {
			inner, end = inner[:len(inner)-1], `\"`
		}
		return `"` + p.value(inner, ignore) + end
	case uuid.MatchString(text), mac.MatchString(text):
		return p.Name(text)
	case key.FindString(text) == text:
		return p.pseudonym("key-", text)
	case text[0] == '/':
		return p.value(text, ignore)
	case strings.Count(text, ":") > 1:
		return s.six(text)
	case four.FindString(text) == text:
		return s.four(text)
	}
	if dot := strings.LastIndexByte(text, '.'); fileEndings[text[dot+1:]] {
		return p.value(text[:dot], ignore) + text[dot:]
	}
	if plainHost(text) {
		return pieces(text, four, p.replace, s.four)
	}
	return p.value(text, ignore)
}

// four returns the pseudonym of an IPv4 address or prefix in a sentence.
func (s *scrubber) four(text string) string {
	if mapped, ok := s.names.address(text); ok {
		return mapped
	}
	return s.names.replace(text)
}

// six returns the pseudonym of an IPv6 address or prefix, which the colon or the period of a
// sentence may follow, or of what else has two colons.
func (s *scrubber) six(text string) string {
	for end := len(text); end > 1; end-- {
		if _, err := netip.ParseAddrPort(text[:end]); err == nil {
			break // an IPv4 address with a port
		}
		if mapped, ok := s.names.address(text[:end]); ok {
			return mapped + pieces(text[end:], four, s.names.replace, s.four)
		}
		if !strings.ContainsRune(":.", rune(text[end-1])) {
			break
		}
	}
	return pieces(text, four, s.names.replace, s.four)
}

// A rewriter calls a function for each text of an entry, and puts the results in their places.
type rewriter struct {
	word, name, label func(string) string
	public            func(key string)
}

func (r *rewriter) entry(e *Entry) []byte {
	if strings.HasSuffix(e.File, ".json") {
		var v any
		d := json.NewDecoder(bytes.NewReader(e.Data))
		d.UseNumber()
		if err := d.Decode(&v); err == nil {
			of := strings.TrimSuffix(path.Base(e.File), ".json")
			out, _ := json.MarshalIndent(r.value(of, v), "", "  ") // what was JSON is JSON
			return append(out, '\n')
		}
	}
	var out []byte
	for line := range strings.Lines(pem.ReplaceAllString(string(e.Data), hidden)) {
		out = append(out, r.line(strings.TrimSuffix(line, "\n"))+"\n"...)
	}
	return out
}

// value rewrites a value of a field.
func (r *rewriter) value(field string, v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = r.value(field, v[i])
		}
	case map[string]any:
		return r.object(field, v)
	case string:
		return r.string(field, v)
	}
	return v
}

// labelled are fields that hold labels, whose keys anybody chooses. What is in named fields, or in
// doctor.json, has names that are words.
var (
	labelled = set("labels annotations matchLabels nodeSelector selector")
	named    = set("env doctor")
)

func (r *rewriter) object(field string, m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for name, v := range m {
		switch text, ok := v.(string); {
		case ok && labelled[field]:
			out[r.label(name)] = r.name(text)
		case ok && named[field] && name == "name":
			out[name] = r.word(text)
		default:
			out[name] = r.value(name, v)
		}
	}
	return out
}

func (r *rewriter) string(field, text string) string {
	switch {
	case text == "":
		return ""
	case secretFields[field]:
		return hidden
	case publicFields[field]:
		r.public(text)
		return r.name(text)
	case field == "args" || field == "command":
		flag, value, ok := strings.Cut(text, "=")
		if !ok {
			return r.word(text)
		}
		return flag + "=" + r.name(value)
	case field == "key":
		return r.label(text) // of a toleration or an expression
	case enums[field] && enum.MatchString(text):
		return text
	case words[field]:
		return r.word(text)
	}
	return r.name(text)
}

var (
	logged = regexp.MustCompile(`([A-Za-z][A-Za-z0-9_.]*)=("(?:[^"\\]|\\.)*"|\S*)`)
	// journal is what the journal and syslog write before a line; the host has a name.
	journal = regexp.MustCompile(`^(\w{3} +\d+ [\d:]+) (\S+) (\S+?\[\d+\]: )`)
)

// line rewrites a line of a log.
func (r *rewriter) line(text string) string {
	before := ""
	if m := journal.FindStringSubmatch(text); m != nil {
		before, text = m[1]+" "+r.name(m[2])+" "+r.word(m[3]), text[len(m[0]):]
	}
	if strings.HasPrefix(text, "{") {
		var v map[string]any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if d.Decode(&v) == nil {
			out, _ := json.Marshal(r.value("", v)) // what was JSON is JSON
			return before + string(out)
		}
	}
	if !strings.HasPrefix(text, "time=") {
		return before + r.word(text)
	}
	return before + pieces(text, logged, r.word, func(pair string) string {
		field, value, _ := strings.Cut(pair, "=")
		plain, err := strconv.Unquote(value)
		if err != nil {
			return field + "=" + r.string(field, value)
		}
		return field + "=" + strconv.Quote(r.string(field, plain))
	})
}
