// Package nat is the middle of the gateway: what nftables, conntrack, connection marks and policy routing do in a kernel gateway,
// over bytes. Packets, a clock value and a configuration go in; verdicts and rewritten bytes come out. The package has no sockets,
// goroutines, logs or clock, so that it can be replayed from a capture, fuzzed and benchmarked alone.
//
// # A packet's way
//
//	packet.Packet.Parse  checks everything that later code relies on              package packet
//	Engine.Process       decides, then commits                                    engine.go
//	  decide             finds the connection by tuple                            decide.go, table.go, directory.go
//	    established      finds its translation, cached verdict and route          established.go, fit.go
//	    first            checks, rules, translation, port: a new connection       open.go, evaluate.go, ports.go, affinity.go
//	    stream           what a PROXY protocol header does to the numbers of TCP       prologue.go
//	    fragment         gives later fragments the ports of their first one       fragments.go
//	    icmpError        finds what an ICMP error quotes, and its connection      icmperror.go, pathmtu.go
//	  commit             rewrites the packet; makes, moves and removes            commit.go
//	    advance          moves a connection's state and timer                     tcp.go, sctp.go, timeout.go
//	Engine.Explain       decides, tells each step, and rewrites the packet only   explain.go
//	Engine.AppendError   tells the sender about a dropped packet                  refuse.go, errorrate.go
//	packet.Cutter        finishes, segments or fragments what goes on the wire    package packet
//
// decide only reads. What commit is to do, and to which connections, is in the decision: a connection that has expired is not found, and
// goes when another takes its tuple or its place, or when its slot of the timer wheel comes up after a packet.
//
// Rules run in evaluate.go, by package rules: nat chains for the first packet of a connection, filters and routing once for each direction,
// and again when a change concerns the connection.
//
// # Changes
//
// The desired state of the rules is a rules.Set of resources with keys. The Config is one source of them, Engine.Put another, with kinds of
// its own. Each commit of what one of them has put publishes an immutable rules.Ruleset that shares with the one before what has not changed.
//
// Each commit makes a generation, and says in an Affected which addresses, links and marks its changes could matter to. A
// connection of an older generation that no commit since concerns takes the new generation with its cached verdicts and routes, when a
// packet or the sweep meets it; the others are looked at by revalidate.go. So are those that have missed more than 64 commits. What the
// two clusters are to each other (CIDRs, addresses, MTU, source check) concerns all. An answer that comes from another node than its
// connection expects meets the rules each time, as nothing keeps that node.
//
//	connections     survive if their first packet would still be admitted and get the same addresses; ports and backends are kept
//	rule counters   survive as long as a resource has a rule of the same table, chain and name
//	hit lists       hold counters, not rules, and survive every commit; when 3/4 of their numbers are taken, a commit numbers them anew
//	affinity        is known by name of the service and address of the backend, whatever else changes
//	path MTUs, datagrams, rate limits   know nothing of the configuration
//
// # Records
//
// Another process goes on where an Engine was: Records writes down what it knows (record.go), Restore reads it (restore.go). Links and
// services go by name, times are ages, and each block of 4096 bytes has a checksum and needs no other.
//
//	connections     all but those of pods with the other cluster that any packet of theirs makes again: tuples, mark, state, TCP's and
//	                SCTP's numbers, counters, age. At most 128 bytes each over IPv4. Where rules are given, all. 6 bytes more for those
//	                with a PROXY protocol header: where in the stream it is, and whether it has arrived
//	clients         of services with affinity, and the time they have left
//	IDs             go on behind all that were given out; a connection that is restored gets one of its own
//	not recorded    fragments, path MTUs, rate limits, counters of rules; the port key, which New is given; what rules and routes say,
//	                which the next packets ask anew
//
// Connections are restored that are within their time and that the configuration admits and gives the same addresses; they keep their
// ports. Time does not pass between the two. The first TCP segment that an established connection's numbers do not fit is believed, as
// in mid-stream: the numbers may be old.
//
// # Model
//
// A connection is a pair of tuples. The original tuple names the packets that opened it as they come in, with the node that they come
// from; the reply tuple names the answers as they come in on the other side. A packet that matches one tuple is rewritten to the
// reverse of the other.
//
// Links are inside, towards nodes, or outside, towards other clusters; the number says which. An inside link can be reached through
// others, so that the answers of a connection may come by any; those from outside come by the link that they belong to. An outside link
// has its own address, and only what its Device lets may send from there. That of the Config is Tunnel; further ones are put.
//
// Each cluster sees the other's pod and external CIDRs under prefixes of its own choice (RemoteCIDR). The gateway where a packet
// leaves its cluster translates the destination, as seen to real; the gateway where it enters translates the source, real to as
// seen. Both are 1:1 and need no state: they are right after a restart, in mid-stream, for fragments, and when the table is full.
// Sources that the remote cluster could not answer become U, with another port if U's is taken; address mappings and services
// translate single addresses. Those need a connection.
//
// # Concurrency
//
// All methods of Engine may be called concurrently. One mutex guards all of it: the two goroutines of a gateway hold it for tens of
// nanoseconds per packet (a super-frame counts as one), uncontended it costs 10 to 20 ns. A packet.Packet and a packet.Cutter
// belong to one goroutine.
//
// # Caps and shares
//
// Everything that packets fill has a cap, and links and addresses have dynamic shares of it (shares.go): an address alone gets a third,
// a link alone a half, and a newcomer finds a place.
//
//	connections          Config.MaxConnections. At its share, a source replaces its oldest unreplied connections, then closing ones;
//	                     else what needs no state goes on untracked, what does is dropped: connection-share, table-full.
//	                     Beside one there is a PROXY protocol header, if its server gets one.
//	ports                15/16 of 64,512 (or of 512 privileged ones, or of 65,535 ICMP identifiers) that one source address, such as U,
//	                     has towards one protocol, address and port; then those of TCP connections that are closed: port-share,
//	                     port-exhausted.
//	datagrams            1024 in fragments and incomplete; a source at its share gives up its oldest: fragment-limit.
//	held fragments       256 of 2048 bytes: the same.
//	clients of services  half of Config.MaxConnections; services take the place of links. A service at its share forgets the client
//	                     that was longest away: Stats.ClientsReplaced, ClientsRefused.
//	errors of our own    200 in 200 ms, of which a link gets at most as many as are left; 20 a second to one address: Stats.ErrorsLimited.
//	path MTUs            1024, learnt from segments in flight only; a new one takes the place of one of the sender, or else of the link,
//	                     that has most.
//	counting rules       16,384 lists of rules that packets hit; the packets of others go uncounted: Stats.Uncounted.
//
// # Requirements
//
// Each line says whether a requirement is met, with the test that shows it, not met on purpose, or not applicable (n/a).
//
// RFC 4787, UDP:
//
//	REQ-1  Endpoint-Independent Mapping: not met on purpose. One U serves a cluster; ports are chosen for each remote address and port.
//	REQ-2  paired address pooling: met, U is one address. TestUnknownSource
//	REQ-3  no port overloading: met, reply tuples are unique. TestCollision, TestModel; a) privileged range kept: TestPortRange
//	REQ-4  port parity: not met on purpose. A port changes only on collision, and RTCP follows its own mapping.
//	REQ-5  mapping timer of 2 minutes, configurable: met, 120 s. TestTimeouts. The 5 minutes of c) are not met on purpose.
//	REQ-6  outbound refresh: met; inbound too. TestModel
//	REQ-7  conflicting networks: met by (b), equal CIDRs on both sides are the rule. TestRemap
//	REQ-8  filtering: address- and port-dependent for U, none for pods, whose addresses are routed. TestUnknownSource
//	REQ-9  hairpinning: met for mappings, with the gateway's source (a). TestAddressMapping
//	REQ-10 application gateways off: met, there are none.
//	REQ-11 deterministic: met, choices are functions of the key and the packet. TestCollision
//	REQ-12 ICMP never ends a mapping: met. TestTrackedICMPErrors
//	REQ-13 fragmentation needed, or fragments: met. TestTooBig, TestAppendError
//	REQ-14 fragments in any order, bounded: met. TestFragmentOrders, TestFragmentsHeld, TestFragmentOverlap, TestFragmentFlood
//
// RFC 5382, TCP:
//
//	REQ-1  Endpoint-Independent Mapping: not met on purpose, as above.
//	REQ-2  all valid sequences, simultaneous open too: met. TestTCPOracle, TestTCPBeyondOracle
//	REQ-3  filtering: as REQ-8 of RFC 4787.
//	REQ-4  wait with answers to unsolicited SYNs: met by silence. TestUnknownSource
//	REQ-5  established 2 h 4 min: met, 120 h. TestTimeouts. Transitory 4 min: not met on purpose, nf_conntrack's 60 s and 120 s.
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
//	REQ-3  a bad ICMP checksum drops an error; embedded options are followed; embedded transport checksums are not verified: met.
//	       TestICMPErrorChecksum, TestICMPErrors. a), the embedded IP checksum: not verified on purpose, routers differ in what they quote.
//	REQ-4  errors from outside translated, or dropped without a mapping: met. TestICMPErrors, TestICMPErrorUnrelated
//	REQ-5  errors from inside translated, or dropped without a mapping: met. TestICMPErrors, TestTrackedICMPErrors
//	REQ-6  errors neither refresh nor delete: met. TestTrackedICMPErrors, TestICMPErrorRefreshesNothing
//	REQ-7  hairpinned errors: met. TestHairpinICMPError
//	REQ-8  code 13 when resources are short: not met on purpose. A flood must not spend the rate of errors that senders need.
//	REQ-9  a policy may silence errors: n/a.
//	REQ-10 a) too big, b) source route, c) unreachable, e) time exceeded as RFC 1812: met, but for b), which is dropped with a reason.
//	       TestAppendError, TestTooBig, TestTTL. d) redirects are never made.
//	REQ-11 other ICMP messages: dropped if they belong to one link, forwarded otherwise. TestICMPTypes
//
// RFC 7857, updates:
//
//	Section 2.1  separate timers for opening and closing: met. TestTimeouts. Their 4 minutes: not met on purpose.
//	Section 2.2  a RST may only shorten the timer if in order: met, RFC 5961's exact match, then 10 s. TestTCPBeyondOracle
//	Section 3    ports overlap only with different destinations: met. TestCollision
//	Section 4    paired pooling by address: met.
//	Section 5    mapping independent of protocol: not met on purpose, as REQ-1 of RFC 4787.
//	Section 6    filtering independent of protocol: met, one rule for all.
//	Section 7    inbound refresh configurable: not met on purpose, inbound packets refresh; errors do not. TestICMPErrorRefreshesNothing
//	Section 8    port parity: not met on purpose, as REQ-4 of RFC 4787.
//	Section 9    port randomisation: kept ports are the sender's own choice; others follow from a secret key. TestCollision
//	Section 10   IPv4 ID: left as it is. Two nodes behind U may use one ID at a time; the kernel, which reassembles, would not.
//	Section 11   ICMP identifiers are mapped as ports are: met. TestCollision
//	Section 12   hairpinning for ICMP: met for mappings. TestHairpinICMPError
//
// # Not supported
//
// Record-route and timestamp options pass unfilled. AH, ESP and packets behind IPv6 routing headers with segments left are not
// translated within; the latter and IPv4 source routes are dropped. SCTP fragments whose ports would change are dropped, because
// their checksum covers bytes that are elsewhere. The checksum of an SCTP packet quoted in an ICMP error is left as it is.
package nat
