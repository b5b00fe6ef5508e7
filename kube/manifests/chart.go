package manifests

import "strings"

// Chart returns the templates of the Helm chart by name: the same text as the manifests, with Helm
// values where clusters differ.
func Chart() map[string]string {
	const note = "# Generated from kube/manifests: go test ./kube/manifests -update\n"
	g := &Gateway{Peering: Peering, Image: "IMAGE", Expose: "EXPOSE", Imports: Importing}
	all := g.objects()
	set(at(find(all, "Deployment"), "spec", "replicas"), "REPLICAS")
	imports := len(all) - len(parse(Imports))
	values := strings.NewReplacer(Peering, "{{ .name }}", "IMAGE", "{{ $.Values.image }}", "EXPOSE", "{{ .expose }}",
		Importing, "{{ .imports }}", "REPLICAS", "{{ or .replicas 1 }}")
	return map[string]string{
		"culvert.yaml": note + values.Replace(Common("IMAGE")),
		"gateways.yaml": note + "{{- range .Values.peerings }}\n---\n" + values.Replace(format(all[:imports])) +
			"{{- if .imports }}\n---\n" + values.Replace(format(all[imports:])) + "{{- end }}\n{{- end }}\n",
	}
}
