package manifests

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const generated = "# Generated from kube/manifests: go test ./kube/manifests -update\n"

// Chart returns the generated files of the Helm chart by name. The templates are the same text as
// the manifests, with Helm values where clusters differ, and the options of the same table.
func Chart() map[string]string {
	common := commonObjects("IMAGE")
	for _, o := range common {
		if switchOf(o) != "" { // what others execute is no template of Helm's
			replace(o, strings.NewReplacer("{{", "{{`{{`}}"))
		}
	}
	g := &Gateway{Peering: Peering, Image: "IMAGE", Expose: "EXPOSE", Imports: Importing}
	gateway := g.objects()
	set(at(find(gateway, "Deployment"), "spec", "replicas"), "REPLICAS")
	imports := len(gateway) - len(parse(Imports))
	return map[string]string{
		"values.schema.json": string(ValuesSchema),
		"templates/culvert.yaml": generated + "{{- if not .Values.gatewaysOnly }}\n---\n" +
			strings.TrimSuffix(Kinds, "\n") + "\n" + templated(common) + "{{- end }}\n",
		"templates/gateways.yaml": generated + "{{- range .Values.peerings }}\n" + templated(gateway[:imports]) +
			"{{- if .imports }}\n" + templated(gateway[imports:]) + "{{- end }}\n{{- end }}\n",
	}
}

// Marks in the objects of the chart, which templated replaces by what Helm executes.
const (
	markIf   = "OPTION-IF-"  // begins the name of a field in front of an option's
	markEnd  = "OPTION-END"  // a field behind it
	markAdds = "OPTION-ADDS" // a field of the mapping to which an option adds fields
)

// mark puts marks where the options of an object are.
func mark(object *yaml.Node) {
	pair := func(name, value string) []*yaml.Node {
		return []*yaml.Node{{Kind: yaml.ScalarNode, Value: name}, {Kind: yaml.ScalarNode, Value: value}}
	}
	for _, o := range optionsOf(object) {
		around, name := o.place(object)
		i := field(around, name)
		if i >= 0 && o.adds {
			had := around.Content[i+1]
			had.Content = append(had.Content, pair(markAdds, o.value)...)
			continue
		}
		end := i + 2
		if i < 0 {
			i, end = len(around.Content), len(around.Content)
		}
		around.Content = slices.Insert(around.Content, end, pair(markEnd, o.value)...)
		around.Content = slices.Insert(around.Content, i, pair(markIf+name, o.value)...)
	}
}

var (
	ifMark   = regexp.MustCompile(`(?m)^( *)` + markIf + `(\w+): (\S+)$`)
	endMark  = regexp.MustCompile(`(?m)^ *` + markEnd + `: \S+$`)
	addsMark = regexp.MustCompile(`, ` + markAdds + `: ([\w.]+)`)
)

// templated returns the text of objects for Helm, each as a document of its own.
func templated(all []*yaml.Node) string {
	var b strings.Builder
	for _, o := range all {
		text := "---\n" + templatedObject(o)
		if name := switchOf(o); name != "" {
			text = "{{- if (default dict $.Values." + name + ").enabled }}\n" + text + "{{- end }}\n"
		}
		b.WriteString(text)
	}
	return b.String()
}

func templatedObject(o *yaml.Node) string {
	mark(o)
	text := strings.NewReplacer(Peering, "{{ .name }}", "EXPOSE", "{{ .expose }}", Importing, "{{ .imports }}",
		"IMAGE", "{{ $.Values.image }}{{ with $.Values.digest }}@{{ . }}{{ end }}",
		"REPLICAS", "{{ or .replicas 1 }}").Replace(format([]*yaml.Node{o}))
	text = ifMark.ReplaceAllStringFunc(text, func(line string) string {
		m := ifMark.FindStringSubmatch(line)
		around, name, whole := helmField(m[3])
		return "{{- if hasKey " + around + " \"" + name + "\" }}\n" + m[1] + m[2] + ": {{ toJson " + whole +
			" }}\n{{- else }}"
	})
	text = endMark.ReplaceAllLiteralString(text, "{{- end }}")
	text = strings.ReplaceAll(text, "\n{{- else }}\n{{- end }}\n", "\n{{- end }}\n")
	return addsMark.ReplaceAllStringFunc(text, func(mark string) string {
		around, name, _ := helmField(addsMark.FindStringSubmatch(mark)[1])
		return "{{ range $k, $v := " + around + "." + name + " }}, {{ toJson $k }}: {{ toJson $v }}{{ end }}"
	})
}

// helmField returns what Helm calls an option's value, its name there, and an expression for what
// has it, which may be missing.
func helmField(value string) (around, name, whole string) {
	i := strings.LastIndexByte(value, '.')
	around, name = value[:max(i, 0)], value[i+1:]
	if !strings.HasPrefix(value, ".") {
		around = strings.TrimSuffix("$.Values."+around, ".")
	}
	whole = around + "." + name
	if around != "$.Values" {
		around = "(default dict " + around + ")"
	}
	return around, name, whole
}
