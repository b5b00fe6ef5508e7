// Package nat is the middle of the gateway: what nftables, conntrack, connection marks and policy routing do in a kernel gateway,
// over bytes. Packets, a clock value and a configuration go in; verdicts and rewritten bytes come out. The package has no sockets,
// goroutines, logs or clock, so that it can be replayed from a capture, fuzzed and benchmarked alone.
//
// # A packet's way
//
//	Packet.Parse      checks everything that later code relies on              packet.go, packet6.go
//	Engine.Process    source checks, connection, translation, route            engine.go
//	  forward         TTL, size, MSS, rewriting with incremental checksums     forward.go, mss.go, rewrite.go
//	  relay           ICMP errors with the packet that they quote              icmp.go
//	Engine.AppendError  tells the sender about a dropped packet                answer.go, limit.go
//	Cutter            finishes, segments or fragments what goes on the wire    cutter.go, fragmenter.go
//
// # Remapping
//
// Each cluster sees the other's pod and external CIDRs under prefixes of its own choice (RemoteCIDR). The gateway where a packet
// leaves its cluster translates the destination, as seen to real; the gateway where it enters translates the source, real to as
// seen. Both are 1:1 and need no state: they are right after a restart, in mid-stream and for fragments.
//
// # Concurrency
//
// All methods of Engine may be called concurrently. One mutex guards all of it: the two goroutines of a gateway hold it for tens of
// nanoseconds per packet (a super-frame counts as one), uncontended it costs 10 to 20 ns. Packet and Cutter belong to one goroutine.
package nat
