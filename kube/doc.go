// Package kube lets a gateway stand in for Liqo's: what Liqo's controllers write becomes the gateway's configuration and rules, and what
// the gateway makes of it goes back as conditions, Events and the Connection.
//
//	API server ─ watches ─► Object ─► State ─► Changes ─► Gateway
//	     ▲                              │
//	     └──────────── Source ◄─────────┴─ Verdicts, Events
//
// A State is the pure half. It holds the resources that are for one gateway and says what follows from them: the rules of each
// FirewallConfiguration and RouteConfiguration under the resource's own key, and the Site, which is everything else. It knows no clock,
// and the order in which resources come does not matter. A resource that cannot be obeyed is left out whole, its fields are named, and
// all others apply.
//
// Liqo is no dependency. The types are the package's own, and hold the fields that are used.
package kube
