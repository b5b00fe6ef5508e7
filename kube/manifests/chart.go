package manifests

// Chart returns the templates of the Helm chart by name: the same text as the manifests, with Helm
// values where clusters differ.
func Chart() map[string]string {
	const note = "# Generated from kube/manifests: go test ./kube/manifests -update\n"
	return map[string]string{
		"culvert.yaml": note + Common("{{ .Values.image }}"),
		"gateways.yaml": note + "{{- range .Values.peerings }}\n---\n" +
			GatewayOf("{{ .name }}", "{{ $.Values.image }}", "{{ .expose }}") + "{{- end }}\n",
	}
}
