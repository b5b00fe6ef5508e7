package template

import (
	"strings"
	"testing"
	"text/template"
)

// Every template expands as with Go's own package, and is refused if that refuses it.
func TestExpandAsTextTemplate(t *testing.T) {
	g := Gateway{Name: "milan", Namespace: "liqo-tenant-milan", ClusterID: "milan", GatewayUID: "7f6e"}
	g.Spec.MTU, g.Spec.Endpoint.Port = 1340, 51840
	g.Spec.Endpoint.Addresses, g.Spec.Endpoint.Ports = []string{"192.0.2.7", "milan.example"}, []int32{51840, 51841}
	texts := []string{
		"", "no action", "{{ .Name }}-x", "{{.Name}}{{- /* nothing */ -}} {{ .Namespace }}", "{{ $.Name }}",
		"{{ .Spec.MTU }}", "{{ .Spec.Endpoint.Port | printf \"%05d\" }}",
		"{{ index .Spec.Endpoint.Addresses 0 }}", "{{ index .Spec.Endpoint.Addresses 2 }}",
		"{{ index .Spec.Endpoint.Addresses -1 }}", "{{ index .Name \"a\" }}",
		"{{ range $i, $p := .Spec.Endpoint.Ports }}{{ if $i }},{{ end }}{{ $p }}{{ else }}{{ .Spec.Endpoint.Port }}{{ end }}",
		"{{ range $i, $p := .Spec.Endpoint.NodePorts }}{{ $p }}{{ else }}none{{ end }}",
		"{{ range .Spec.Endpoint.Ports }}<{{ . }}>{{ end }}",
		"{{ range $p := .Spec.Endpoint.Ports }}{{ $q := $p }}{{ $q }}{{ end }}", "{{ range .Name }}x{{ end }}",
		"{{ $x := 1 }}{{ if .Name }}{{ $x = 2 }}{{ end }}{{ $x }}",
		"{{ $x := 1 }}{{ if .Name }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}",
		"{{ if .Spec.Endpoint.ServiceType }}yes{{ else if .Spec.Endpoint.NodePort }}port{{ else }}no{{ end }}",
		"{{ with .Spec.Endpoint }}{{ .Port }}{{ end }}",
		"{{ with .Spec.SecretRef.Name }}{{ . }}{{ else }}none{{ end }}",
		"{{ with $e := .Spec.Endpoint }}{{ $e.Port }}{{ end }}", "{{ (index .Spec.Endpoint.Ports 1) }}",
		"{{ if and .Spec.Endpoint.NodePorts (index .Spec.Endpoint.NodePorts 0) }}x{{ else }}y{{ end }}",
		"{{ or .Spec.SecretRef.Name .SecretName .Name }}",
		"{{ if eq .Name \"rome\" \"milan\" }}x{{ end }}", "{{ if ne .Spec.MTU 1340 }}x{{ else }}y{{ end }}",
		"{{ eq .Name 1 }}", "{{ eq .Spec.Endpoint.Port 51840 }}",
		"{{ not .Name }}", "{{ len .Spec.Endpoint.Ports }}", "{{ len .Name }}", "{{ len .Spec.MTU }}",
		"{{ true }} {{ 7 }} {{ \"text\" }}", "{{ print .Name 1 2 \"x\" }}",
		"{{ .Nothing }}", "{{ .Name.More }}", "{{ $y }}", "{{ .Name 1 }}", "{{ nothing .Name }}", "{{ if }}x{{ end }}",
		"{{ .Name", "{{ end }}", "{{ printf 1 }}",
	}
	forEach(t, func(t *testing.T, capture string, server bool) {
		mend(stockOf(t, capture, server), func(v any) any {
			if s, ok := v.(string); ok {
				texts = append(texts, s)
			}
			return v
		})
	})
	good := 0
	for _, text := range texts {
		var want strings.Builder
		parsed, wantErr := template.New("x").Parse(text)
		if wantErr == nil {
			wantErr = parsed.Execute(&want, g)
		}
		got, err := expand("x", text, g)
		if (err == nil) != (wantErr == nil) || err == nil && got != want.String() {
			t.Errorf("%s: %q, %v; want %q, %v", text, got, err, want.String(), wantErr)
		}
		if wantErr == nil {
			good++
		}
	}
	if good < 100 || good > len(texts)-10 {
		t.Errorf("%d of %d are good", good, len(texts))
	}
}

// Names that culvert does not know are refused, and named.
func TestExpandUnknown(t *testing.T) {
	for text, want := range map[string]string{
		"{{ lt 1 2 }}": "the function lt", "{{ range 3 }}x{{ end }}": "a int has no elements",
		"{{ 1.5 }}": "1.5: culvert does not know this",
		"{{ range $, $ = .Spec.Endpoint.Ports }}x{{ end }}":            "culvert does not know this",
		"{{ $x := 1 }}{{ range $x = .Spec.Endpoint.Ports }}x{{ end }}": "culvert does not know this",
		"{{ template \"x\" }}": "culvert does not know this", "{{ index }}": "index: ",
	} {
		if got, err := expand("spec.x", text, Gateway{}); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "spec.x: ") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}
