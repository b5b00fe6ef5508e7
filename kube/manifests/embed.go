// Package manifests has the Kubernetes manifests of culvert.
package manifests

import _ "embed"

// LiqoNodes is the DaemonSet that gives nodes without Geneve the links that Liqo requests, and its
// rights.
//
//go:embed liqo-nodes.yaml
var LiqoNodes string

// Services is the DaemonSet that serves Services on nodes, and its rights.
//
//go:embed services.yaml
var Services string

// Placeholders in LiqoNodes for values of a cluster.
const (
	Image     = "registry.example/culvert:1.0"
	Namespace = "liqo"
)

// The parts of culvert under Kubernetes without Liqo: its kinds, the objects that a cluster needs
// once, and those of one peering's gateway. Peering in them stands for the peering's name, Image
// for the image.
var (
	//go:embed kube-kinds.yaml
	Kinds string
	//go:embed kube-nodes.yaml
	Nodes string
	//go:embed kube-gateway.yaml
	GatewayYAML string
	// Imports has the gateway's rights in the namespace Importing.
	//
	//go:embed kube-imports.yaml
	Imports string
	//go:embed kube-multicluster.yaml
	multiclusterYAML string
	// What values switch on: a gateway's NetworkPolicy, and what Prometheus and Grafana read.
	//
	//go:embed kube-policy.yaml
	policyYAML string
	//go:embed kube-monitoring.yaml
	monitoringYAML string
	//go:embed alerts.yaml
	alertsYAML string
	//go:embed grafana.json
	dashboardJSON string
)

// Peering stands for a Peering's name in GatewayYAML and Imports, Importing for the namespace of
// its imports.
const (
	Peering   = "PEERING"
	Importing = "IMPORTS"
)
