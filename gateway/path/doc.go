// Package path carries packets through a gateway in both directions: from the nodes' tunnels into
// wireguard-go, and back. Package nat decides; this package carries. Code that watches packets,
// probes the other ends or moves the gateway to another process is called through two interfaces,
// Tap and Local.
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
// Files in the order of that walk: outbound.go, inbound.go, forward.go, queue.go, echo.go,
// drops.go. What each packet shows to captures and to the record of dropped packets is made in
// observe.go alone. Package wg keeps wireguard-go fed and in bounds.
//
// # Goroutines and buffers
//
// wireguard-go calls Read of the wg.Path on one goroutine and, because there is only one peer,
// Write on one other goroutine. All of outbound runs on the first, all of inbound on the second.
// They share the nat.Engine, which has its own lock, and the queue through which inbound sends
// errors and echo replies into the tunnel. While one direction is busy, it makes the other
// direction's blocked receiver check its socket every pollInterval, because Go's scheduler might
// not do so for up to 10 ms.
//
// An outbound packet is in the Geneve receive buffer, which belongs to the Receiver and is valid
// until the next Fill. It is rewritten there, and the Cutter copies it once into wireguard-go's
// buffer. An inbound packet is in wireguard-go's buffer, which is ours until Write returns. It is
// rewritten there, and the Sender copies it once behind its new headers.
//
// # What it does not do
//
// It does not reassemble packets: even echo requests to its own addresses are answered fragment by
// fragment. It does not carry congestion marks over the WireGuard leg, for the reason in the doc of
// package wg; the Geneve leg follows RFC 6040. It does not send a packet without a route anywhere:
// it answers with an ICMP error.
package path
