// Package nat decides about packets, with connections, translations and fragments: it does on bytes
// what nftables, conntrack, connection marks and policy routing do in a kernel-based gateway.
// Packets, a clock value and a configuration go in; verdicts and rewritten bytes come out. The
// package has no sockets, goroutines, logs or clock, so it can be replayed from a capture, fuzzed
// and benchmarked alone.
//
// # A packet's path
//
//	packet.Packet.Parse  checks everything that later code relies on              package packet
//	Engine.Process       decides, then commits                                    engine.go
//	  decide             finds the connection by tuple                            decide.go, table.go, directory.go
//	    established      finds its translation, cached verdict and route          established.go, fit.go
//	    first            checks, rules, translation, port: a new connection       open.go, evaluate.go, ports.go
//	    bars, begins     who may open a connection across the tunnel              admission.go
//	    stream           shifts TCP's numbers for a PROXY protocol header         proxystream.go
//	    fragment         gives later fragments the ports of their first one       fragments.go
//	    icmpError        finds what an ICMP error quotes, and its connection      icmperror.go, pathmtu.go
//	  commit             rewrites the packet; makes, moves and removes            commit.go
//	    advance          moves a connection's state and timer                     tcp.go, sctp.go, timeout.go
//	Engine.Explain       decides, traces each step, and rewrites the packet only  explain.go
//	Engine.AppendError   tells the sender about a dropped packet                  refuse.go, errorrate.go
//	packet.Cutter        finishes, segments or fragments what goes on the wire    package packet
//
// decide only reads. The decision tells commit what to do, and to which connections. An expired
// connection is no longer found; it is removed when another takes its tuple or its entry, or when
// its slot of the timer wheel comes up after a packet.
//
// Package rules evaluates the rules, called from evaluate.go: nat chains for the first packet of a
// connection, filters and routing once for each direction, and again when a change affects the
// connection.
//
// # Changes
//
// The desired state of the rules is a rules.Set of resources with keys. The Config is one source of
// resources; Engine.Put is another, with kinds of its own. Each commit publishes the changes of one
// source as an immutable rules.Ruleset, which shares unchanged parts with its predecessor.
//
// Each commit starts a generation, and its Affected says which addresses, links and marks its
// changes could affect. When a packet or the sweep reaches a connection of an older generation,
// revalidate.go decides: if no commit since has affected the connection, it keeps its cached
// verdicts and routes. Otherwise, or if it has missed more than 64 commits, its first packet is
// evaluated again. A change between the two clusters (CIDRs, addresses, MTU, source check) affects
// every connection. A reply from another node than expected is evaluated each time, because nothing
// remembers that node.
//
//	connections     survive if their first packet would still be admitted with the same addresses;
//	                ports and backends are kept, the backends also when the service has gone, unless
//	                Config.Admit restricts what others may open (admission.go)
//	rule counters   survive as long as a resource has a rule of the same table, chain and name
//	hit lists       hold counters, not rules, and survive every commit; when 3/4 of their numbers
//	                are used, a commit numbers them again
//	affinity        is kept by service name and backend address, whatever else changes
//	path MTUs, datagrams, rate limits   do not depend on the configuration
//
// # Records
//
// Another process can continue where an Engine stopped: Records (record.go) saves its state by one
// pass of a Feed, and Restore (restore.go) reads it. Links and services are saved by name and times
// as ages. Each block of 4096 bytes has a checksum and needs no other block.
//
//	connections     all except those between pods of the two clusters, which any of their packets
//	                makes again; with configured rules or Config.Admit, all. Saved: tuples, mark,
//	                state, TCP's and SCTP's numbers, counters, age; at most 128 bytes each over
//	                IPv4, and 6 more for the place and state of a PROXY protocol header. The node
//	                by which one leaves is saved where a rule says that it keeps it
//	                (rules.PolicyRule.Keep)
//	clients         of services with affinity, and their remaining time
//	IDs             continue after all used ones; a restored connection gets a new one
//	not recorded    fragments, path MTUs, rate limits, counters of rules; the port key, which is
//	                an argument of New; verdicts and routes, which the next packets look up again
//
// A connection is restored if it has not expired and the configuration admits it with the same
// addresses; it keeps its ports. Time does not pass between saving and restoring. The first TCP
// segment that does not fit an established connection's numbers is believed, as in mid-stream,
// because the numbers may be old.
//
// # Feed and Mirror
//
// Another process can run beside this one and replace it at any time. A Feed (feed.go) sends what
// Records would save, and then each connection that starts, changes its state or ends. The other
// process's Mirror (mirror.go) puts that into its own table. The Feed keeps one bit per entry for
// changes, so packets never wait. Packets of established connections change nothing that is sent.
// The list of ended connections is bounded; when it is full, a full copy follows.
//
// The Engine behind a Mirror is frozen: connections do not age there, so none expires that packets
// keep alive here. When that Engine takes over, ages start at 0. A connection may therefore once
// outlive its timeout, but none expires early. Its TCP numbers are those of the last change of
// state, and are trusted as little as those of records.
//
// # Model
//
// A connection is a pair of tuples. The original tuple describes the opening packets as they
// arrive, including their node; the reply tuple describes the answers as they arrive on the other
// side. A packet that matches one tuple is rewritten to the reverse of the other.
//
// Links are inside, towards nodes, or outside, towards other clusters; the number says which. An
// inside link can be reached through others, so answers from inside may arrive by any inside link;
// answers from outside arrive by their own link. An outside link has its own address, and only the
// sources of its Device may send from it. Tunnel is the outside link of the Config; Put adds
// further ones.
//
// Each cluster sees the other's pod and external CIDRs under prefixes of its own choice
// (RemoteCIDR). The gateway where a packet leaves its cluster translates the destination from
// remapped to real; the gateway where it enters translates the source from real to remapped. Both
// translations are 1:1 and need no state: they work after a restart, in mid-stream, for fragments,
// and when the table is full. Sources that the remote cluster could not answer become U, with
// another port if U's is taken; address mappings and services translate single addresses. Those
// need a connection, and with Config.Admit everything does.
//
// # Concurrency
//
// All methods of Engine may be called concurrently. One mutex guards everything: the two goroutines
// of a gateway hold it for tens of nanoseconds per packet (a super-frame counts as one); taking it
// uncontended costs 10 to 20 ns. A packet.Packet and a packet.Cutter belong to one goroutine.
//
// # Caps and shares
//
// Every table that packets fill has a cap, and links, networks and addresses have dynamic shares of
// it (shares.go): an address alone gets a third, its /24 or /64 two fifths, a link alone a half, so
// there is always room for a newcomer.
//
//	connections          Config.MaxConnections. At its share, a source replaces the oldest
//	                     unsettled connections of its network, then closing ones, then half-closed
//	                     ones; otherwise packets that need no state go on untracked, and others
//	                     are dropped: connection-share, table-full. A TCP or SCTP handshake or a
//	                     stream of UDP settles a connection; a ping never does. Packets that need
//	                     no connection make none if they can only be answers, or if their
//	                     destination is at its share. A connection whose server gets a PROXY
//	                     protocol header holds that too.
//	ports                15/16 of 64,512 (or of 512 privileged ones, or of 65,535 ICMP
//	                     identifiers) that one source address, such as U, may have towards one
//	                     protocol, address and port; then those of closed TCP connections:
//	                     port-share, port-exhausted.
//	datagrams            1024 in fragments and incomplete; a source at its share gives up its
//	                     oldest: fragment-limit.
//	held fragments       256 of 2048 bytes: the same.
//	clients of services  half of Config.MaxConnections; services take the place of links. A
//	                     service at its share forgets the client that it has not seen for longest:
//	                     Stats.ClientsReplaced, ClientsRefused.
//	errors of our own    200 in 200 ms, of which a link may send no more than are left; 20 a
//	                     second to one address: Stats.ErrorsLimited.
//	path MTUs            1024, each of one sender to one destination, learnt only for segments in
//	                     flight of a connection whose handshake is complete; a new one replaces
//	                     one of the sender, or else of the link, with the most.
//	counting rules       16,384 lists of rules that packets hit; packets with other lists go
//	                     uncounted: Stats.Uncounted.
//
// # Requirements
//
// Each line says whether a requirement is met, with the test that shows it, not met on purpose, or
// not applicable (n/a).
//
// RFC 4787, UDP:
//
//	REQ-1  Endpoint-Independent Mapping: not met on purpose. One U serves a cluster; ports are
//	       chosen for each remote address and port.
//	REQ-2  paired address pooling: met, U is one address. TestUnknownSource
//	REQ-3  no port overloading: met, reply tuples are unique. TestCollision, TestModel; a)
//	       privileged range kept: TestPortRange
//	REQ-4  port parity: not met on purpose. A port changes only on collision, and RTCP follows its
//	       own mapping.
//	REQ-5  mapping timer of 2 minutes, configurable: met, 120 s. TestTimeouts. The 5 minutes of c)
//	       are not met on purpose.
//	REQ-6  outbound refresh: met; inbound too. TestModel
//	REQ-7  conflicting networks: met by (b), equal CIDRs on both sides are the rule. TestRemap
//	REQ-8  filtering: address- and port-dependent for U, none for pods, whose addresses are
//	       routed. TestUnknownSource
//	REQ-9  hairpinning: met for mappings, with the gateway's source (a). TestAddressMapping
//	REQ-10 application gateways off: met, there are none.
//	REQ-11 deterministic: met, choices are functions of the key and the packet. TestCollision
//	REQ-12 ICMP never ends a mapping: met. TestTrackedICMPErrors
//	REQ-13 fragmentation needed, or fragments: met. TestTooBig, TestAppendError
//	REQ-14 fragments in any order, bounded: met. TestFragmentOrders, TestFragmentsHeld,
//	       TestFragmentOverlap, TestFragmentFlood
//
// RFC 5382, TCP:
//
//	REQ-1  Endpoint-Independent Mapping: not met on purpose, as above.
//	REQ-2  all valid sequences, simultaneous open too: met. TestTCPOracle, TestTCPBeyondOracle
//	REQ-3  filtering: as REQ-8 of RFC 4787.
//	REQ-4  wait with answers to unsolicited SYNs: met by silence. TestUnknownSource
//	REQ-5  established 2 h 4 min: met, 120 h. TestTimeouts. Half-closed, which RFC 5382 counts
//	       among transitory ones: met, 1 h. TestHalfClosedGetsLateAnswer. Other transitory 4 min:
//	       not met on purpose, nf_conntrack's 60 s and 120 s.
//	REQ-6  application gateways: n/a, there are none.
//	REQ-7  no port overloading: met. TestCollision
//	REQ-8  hairpinning: met for mappings. TestAddressMapping
//	REQ-9  destination unreachable is translated: met. TestICMPErrors, TestTrackedICMPErrors
//	REQ-10 ICMP never ends a connection: met. TestTrackedICMPErrors
//
// RFC 5508, ICMP:
//
//	REQ-1  queries and their answers pass: met. TestUnknownSource, TestCollision
//	REQ-2  query timer of 60 s, configurable: met. TestTimeouts
//	REQ-3  a bad ICMP checksum drops an error; embedded options are followed; embedded transport
//	       checksums are not verified: met. TestICMPErrorChecksum, TestICMPErrors. a), the
//	       embedded IP checksum: not verified on purpose, routers differ in what they quote.
//	REQ-4  errors from outside translated, or dropped without a mapping: met. TestICMPErrors,
//	       TestICMPErrorUnrelated
//	REQ-5  errors from inside translated, or dropped without a mapping: met. TestICMPErrors,
//	       TestTrackedICMPErrors
//	REQ-6  errors neither refresh nor delete: met. TestTrackedICMPErrors,
//	       TestICMPErrorRefreshesNothing
//	REQ-7  hairpinned errors: met. TestHairpinICMPError
//	REQ-8  code 13 when resources are short: not met on purpose. A flood must not spend the rate
//	       of errors that senders need.
//	REQ-9  a policy may silence errors: n/a.
//	REQ-10 a) too big, b) source route, c) unreachable, e) time exceeded as RFC 1812: met,
//	       but for b), which is dropped with a reason.
//	       TestAppendError, TestTooBig, TestTTL. d) redirects are never made.
//	REQ-11 other ICMP messages: dropped if they belong to one link, forwarded otherwise. TestICMPTypes
//
// RFC 7857, updates:
//
//	Section 2.1  separate timers for opening, half-closed and closing: met. TestTimeouts. Their 4
//	             minutes: met for half-closed ones alone, on purpose.
//	Section 2.2  a RST may only shorten the timer if in order: met, RFC 5961's exact match, then
//	             10 s. TestTCPBeyondOracle
//	Section 3    ports overlap only with different destinations: met. TestCollision
//	Section 4    paired pooling by address: met.
//	Section 5    mapping independent of protocol: not met on purpose, as REQ-1 of RFC 4787.
//	Section 6    filtering independent of protocol: met, one rule for all.
//	Section 7    inbound refresh configurable: not met on purpose, inbound packets refresh; errors
//	             do not. TestICMPErrorRefreshesNothing
//	Section 8    port parity: not met on purpose, as REQ-4 of RFC 4787.
//	Section 9    port randomisation: kept ports are the sender's own choice; others follow from a
//	             secret key. TestCollision
//	Section 10   IPv4 ID: left as it is. Two nodes behind U may use one ID at a time; the kernel,
//	             which reassembles, would not.
//	Section 11   ICMP identifiers are mapped as ports are: met. TestCollision
//	Section 12   hairpinning for ICMP: met for mappings. TestHairpinICMPError
//
// # Not supported
//
// Record-route and timestamp options pass unfilled. AH and ESP payloads are not translated. Packets
// with IPv4 source routes, or IPv6 routing headers with segments left, are dropped. SCTP fragments
// whose ports would change are dropped, because their checksum covers bytes in other fragments. The
// checksum of an SCTP packet quoted in an ICMP error is left as it is.
package nat
