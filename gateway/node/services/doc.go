// Package services makes a node serve Services, as kube-proxy does, but without netfilter: with
// routes, policy rules and one TUN device, behind which a nat.Engine decides.
//
//	client ─ node's rules ─► TUN ─► nat.Engine ─► TUN ─► node's routes ─ backend
//	client ◄─ node's routes ─ TUN ◄─ nat.Engine ◄─ TUN ◄─ node's rules ─ backend
//
// Work that the node's network leaves to network cards stays with them: super-frames pass whole,
// with partial checksums (way.go).
//
// The kernel sends these packets to the device (plan.go, package steer):
//
//	cluster, external and load balancer addresses   by a route
//	node ports                                      by a rule, in front of the local table
//	answers to the node's address                   by a rule for the ports that clients get, in
//	                                                front of the local table
//	answers of pods to clients that they see        by a rule for the same ports, behind the local
//	                                                table
//	answers of pods to ports that clients keep      by rules for the ports of both ends, in front
//	                                                of it and behind it
//
// A client gets a source port from a range that only the engine uses, even if it keeps its address.
// So the kernel recognises an endpoint's answers among its other packets, whatever endpoints there
// are. Packets to these ports that answer no connection pass unchanged.
//
// A client that has asked for its port keeps it (rules.Kept), if the endpoint is a pod: servers may
// look at it, or answer to it. A masqueraded one gets another privileged port. Then the kernel
// recognises answers by the endpoint's port, too. These rules exist before the engine relies on
// them, and as long as a connection needs them (apply.go, orphans.go). They would also match
// packets of direct connections if they were for all ports: half of the traffic of a pod whose own
// ports begin at 1024.
//
// # Restarts
//
// With a state folder the device is persistent (TUNSETPERSIST), and rules and routes stay. Packets
// for Services then end in a device that nobody reads, so no kernel resets a connection, until the
// next run takes everything over and restores the connections (keeper.go). No rule changes
// meanwhile. A connection that was not saved is recognised by its client's next packet, which gets
// the same endpoint and, unless it is in use, the same port by the saved key; if the endpoint
// speaks first, its packet is lost.
//
// A process may also take over from a running one (handover.go, takeover.go), by a socket in the
// state folder: it gets the open device, with the packets waiting there, and the connections, while
// the old process serves. Then the old one stops reading and sends the changes, and the new one
// starts reading. So no packet is lost, and none is processed by two engines.
//
// The last state from Kubernetes is saved too (savedconfig.go), so that a process that starts
// without the API server serves it.
//
// # Layer 2
//
// One node announces a load balancer's address that no host has (package announce). The
// configuration says which node.
//
// # What this does not do
//
// Later fragments of a datagram have no ports, so fragmented datagrams are served only at cluster,
// external and load balancer addresses. Routers' errors about masqueraded packets have none either,
// and stay with the node; TCP's MSS is clamped instead.
package services
