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
// Files in the order of that walk: outbound.go, inbound.go, queue.go, echo.go, check.go, drops.go;
// package wg keeps wireguard-go fed and in bounds. What is desired: package config. What
// owns what: gateway.go, budget.go. What is due each second: sweep.go; trains.go tells
// whether trains arrive, encap.go what nodes speak. What can be seen: metrics.go, served by
// listener.go, page.go, package seats; and, by whoever has the control socket (control.go,
// package control), status.go, connections.go, rules.go, and capture.go with capture_tunnels.go and
// package capture. What is the case: watch.go has package health look once a
// second, with what witness.go keeps of dropped packets and knock.go finds out.
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
// # Memory
//
// budget.go divides what the process may have. What wireguard-go cannot take yet (package
// wg says what bounds it) stays in the sockets' receive buffers, and overflows there.
//
// # What it does not do
//
// No reassembly: even echo requests to its own addresses are answered fragment by
// fragment. No ECN on the WireGuard leg: wireguard-go neither reads nor sets the outer
// bits (RFC 6040 holds on the Geneve leg). No routing of what no route finds: it is answered
// with an ICMP error, never sent elsewhere.
package gateway
