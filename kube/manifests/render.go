package manifests

import "strings"

// Common returns what a cluster has once for all its peerings, with an image.
func Common(image string) string {
	return strings.TrimSuffix(Kinds, "\n") + "\n---\n" + strings.ReplaceAll(Nodes, Image, image)
}

// GatewayOf returns the gateway of the Peering of a name, which is a DNS label, with an image. expose is the type of its Service.
func GatewayOf(peering, image, expose string) string {
	return strings.NewReplacer(Peering, peering, Image, image, "type: LoadBalancer", "type: "+expose).Replace(Gateway)
}
