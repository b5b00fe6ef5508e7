// Package sim runs two whole gateways, wireguard-go included, with the nodes and pods of their
// clusters, in one bubble of testing/synctest: virtual time, no sockets, and a network in memory
// that fails by a schedule.
//
//	pods ─ node ─ leg ─ gateway rome ═ leg ═ gateway milan ─ leg ─ node ─ pods
//
// A schedule is a string of bytes: the amount of traffic, then faults one after the other. Any
// bytes are a schedule, so that go test -fuzz can make them. The test prints a failing schedule
// with a sequence diagram; -artifacts also keeps the whole diagram and a capture file. It then runs
// the schedule 100 times and prints how often it fails, because a schedule does not determine the
// order of goroutines or wireguard-go's random numbers.
//
// # Traffic
//
// Connections of TCP, UDP and SCTP over both families: from pods and from addresses outside all
// CIDRs, to pods, to a mapped host and to services (traffic.go). In some, only the server
// sends once it knows its client; some UDP ports are closed, some datagrams come in fragments, and
// some segments are coalesced. Neighbours use ARP and neighbour discovery. Consecutive packets are
// received as one train.
//
// # What is judged
//
// For each packet that reaches a node (arrive.go): it is well formed, and its connection's
// server, or client, is on that node. For each connection: its server always sees the same
// client address and port, which no other client has; replies come from the address that the
// client sent to; nobody resets it; an ICMP error quotes a packet that its receiver sent. A
// restarted gateway may give connections other ports where these need state. After the last
// fault, WireGuard's timers have time to expire. Then every connection must go on, new ones of
// each kind must work, and each gateway's ledger must balance (checks.go). Each schedule has its
// own bubble and its own gateways, so that nothing remains of the previous one.
//
// # Hand-overs
//
// A gateway that takes over from another one runs in the same process. The two exchange the
// messages that two processes would, over wires of the simulated world (wire.go), and share
// its ports. A hand-over loses no translation. Once both have reported its result, one of them
// carries packets, whatever fails meanwhile and whenever the new one is killed. Where nothing else
// fails, all packets arrive (TestHandOver).
//
// # Replicas
//
// Half of the schedules give the gateway of one side, or of both, two pods (replicas.go). With
// -replicas=all every schedule does, with -replicas=none none.
//
// TestSwitches covers each kind of switch on both sides. The pods elect the active one with package
// kube/election, over an API server in memory with one Lease and the pods' labels (api.go).
// They copy the table with package gateway/replica, over lines in memory (lines.go).
// vote.go starts both packages as cmd/culvert does. The nodes, and a Service in front of a
// server's pods, follow the label, each within a second.
//
// Pods leave, or are killed, with their machine or without. A kill can also come at the n-th step
// that others can see, a write to a line or a request to the API server, before or after it takes
// effect. Each pod's path to the API server, to the peer and to the other pod fails in each
// direction. The API server is slow or away, and the Lease is deleted (failures.go). The Lease
// lasts 3 s, so that a schedule has room for many switches.
//
// A pod that begins to forward must know all connections that existed when its copy was
// acknowledged, whichever other pod it could have had a copy from. These keep their translation,
// and are in its table where no packet from the other end restores them (table.go). Only one
// pod at a time believes that it holds the Lease. docs/standby.md gives the bounds for how long
// nobody forwards although a pod could, and for how long two pods forward although the peer has a
// good path to the labelled one, or although the pod without the Lease could know who holds it.
//
// mutants_test.go has faults of the product that the simulation finds, and found_test.go the seeds
// of those that it has found.
package sim
