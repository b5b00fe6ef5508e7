package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/kube/manifests/manifeststest"
)

// TestValues: values that manifests would print as something else are refused with field and
// remedy, and all others are accepted.
func TestValues(t *testing.T) {
	standard, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	need.NoError(t, err)
	const peering = "peerings: [{name: a, expose: NodePort, "
	for values, want := range map[string]string{
		string(standard): "", manifeststest.Everything: "", "": "", "# nothing\n": "",
		"global: {anything: 1}\nimage: a":                          "", // Helm gives it to each chart of a chart
		"image: null\nagents: {affinity: null}":                    "",
		"peerings: [{name: a, expose: LoadBalancer, replicas: 3}]": "",
		"peerings: [{name: a-1, expose: ClusterIP, imports: b}]":   "",
		"peerings: [{name: " + longName + ", expose: NodePort}]":   "",
		"image: ''":                                               `1:8: image: "" is not the name of culvert's image in a registry that all nodes reach`,
		"image: 1":                                                "1:8: image: want a text; put it in quotes",
		"images: a":                                               "1:9: images: no such field; did you mean image?",
		"colour: a":                                               "1:9: colour: no such field; known here: agents, alerts, dashboard, digest, gateways, gatewaysOnly, global, image, imagePullPolicy, imagePullSecrets, multicluster, networkPolicy, peerings, podMonitor",
		"image: a\nagents: {nodeselector: {}}":                    "2:10: agents.nodeselector: no such field; did you mean nodeSelector?",
		"agents: {nodeSelector: {fast: true}}":                    "1:31: agents.nodeSelector.fast: want a text; put it in quotes",
		"gateways: {tolerations: {key: a}}":                       "1:12: gateways.tolerations: want a list, such as [first, second]",
		"gateways: {tolerations: [a]}":                            "1:26: gateways.tolerations[0]: want a mapping of fields, such as {name: value}",
		"gateways: {labels: {app: a}}":                            "1:26: gateways.labels.app: culvert sets it itself; leave it out",
		"gateways: {priorityClassName: ''}":                       `1:31: gateways.priorityClassName: "" is not the name of a PriorityClass`,
		"podMonitor: {interval: 30}":                              "1:24: podMonitor.interval: want a text; put it in quotes",
		"podMonitor: {interval: '30'}":                            `1:24: podMonitor.interval: "30" is not a duration such as 30s`,
		"alerts: true":                                            "1:9: alerts: want a mapping of fields, such as {name: value}",
		"gatewaysOnly: 'true'":                                    "1:15: gatewaysOnly: want true or false",
		"digest: sha256:ab":                                       `1:9: digest: "sha256:ab" is not the image's digest, sha256: and 64 hexadecimal digits`,
		"imagePullPolicy: always":                                 `1:18: imagePullPolicy: "always" is not one of Always, IfNotPresent, Never; did you mean Always?`,
		"imagePullPolicy: ''":                                     "1:18: imagePullPolicy: empty; want one of Always, IfNotPresent, Never",
		"imagePullSecrets: [registry]":                            "1:20: imagePullSecrets[0]: want a mapping of fields, such as {name: value}",
		"imagePullSecrets: [{nam: registry}]":                     "1:20: imagePullSecrets[0].name: missing; want the name of a Secret of both namespaces, culvert and culvert-nodes",
		"peerings: milan":                                         "1:11: peerings: want a list, such as [first, second]",
		"peerings: [{name: milan}]":                               "1:12: peerings[0].expose: missing; want the type of the gateway's Service",
		"peerings: [{name: Milan, expose: NodePort}]":             `1:19: peerings[0].name: "Milan" is not the name of a Peering: small letters, digits and dashes, and not multicluster, whose account is culvert's own`,
		"peerings: [{name: \"a\\nb\", expose: NodePort}]":         `1:19: peerings[0].name: "a\nb" is not the name of a Peering: small letters, digits and dashes, and not multicluster, whose account is culvert's own`,
		"peerings: [{name: multicluster, expose: NodePort}]":      `1:19: peerings[0].name: "multicluster" is not the name of a Peering: small letters, digits and dashes, and not multicluster, whose account is culvert's own`,
		"peerings: [{name: a, expose: nodeport}]":                 `1:30: peerings[0].expose: "nodeport" is not one of LoadBalancer, NodePort, ClusterIP; did you mean NodePort?`,
		peering + "replicas: 2}, {name: a, expose: NodePort}]":    "1:61: peerings[1].name: a is there twice; keep one of them",
		peering + "service: {nodePort: 65536}}]":                  "1:60: peerings[0].service.nodePort: 65536 is not a number from 1 to 65535",
		peering + "service: {nodePort: '31840'}}]":                "1:60: peerings[0].service.nodePort: want a whole number without quotes",
		peering + "service: {externalTrafficPolicy: Locale}}]":    `1:73: peerings[0].service.externalTrafficPolicy: "Locale" is not one of Cluster, Local; did you mean Local?`,
		peering + "replicas: 0}]":                                 "1:50: peerings[0].replicas: 0 is not a number from 1 to 3",
		peering + "replicas: 4}]":                                 "1:50: peerings[0].replicas: 4 is not a number from 1 to 3",
		peering + "replicas: 1.5}]":                               "1:50: peerings[0].replicas: want a whole number without quotes",
		peering + "replicas: '2'}]":                               "1:50: peerings[0].replicas: want a whole number without quotes",
		peering + "imports: 'x: y'}]":                             `1:49: peerings[0].imports: "x: y" is not the name of a namespace: small letters, digits and dashes`,
		peering + "mtu: 1400}]":                                   "1:45: peerings[0].mtu: no such field; known here: expose, imports, name, replicas, service",
		"peerings: [{name: " + longName + "a, expose: NodePort}]": "1:19: peerings[0].name: 41 characters, at most 40 are allowed; want the name of a Peering: small letters, digits and dashes, and not multicluster, whose account is culvert's own",
	} {
		got := ""
		if _, err := ReadValues("", []byte(values)); err != nil {
			_, err := ReadValues("f", []byte(values))
			got = strings.TrimPrefix(err.Error(), "f:")
		}
		if first, _, _ := strings.Cut(got, "\n"); first != want {
			t.Errorf("%s: %q, want %q", values, got, want)
		}
	}
}

// longName is as long as the name of a Peering may be.
const longName = "abcdefghijabcdefghijabcdefghijabcdefghij"

// TestValuesAreSaid: the chart's values.yaml has each field of the schema, or a comment about it.
func TestValuesAreSaid(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	need.NoError(t, err)
	fields := regexp.MustCompile(`"(\w+)": \{"(type|enum|\$ref)`).FindAllStringSubmatch(string(ValuesSchema), -1)
	for _, f := range fields {
		switch said := regexp.MustCompile(`\b` + f[1] + `\b`).Match(text); f[1] {
		case "pods", "strings", "items", "additionalProperties": // of the schema itself
		default:
			if !said {
				t.Errorf("values.yaml does not say what %s is", f[1])
			}
		}
	}
	if len(fields) < 18 {
		t.Errorf("only %d fields", len(fields))
	}
}
