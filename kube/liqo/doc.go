// Package liqo lets a gateway replace Liqo's: it derives the gateway's configuration and rules from
// the resources of Liqo's controllers, and reports back through conditions, Events and the
// Connection.
//
//	API server ─ watches ─► Object ─► State ─► Changes ─► Gateway
//	     ▲                              │
//	     └──────────── Source ◄─────────┴─ Verdicts, Events
//
// A State is the pure half. It holds the resources for one gateway and derives from them: the rules
// of each FirewallConfiguration and RouteConfiguration, under the resource's own key, and the Site,
// which is everything else. It uses no clock, and the order of the resources does not matter. An
// invalid resource is left out as a whole and its invalid fields are reported; all others apply.
//
// Liqo is not a dependency. The package has its own types, with only the fields that it uses.
package liqo
