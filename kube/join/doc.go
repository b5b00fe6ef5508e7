// Package join decides how Kubernetes clusters are joined: which CIDRs each has, by what its objects say; which ones it gives the other
// and the tunnels, so that nothing overlaps; and what an invitation says. It is pure: objects in, a Peering's spec and the reasons out.
//
//	objects ─► Survey ─► Cluster ─► Propose ─► peering.Spec, Lines for the user
//	                        └─► Invitation ─► text ─► the other cluster's Propose
//
// A Peering that is there is never changed without need: what it says is proposed again.
package join
