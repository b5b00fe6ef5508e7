// Package kube is the place of the Kubernetes source of gateway.Config: Liqo's
// resources in, status back. It is empty; the gateway reads a YAML file.
package kube
