// Package manifests has what kubectl applies on nodes.
package manifests

import _ "embed"

// LiqoNodes is the DaemonSet that gives nodes without Geneve the links that Liqo asks for, and its rights.
//
//go:embed liqo-nodes.yaml
var LiqoNodes string

// Services is the DaemonSet that serves Services on nodes, and its rights.
//
//go:embed services.yaml
var Services string

// What LiqoNodes has in the place of values of a cluster.
const (
	Image     = "registry.example/culvert:1.0"
	Namespace = "liqo"
)

// What culvert consists of under Kubernetes without Liqo: its kinds, what a cluster has once, and the gateway of one peering, which has the
// word Peering in the place of the peering's name. They have the value Image for the image.
var (
	//go:embed kube-kinds.yaml
	Kinds string
	//go:embed kube-nodes.yaml
	Nodes string
	//go:embed kube-gateway.yaml
	GatewayYAML string
	// Imports is what the gateway may do in the namespace Importing.
	//
	//go:embed kube-imports.yaml
	Imports string
)

// Peering stands in GatewayYAML and Imports for the name of a Peering, Importing for the namespace of its imports.
const (
	Peering   = "PEERING"
	Importing = "IMPORTS"
)
