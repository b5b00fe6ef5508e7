package manifests

import "strings"

// Chart returns the templates of the Helm chart by name: the same text as the manifests, with Helm
// values where clusters differ.
func Chart() map[string]string {
	const note = "# Generated from kube/manifests: go test ./kube/manifests -update\n"
	g := &Gateway{Peering: "{{ .name }}", Image: "{{ $.Values.image }}", Expose: "{{ .expose }}"}
	imports := strings.NewReplacer(Peering, g.Peering, Importing, "{{ .imports }}").Replace(Imports)
	return map[string]string{
		"culvert.yaml": note + Common("{{ .Values.image }}"),
		"gateways.yaml": note + "{{- range .Values.peerings }}\n---\n" + g.text("{{ or .replicas 1 }}") +
			"{{- if .imports }}\n---\n" + imports + "{{- end }}\n{{- end }}\n",
	}
}
