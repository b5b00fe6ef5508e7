// Package services makes a node serve Services, as kube-proxy does, without netfilter: by routes, rules of policy routing and one TUN
// device, behind which a nat.Engine decides.
//
//	client ─ node's rules ─► TUN ─► nat.Engine ─► TUN ─► node's routes ─ backend
//	client ◄─ node's routes ─ TUN ◄─ nat.Engine ◄─ TUN ◄─ node's rules ─ backend
//
// What the node's network leaves to network cards stays left to them: super-frames go through whole, with unfinished checksums (way.go).
//
// What the kernel leads to the device (plan.go):
//
//	cluster, external and load balancer addresses   by a route
//	node ports                                      by a rule, in front of the local table
//	answers to the node's address                   by a rule for the ports that clients get, in front of the local table
//	answers of pods to clients that they see        by a rule for the same ports, behind the local table
//
// Every client gets a source port that is given out by the engine alone, also where it keeps its address: so the kernel knows the answers of
// an endpoint from all else that it sends, whatever endpoints there are. What comes to these ports and answers no connection passes as it came.
//
// # The local table
//
// A rule in front of the local table needs that one moved: its own rule has priority 0, in front of which there is nothing. steer.go adds a
// rule for the local table behind, and only then removes the one at 0; at the end it puts that back before it removes the other. So there is
// one at any moment, whenever this process dies. The device ends with its process, and its routes with it: rules that lead to an empty
// table lead on, so that what is left changes nothing for the node's own traffic. What others remove or put in front watch.go mends.
//
// # Restarts
//
// With a state folder the device is persistent (TUNSETPERSIST), and rules and routes stay: what is for Services then ends in a device that
// nobody reads, so that nobody's kernel resets a connection, until the next run takes all over and restores the connections (keep.go). No
// rule goes and comes meanwhile. A connection that was not written is known again by its client's next packet, which gets the same
// endpoint and, unless another has it, the same port by the key that was kept; an endpoint that speaks first is not heard.
//
// All rules and routes have the kernel's protocol number: those of others systemd-networkd removes whenever it starts
// (ManageForeignRoutingPolicyRules), and one that leads to the local table may be the only one. A later run knows what an earlier one has
// left by that number and by what it says (steer.go).
//
// # Layer 2
//
// A load balancer's address that no host has is answered for by one node (announce.go): by the kernel, as neighbour.go has it do, so that no
// packet socket is needed. Which node that is, the configuration says. With CAP_NET_RAW, neighbours are told so unasked (herald.go).
//
// The kernel answers no longer than this process lives, so that another node can take over, also when it was killed and its device stays:
// what the kernel answers by has a route by a device that does not stay (pulse.go), and packets for it have another.
//
// # What this does not do
//
// Later fragments of a datagram carry no ports: of what is fragmented, only packets for cluster, external and load balancer addresses are
// served. Errors of routers about masqueraded packets carry none either, and stay with the node; the MSS of TCP is clamped instead.
package services
