// Package gateway is one gateway: pod traffic between the nodes of the local
// cluster and one remote cluster, in one process with two UDP sockets.
//
// # Words
//
// Outbound is what leaves the local cluster by the WireGuard tunnel, inbound what
// enters it. The internal network is one Geneve (or VXLAN) tunnel per node, the
// external network one WireGuard tunnel per peering.
//
// # The way of a packet
//
//	node                                                            peer
//	  │ Geneve/UDP                                      WireGuard/UDP │
//	  ▼                                                               ▼
//	geneve.Receiver          outbound.go      inbound.go       bind.go receive
//	  decap, source checks,    │                  ▲              trains → datagrams
//	  ARP, trains              │                  │                   │
//	  │                        ▼                  │                   ▼
//	  └──► nat.Packet.Parse ─► nat.Engine.Process ◄── Parse ◄─── tun.go Write
//	                           │                  │            (wireguard-go decrypts)
//	                           ▼                  ▼
//	        nat.Cutter ◄─ forward                 forward ─► geneve.Sender
//	        super-frames → segments,  deliver ─► local.go      encap, trains,
//	        into wireguard-go's       drop ────► verdict.go    ARP, to the node
//	        buffers                               (+ ICMP error to the sender)
//	           │
//	           ▼
//	        tun.go Read ─► wireguard-go encrypts ─► bind.go Send ─► peer
//
// Files in the order of that walk: tun.go, outbound.go, inbound.go, queue.go, bind.go,
// gate.go, local.go, verdict.go; probe.go finds out whether trains arrive. What is
// desired: config.go, file.go, validate.go; remap.go chooses what the file calls auto. What
// owns what: gateway.go, wireguard.go, budget.go. What is due each second: sweep.go. What
// can be seen: metrics.go, served by listener.go, seats.go, page.go; uapi.go for wg(8).
//
// # Goroutines and buffers
//
// wireguard-go calls tunDevice.Read on one goroutine and, there being one peer,
// tunDevice.Write on one other. All of outbound runs on the first, all of inbound on
// the second; they share the nat.Engine, which locks itself, and the queue by
// which inbound (errors, echo replies) speaks into the tunnel. Each direction, while it
// is busy, makes the blocked receiver of the other look at its socket (pollInterval):
// Go's scheduler would not for up to 10 ms.
//
// An outbound packet lies in the Geneve receive buffer, which belongs to the
// Receiver and lives until the next Fill. It is rewritten there and copied once,
// by the Cutter, into wireguard-go's buffer. An inbound packet lies in
// wireguard-go's buffer, which is ours until Write returns; it is rewritten there
// and copied once, by the Sender, behind its new headers.
//
// # Memory
//
// wireguard-go has a buffer of 64 KiB for each message in its queues, which hold 1024
// batches. What bounds them: window.go data messages, in each direction; gate.go all
// others; small batches what waits for a session. What wireguard-go cannot take yet
// stays in the sockets' receive buffers, which budget.go sizes, and overflows there.
//
// # What it does not do
//
// No reassembly: even echo requests to its own addresses are answered fragment by
// fragment. No ECN on the WireGuard leg: wireguard-go neither reads nor sets the outer
// bits (RFC 6040 holds on the Geneve leg). No routing of what no route finds: it is answered
// with an ICMP error, never sent elsewhere.
package gateway
