// Package join joins Kubernetes clusters. It surveys them, plans what each of them gets, applies
// the plan, and waits until packets pass.
//
//	all clusters at hand:  Request ─► NewPlan ─► Apply ─► Results
//	one at each side:      Invite ─► Apply ─► Message ─► Accept, there ─► Apply ─► Message
//	                       Accept of the answer ─► Apply ─► Connected
//
// Only Apply changes clusters. Their API servers have checked each change by then, and what a plan
// shows is what is applied. A run that was interrupted can be repeated: what is there stays.
//
// Pairs of a plan are applied side by side, and one that fails does not keep the others. Package
// terms decides about CIDRs; package deploy knows the API server.
package join
