// Package node is the node end of a Geneve tunnel: the link on a Kubernetes
// node that carries what its pods send to the remote cluster, the address and
// the routes on that link, and their removal.
//
//	pod ─ veth ─ node's routes ─ culvert0 ══ UDP 6091 ══ culvert gateway
//
// The link is one of three, all alike to the node's routing:
//
//	geneve   the kernel's Geneve link (RFC 8926)
//	vxlan    the kernel's VXLAN link (RFC 7348), for kernels without Geneve
//	tun      a TUN device and package geneve in this process, for kernels with
//	         neither, and for nodes where this process may not add links
//
// Kernel links need this process only to be made, to follow a gateway whose
// host name resolves to another address, and to be removed. In tun mode two
// goroutines move packets: one from the device to the gateway, one back. Each
// owns its buffers and its half of the geneve.Endpoint. A third looks whether trains
// of datagrams arrive at the gateway.
//
// While it runs, it looks whether the gateway answers and says so when that changes, with
// the cause where one can be told (watch.go): by echo requests of its own in tun mode, by the
// kernel's neighbour table on kernel links, and there by echo requests too where this process
// may send them.
//
// # Ownership
//
// A kernel link outlives a process that was killed, so links are created in
// the link group linkGroup, and a link of that group with the configured name
// is taken for a leftover and replaced. Any other link of that name is an
// error. With keepLinks the link stays, and the next run goes on with it where its kind, VNI,
// port and outer address are still those of the configuration, changing the rest in place
// (keep.go). A running node is told from a crashed one by an abstract Unix socket
// named after the interface, which the kernel closes with its process and
// which, like the link, belongs to the network namespace. Addresses and routes
// go with the link.
//
// The package does not forward between pods of one cluster, does not turn IP
// forwarding on and writes no firewall rule: the cluster's own network did all
// of that.
package node
