package configfile

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v2"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Decode fills v, a pointer to a struct with json tags, from YAML text. It records unknown and
// duplicate fields in e and still decodes the rest. It returns false if the text is not YAML or its
// shape does not fit v.
func (e *Errors) Decode(text []byte, v any) bool {
	e.text = text
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		e.syntax(err)
		return false
	}
	if !single(text) {
		e.add(problem{text: "the file holds more than one YAML document; keep one, without a --- or ... behind it"})
		return false
	}
	strict, err := json.UnmarshalStrict(asJSON, v)
	for _, err := range strict {
		path := fieldOf(err.Error())
		e.add(problem{path: printable(path), text: printable(unknown(path, v))})
	}
	if err != nil {
		path, text := shapeError(err.Error())
		e.add(problem{path: printable(path), text: printable(text)})
		return false
	}
	return true
}

// syntax records an error of the YAML parser, line by line.
func (e *Errors) syntax(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	for _, one := range strings.Split(strings.TrimPrefix(text, "unmarshal errors:\n"), "\n") {
		p := problem{text: strings.TrimSpace(one)}
		if rest, ok := strings.CutPrefix(p.text, "line "); ok {
			number, rest, _ := strings.Cut(rest, ": ")
			if n, err := strconv.Atoi(number); err == nil {
				p.line, p.text = n, rest
			}
		}
		if key, ok := strings.CutSuffix(p.text, " already set in map"); ok {
			p.text = printable(key) + " is already set in this mapping; keep one of them"
		} else {
			p.text = "not YAML: " + printable(p.text) +
				"; mind indentation, quotes and brackets in this line and the one before"
		}
		e.add(p)
	}
}

// single reports whether text, which is YAML, has only one document.
func single(text []byte) bool {
	if !bytes.Contains(text, []byte("\n---")) && !bytes.Contains(text, []byte("\n...")) {
		return true // a document ends only with a marker (YAML 1.2.2, Section 9.1.2)
	}
	d := goyaml.NewDecoder(bytes.NewReader(text))
	var document unread
	if d.Decode(&document) == io.EOF {
		return true
	}
	return d.Decode(&document) == io.EOF
}

// unread decodes a document and discards its content.
type unread struct{}

func (*unread) UnmarshalYAML(func(any) error) error { return nil }

// fieldOf extracts the path from sigs.k8s.io/json's `unknown field "a.b[0].c"`.
func fieldOf(msg string) string {
	if _, rest, ok := strings.Cut(msg, `"`); ok {
		if path, _, ok := strings.Cut(rest, `"`); ok {
			return path
		}
	}
	return msg
}

// shapeError rewrites `json: cannot unmarshal string into Go struct field T.a.b of type c` in terms
// of the file: which path has a value of the wrong kind.
func shapeError(msg string) (path, text string) {
	const intro, field, kind = "json: cannot unmarshal ", " into Go struct field ", " of type "
	rest, ok := strings.CutPrefix(msg, intro)
	if !ok {
		return "", msg
	}
	got, rest, ok := strings.Cut(rest, field)
	if !ok {
		got, _, _ = strings.Cut(got, " into ")
		return "", fmt.Sprintf("the file holds one %s where a mapping of fields is wanted", got)
	}
	path, _, _ = strings.Cut(rest, kind)
	if _, after, ok := strings.Cut(path, "."); ok {
		path = after
	}
	want, such := "a mapping of fields", "{name: value}"
	if strings.Contains(rest, kind+"[]") {
		want, such = "a list", "[first, second]"
	}
	return path, fmt.Sprintf("want %s, not one %s; write %s", want, got, such)
}
