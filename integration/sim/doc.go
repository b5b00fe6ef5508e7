// Package sim runs two whole gateways, wireguard-go included, with the nodes and pods of their clusters, in one bubble of
// testing/synctest: virtual time, no sockets, and a network in memory that fails by a schedule.
//
//	pods ─ node ─ leg ─ gateway rome ═ leg ═ gateway milan ─ leg ─ node ─ pods
//
// A schedule is a string of bytes: how much traffic there is, then faults one after the other. Any bytes are a schedule, so that
// go test -fuzz can make them. One that fails is printed with a sequence diagram, and with -artifacts leaves the whole diagram and a
// capture file; it is run again 100 times, and how often it fails is printed: the order of goroutines and what wireguard-go draws by chance are
// not the schedule's.
//
// # Traffic
//
// Connections of TCP, UDP and SCTP over both families: from pods and from addresses that no CIDR knows, to pods, to a mapped host and to
// services (traffic_test.go). In some only the server speaks once it knows its client; some UDP ports are closed, some datagrams come in fragments, some
// segments are several in one. Neighbours ask by ARP and by neighbour discovery, and what comes one after the other is received as one train.
//
// # What is judged
//
// Of each packet that reaches a node: whether it is sound, and whether its connection's server, or client, is there. Of
// each connection: that its server always sees the same client, which nobody else is; that its client is answered by whom it has addressed; that
// nobody resets it; that an ICMP error quotes what its receiver has sent. A gateway that has been restarted may give connections other
// ports where these need state. When the last fault is over, WireGuard's timers have their time; then every connection goes on, new ones
// of each kind begin, and at last each gateway's ledger is balanced (checks_test.go). A schedule has a bubble, and gateways, of its own: nothing
// is left of the one before.
//
// # Hand-overs
//
// A gateway that takes over from another one runs in the same process. Both say to each other what two processes would, over wires of the world
// (wire_test.go), and have the same ports there. A hand-over loses no translation; and when both have said what became of it, one of them carries
// packets, whatever fails meanwhile and whenever the new one is killed. Where nothing else fails, all packets arrive (TestHandOver).
//
// # Replicas
//
// Half of the schedules, with -replicas=all each of them and with -replicas=none none, give the gateway of one side, or those of both, two pods
// (replicas_test.go).
//
// TestSwitches has each kind of switch of both sides. The pods elect the one that forwards by package
// kube/election, over an API server in memory with one Lease and the pods' labels (api_test.go), and copy the table by package gateway/replica, over
// lines in memory (lines_test.go); vote_test.go starts both as cmd/culvert does. The nodes, and a Service in front of a server's pods, follow the label,
// each within a second. Pods are killed, with their machine or without, also after so many steps that others can see: what is written to a line, and
// what is asked of the API server, before that has its effect and after; they leave; the way of each to the API server, to the peer and to the other pod
// fails in each direction; the API server is slow, or away; the Lease is deleted (failures_test.go). The Lease lasts 3 s, so that a schedule has room for
// many switches.
//
// A pod that begins to forward has to know all connections that were there when the copy was acknowledged that it has, of whichever other pod it could
// have had one: these keep their translation, and are in its table where no packet of the other end tells it (table_test.go). Only one pod at a time
// takes the Lease for its own. For how long nobody forwards although a pod could, and for how long two do although the peer has a good way to the one
// that has the label, or although the one without the Lease could know who has it, is bounded as docs/standby.md says.
//
// mutants_test.go has faults of the product that the simulation finds, found_test.go the seeds of what it has found.
package sim
