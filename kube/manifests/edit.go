package manifests

import (
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Manifests are edited as trees of YAML nodes, because these keep the comments, which tell a user
// which line to change. A field that is not there is a fault of this package, and panics.

// parse returns the objects of a manifest.
func parse(text string) (all []*yaml.Node) {
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var n yaml.Node
		if err := d.Decode(&n); err == io.EOF {
			return all
		} else if err != nil {
			panic(err)
		}
		all = append(all, n.Content[0])
	}
}

// format returns the manifest of objects.
func format(all []*yaml.Node) string {
	var b strings.Builder
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	e.CompactSeqIndent()
	for _, o := range all {
		if err := e.Encode(o); err != nil {
			panic(err)
		}
	}
	e.Close()
	return b.String()
}

// find returns the first object of a kind.
func find(all []*yaml.Node, kind string) *yaml.Node {
	return all[slices.IndexFunc(all, func(o *yaml.Node) bool { return at(o, "kind").Value == kind })]
}

// field returns the index of a field's name in a mapping; its value is the next. Of a list, it
// returns the index that name is, or of the mapping that has this name.
func field(n *yaml.Node, name string) int {
	if i, err := strconv.Atoi(name); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
		return i
	}
	step := 2
	if n.Kind == yaml.SequenceNode {
		step = 1
	}
	for i := 0; i < len(n.Content); i += step {
		if step == 2 && n.Content[i].Value == name || step == 1 && at(n.Content[i], "name").Value == name {
			return i
		}
	}
	return -1
}

// at returns what a path of fields and of names of list items leads to.
func at(n *yaml.Node, path ...string) *yaml.Node {
	for _, name := range path {
		i := field(n, name)
		if i < 0 {
			panic("a manifest has no " + strings.Join(path, "."))
		}
		if n.Kind == yaml.MappingNode {
			i++
		}
		n = n.Content[i]
	}
	return n
}

// remove removes a field and its comments from a mapping.
func remove(n *yaml.Node, name string) {
	at(n, name)
	i := field(n, name)
	n.Content = slices.Delete(n.Content, i, i+2)
}

// set changes a value. It quotes what a reader would take for a number or a boolean.
func set(n *yaml.Node, value any) {
	var v yaml.Node
	if err := v.Encode(value); err != nil {
		panic(err)
	}
	if v.Tag == n.Tag {
		v.Style |= n.Style & yaml.DoubleQuotedStyle
	}
	n.Tag, n.Value, n.Style = v.Tag, v.Value, v.Style
}

// visit calls f for each value that is no mapping and no list, with the name of its field.
func visit(n *yaml.Node, name string, f func(name string, value *yaml.Node)) {
	for i, part := range n.Content {
		if n.Kind == yaml.MappingNode {
			if name = n.Content[i&^1].Value; i%2 == 0 {
				continue
			}
		}
		visit(part, name, f)
	}
	if n.Kind == yaml.ScalarNode {
		f(name, n)
	}
}

// replace replaces parts of all values and comments.
func replace(n *yaml.Node, r *strings.Replacer) {
	for _, text := range []*string{&n.Value, &n.HeadComment, &n.LineComment, &n.FootComment} {
		*text = r.Replace(*text)
	}
	for _, part := range n.Content {
		replace(part, r)
	}
}
