// Package verify proves that the pods of two clusters reach each other, and names what is wrong if
// they do not.
//
//	Snapshots of both clusters ─► ring of nodes ─► pods that serve, pods that ask (kube/verify/probe)
//	                                                    ─► Answers ─► Judge ─► Findings
//
// Judge is pure: what the clusters say about themselves and what the pods have found go in,
// sentences come out. Run drives two Clusters, which are API servers or, in tests, fakes. The pods
// have no privilege: they run under Pod Security restricted, in a temporary namespace. Their
// findings come back in the termination messages of their containers, so nobody has to reach them
// or read logs.
package verify
