package configfile

import (
	"fmt"
	"strconv"
	"strings"

	goyaml3 "go.yaml.in/yaml/v3"
)

// problem is one error or warning about a file.
type problem struct {
	path string // of the field, "" = the file as a whole
	line int    // of a file without fields, because it is not YAML; 0 = unknown
	text string
}

// positions finds fields in a text by path.
type positions struct {
	root *goyaml3.Node
	keys map[*goyaml3.Node]map[string]int // of each mapping visited, the indexes of its keys
}

func newPositions(text []byte) *positions {
	p := &positions{keys: make(map[*goyaml3.Node]map[string]int)}
	var document goyaml3.Node
	if goyaml3.Unmarshal(text, &document) == nil && len(document.Content) == 1 {
		p.root = document.Content[0]
	}
	return p
}

// Lines returns a function that finds the line of a field by path; 0 means that the text lacks the
// field.
func Lines(text []byte) func(path string) (line int) {
	p := newPositions(text)
	return func(path string) (line int) {
		if line, _, there := p.lookUp(path); there {
			return line
		}
		return 0
	}
}

// find returns the line and column of the field at path, or of the innermost mapping or list around
// it that exists. They count from 1; 0, 0 = unknown.
func (p *positions) find(path string) (line, column int) {
	line, column, _ = p.lookUp(path)
	return line, column
}

// lookUp is find, and also reports whether the field itself exists.
func (p *positions) lookUp(path string) (line, column int, there bool) {
	node := p.root
	if node == nil {
		return 0, 0, false
	}
	line, column = node.Line, node.Column
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' }) {
		for node.Kind == goyaml3.AliasNode {
			node = node.Alias
		}
		at, isIndex := strings.CutSuffix(step, "]")
		switch {
		case isIndex && node.Kind == goyaml3.SequenceNode:
			i, err := strconv.Atoi(at)
			if err != nil || i < 0 || i >= len(node.Content) {
				return line, column, false
			}
			node = node.Content[i]
			line, column = node.Line, node.Column
		case !isIndex && node.Kind == goyaml3.MappingNode:
			i, ok := p.key(node, step)
			if !ok {
				return line, column, false
			}
			key, value := node.Content[i], node.Content[i+1]
			line, column = key.Line, key.Column
			if value.Kind == goyaml3.ScalarNode && value.Tag != "!!null" {
				line, column = value.Line, value.Column
			}
			node = value
		default:
			return line, column, false
		}
	}
	return line, column, true
}

func (p *positions) key(mapping *goyaml3.Node, name string) (int, bool) {
	index := p.keys[mapping]
	if index == nil {
		index = make(map[string]int, len(mapping.Content)/2)
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			index[mapping.Content[i].Value] = i
		}
		p.keys[mapping] = index
	}
	i, ok := index[name]
	return i, ok
}

// lines renders problems, one line each: position if the file has a name, path, and fault.
func (e *Errors) lines(problems []problem) []string {
	if len(problems) == 0 {
		return nil
	}
	lines := make([]string, len(problems))
	var at *positions
	for i, p := range problems {
		text := p.text
		if p.path != "" {
			text = p.path + ": " + text
		}
		if e.File == "" {
			lines[i] = text
			continue
		}
		line, column := p.line, 1
		if line == 0 {
			if at == nil {
				at = newPositions(e.text)
			}
			line, column = at.find(p.path)
		}
		where := printable(e.File)
		if line > 0 {
			where = fmt.Sprintf("%s:%d:%d", where, line, column)
		}
		lines[i] = where + ": " + text
	}
	return lines
}
