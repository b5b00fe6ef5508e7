package manifests

import "strings"

// Chart returns the templates of the Helm chart by name: the same text as the manifests, with Helm
// values where clusters differ.
func Chart() map[string]string {
	const note = "# Generated from kube/manifests: go test ./kube/manifests -update\n"
	g := &Gateway{Peering: "{{ .name }}", Image: "{{ $.Values.image }}", Expose: "{{ .expose }}", Replicas: 1}
	one := g.YAML()
	g.Replicas = 2
	several := strings.ReplaceAll(g.YAML(), "replicas: 2\n", "replicas: {{ .replicas }}\n")
	imports := strings.NewReplacer(Peering, g.Peering, Importing, "{{ .imports }}").Replace(Imports)
	return map[string]string{
		"culvert.yaml": note + Common("{{ .Values.image }}"),
		"gateways.yaml": note + "{{- range .Values.peerings }}\n---\n{{- if gt (int .replicas) 1 }}\n" + several + "{{- else }}\n" + one + "{{- end }}\n" +
			"{{- if .imports }}\n---\n" + imports + "{{- end }}\n{{- end }}\n",
	}
}
