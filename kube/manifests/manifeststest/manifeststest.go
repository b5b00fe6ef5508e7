// Package manifeststest renders the templates of the Helm chart as Helm does, with those of its
// functions that they use.
package manifeststest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// Everything has each option; its peerings differ in theirs.
const Everything = `
image: registry.example/another:2.0
digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
imagePullPolicy: Always
imagePullSecrets: [{name: registry}, {name: "7"}]
agents: &pods
  nodeSelector: {kubernetes.io/os: linux, zone: "on"}
  tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 1000000}]
  affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
  priorityClassName: "7"
  resources: {requests: {cpu: 1, memory: 1Gi}}
  annotations: {a: "{{ .Values }}", b: 'a "quoted" <text>'}
  labels: {team: net, x.example/y: "true"}
gateways: *pods
networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {}}, {podSelector: {matchLabels: {a: b}}}]}
podMonitor: {enabled: true, interval: 15s, labels: {release: "7"}}
alerts: {enabled: true, labels: {release: "7"}}
dashboard: {enabled: true, labels: {x: "1"}, annotations: {folder: net}}
peerings:
- {name: milan, expose: NodePort, replicas: 2, imports: milan, service: {nodePort: 31840}}
- name: turin-2
  expose: LoadBalancer
  service: {externalTrafficPolicy: Local, loadBalancerClass: "7", annotations: {x.example/y: "true"}, nodePort: 30000}
- {name: oslo, expose: ClusterIP, replicas: 3}
`

// Render returns all objects of a chart, whose files it gets by name.
func Render(files map[string]string, values map[string]any) (string, error) {
	functions := template.FuncMap{
		"toJson": func(v any) (string, error) {
			text, err := json.Marshal(v)
			return string(text), err
		},
		"dict":   func() map[string]any { return nil },
		"hasKey": func(of map[string]any, key string) bool { _, ok := of[key]; return ok },
		"default": func(standard, given map[string]any) map[string]any {
			if len(given) == 0 {
				return standard
			}
			return given
		},
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, "templates/") {
			continue
		}
		one, err := template.New(name).Funcs(functions).Parse(files[name])
		if err == nil {
			b.WriteString("\n---\n")
			err = one.Execute(&b, map[string]any{"Values": values})
		}
		if err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
