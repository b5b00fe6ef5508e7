// Package multicluster makes Services of several clusters one (KEP-1645): from the ServiceExports
// of this cluster and what peers export, it derives ServiceImports, the Services behind their
// addresses, and EndpointSlices.
//
//	ServiceExport, Service, EndpointSlice ─┐
//	Peering, PeerExports, Namespace ───────┴─► State ─► Write ─► ServiceImport, Service, EndpointSlice,
//	                                                             ServiceExport.status
//
// A State is pure: objects in, the next write of a name out. It knows no clock. A Source follows
// the API server, and writes. All of one name, such as shop/web, is derived at once, whenever
// something of this name has changed; other names are not looked at.
//
// A gateway writes what its peer's gateway tells to the PeerExports of its Peering, and nothing
// else. Here it is judged: names, ports, labels, and addresses, which must be the peer's and are
// then remapped as spec.remote of the Peering says. Only namespaces that spec.services.import of
// the Peering admits are written to.
//
// Objects without LabelManaged are somebody else's, and stay as they are.
package multicluster
