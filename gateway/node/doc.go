// Package node is the node's end of a Geneve tunnel: it makes the link on a Kubernetes node that
// carries its pods' packets to the remote cluster, gives it an address and routes, and removes them
// again.
//
//	pod ─ veth ─ node's routes ─ culvert0 ══ UDP 6091 ══ culvert gateway
//
// The link is one of three kinds, which look the same to the node's routing:
//
//	geneve   the kernel's Geneve link (RFC 8926)
//	vxlan    the kernel's VXLAN link (RFC 7348), for kernels without Geneve
//	tun      a TUN device and package geneve in this process, for kernels with
//	         neither, and for nodes where this process may not add links
//
// For kernel links, this process only makes and removes them, and follows a gateway whose host name
// resolves to a new address. In tun mode package carry moves packets, as it does for the links of
// package links.
//
// While it runs, it checks whether the gateway answers and logs changes, with the cause if known
// (watch.go). In tun mode it uses its own echo requests. On kernel links it uses the kernel's
// neighbour table, and echo requests if this process may send them.
//
// It restores its routes when somebody else removes them, and logs that (routes.go). It ends with
// an error when somebody else removes the link.
//
// # Ownership
//
// A kernel link survives a killed process. So links are created in the group linkGroup; a link of
// that group with the configured name is a leftover and is replaced, while any other link of that
// name is an error. With keepLinks the link stays, and the next run continues with it if its kind,
// VNI, port and outer address still match the configuration; other changes are made in place
// (keep.go). A running node holds a name derived from the interface's (unixsocket.Hold). Like the
// link, the name belongs to the network namespace. Addresses and routes disappear with the link.
//
// The package does not forward between pods of one cluster, enable IP forwarding or write firewall
// rules: the cluster's own network does all that.
package node
