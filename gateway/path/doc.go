// Package path is the way of packets through a gateway, in both directions: from the nodes' tunnels into wireguard-go, and back. It decides
// nothing itself: package nat does. Who looks at packets, probes the other ends or moves the gateway to another process stands beside it,
// and is called by two interfaces: Tap and Local.
//
// # The way of a packet
//
//	node                                                            peer
//	  │ Geneve/UDP                                      WireGuard/UDP │
//	  ▼                                                               ▼
//	geneve.Receiver          outbound.go      inbound.go       wg/bind.go receive
//	  decap, source checks,    │                  ▲              trains → datagrams
//	  ARP, trains              │                  │                   │
//	  │                        ▼                  │                   ▼
//	  └──► packet.Packet ────► nat.Engine.Process ◄── Parse ◄─── wg/tun.go Write
//	                           │                  │            (wireguard-go decrypts)
//	                           ▼                  ▼
//	     packet.Cutter ◄─ forward                 forward ─► geneve.Sender
//	        super-frames → segments,  deliver ─► echo.go       encap, trains,
//	        into wireguard-go's       drop ────► drops.go      ARP, to the node
//	        buffers                               (+ ICMP error to the sender)
//	           │
//	           ▼
//	     wg/tun.go Read ─► wireguard-go encrypts ─► wg/bind.go Send ─► peer
//
// Files in the order of that walk: outbound.go, inbound.go, forward.go, queue.go, echo.go, drops.go.
// Package wg keeps wireguard-go fed and in bounds.
//
// # Goroutines and buffers
//
// wireguard-go calls Read of the wg.Path on one goroutine and, there being one peer,
// its Write on one other. All of outbound runs on the first, all of inbound on
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
// # What it does not do
//
// No reassembly: even echo requests to its own addresses are answered fragment by
// fragment. No ECN on the WireGuard leg: wireguard-go neither reads nor sets the outer
// bits (RFC 6040 holds on the Geneve leg). No routing of what no route finds: it is answered
// with an ICMP error, never sent elsewhere.
package path
