// Package terms decides on which terms Kubernetes clusters are joined: which CIDRs each has
// according to its objects, which CIDRs it gives the other cluster and the tunnels so that nothing
// overlaps, and what an invitation says. It is pure: objects in, a Peering's spec and the reasons
// out.
//
//	objects ─► Survey ─► Cluster ─► Propose ─► peering.Spec, Lines for the user
//	                        └─► Invitation ─► text ─► the other cluster's Propose
//
// An existing Peering is never changed without need: its values are proposed again.
package terms
