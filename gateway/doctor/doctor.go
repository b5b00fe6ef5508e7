// Package doctor checks what a gateway needs from its machine: socket buffers, offloads, memory,
// ports and fast encryption. For what is missing it states the cost and a remedy.
//
// It opens a socket of its own, and changes and keeps nothing. It measures no network; the status
// of a running gateway shows the fate of packets.
package doctor

import (
	"fmt"

	"culvert/gateway/control"
	"culvert/gateway/procs"
	"culvert/geneve/udp"
)

// States of a condition.
const (
	good = "good"
	poor = "poor" // it costs something
	bad  = "bad"  // a gateway cannot work
)

// Memory is a gateway's memory limit.
type Memory struct {
	Limit       int64  // bytes; 0 = none
	By          string // who sets it
	Connections int    // that the table holds
}

// Subject is what to examine.
type Subject struct {
	Sockets map[string]udp.Stats // of a running gateway; nil = open one to find out
	Memory  Memory
	Ports   []Port // that must be free
}

// minReceiveBuffer is where measurements begin to show losses: one train takes up to
// 64 KiB, which the kernel books as about twice that. minSendBuffer holds as many trains as
// wait for a link of 1 Gbit/s that is busy for a millisecond.
const (
	minReceiveBuffer = 1 << 20
	minSendBuffer    = 128 << 10
)

// Examine returns its findings, in display order.
func Examine(s *Subject) []control.Condition {
	sockets := s.Sockets
	var all []control.Condition
	if sockets == nil {
		socket, err := udp.Listen("udp4", loopback, udp.Options{})
		if err != nil {
			all = append(all, control.Condition{Name: "UDP sockets", State: bad, Found: "none: " + err.Error(),
				Costs:  "a gateway needs two",
				Remedy: "let this user open UDP sockets; a seccomp profile or the limit of open files may forbid it"})
		} else {
			defer socket.Close()
			sockets = map[string]udp.Stats{"a socket made to see": socket.Stats()}
		}
	}
	if len(sockets) > 0 {
		all = append(all, ofSockets(sockets)...)
	}
	all = append(all, s.Memory.condition(), processors())
	for i := range s.Ports {
		all = append(all, s.Ports[i].condition())
	}
	return append(all, cipher(), features())
}

// ofSockets returns the conditions of the worst socket.
func ofSockets(sockets map[string]udp.Stats) []control.Condition {
	receive, send, known := int(^uint(0)>>1), int(^uint(0)>>1), true
	gro, gso := true, true
	for _, s := range sockets {
		receive, send = min(receive, s.ReceiveBuffer), min(send, s.SendBuffer)
		gro, gso, known = gro && s.GRO, gso && s.GSO, known && s.OverflowsKnown
	}
	buffer := func(name string, bytes, least int, costs, sysctl string) control.Condition {
		c := control.Condition{Name: name, State: good, Found: fmt.Sprintf("%s of %s", size(int64(bytes)),
			size(udp.DefaultSocketBuffer))}
		if bytes < least {
			c.State, c.Costs = poor, costs
			c.Remedy = fmt.Sprintf(
				"sysctl -w %s=%d on the node (what a Pod may not set), or give the process CAP_NET_ADMIN", sysctl,
				udp.DefaultSocketBuffer)
		}
		return c
	}
	offload := func(name string, on bool, costs, remedy string) control.Condition {
		if on {
			return control.Condition{Name: name, State: good, Found: "on"}
		}
		return control.Condition{Name: name, State: poor, Found: "off: this kernel does not have it", Costs: costs,
			Remedy: remedy}
	}
	counter := control.Condition{Name: "overflow counter", State: good, Found: "the kernel tells"}
	if !known {
		counter = control.Condition{Name: "overflow counter", State: poor, Found: "the kernel does not tell",
			Costs:  "what is lost because a receive buffer is full appears nowhere",
			Remedy: "none in gVisor; elsewhere Linux 4.12 or later"}
	}
	return []control.Condition{
		buffer("receive buffer", receive, minReceiveBuffer, "bursts are lost, and TCP slows down", "net.core.rmem_max"),
		buffer("send buffer", send, minSendBuffer, "senders wait for the link more often, or lose datagrams",
			"net.core.wmem_max"),
		offload("UDP_SEGMENT (GSO)", gso, "a system call for few datagrams: a third of the rate without both offloads",
			"Linux 4.18 or later; none in gVisor"),
		offload("UDP_GRO", gro, "each datagram is received by itself: a third of the rate without both offloads",
			"Linux 5.12 or later; none in gVisor"),
		counter,
	}
}

// fewMemory is the limit below which the connection table is small.
const fewMemory = 64 << 20

func (m *Memory) condition() control.Condition {
	c := control.Condition{Name: "memory", State: good, Found: fmt.Sprintf("no limit; up to %d connections",
		m.Connections)}
	switch {
	case m.Limit == 0:
	case m.Limit < fewMemory:
		c.State = poor
		c.Costs = "few connections, and smaller receive buffers"
		c.Remedy = "raise the limit to 128 MiB, which holds 131072 connections"
		fallthrough
	default:
		c.Found = fmt.Sprintf("%s by %s; up to %d connections", size(m.Limit), m.By, m.Connections)
	}
	return c
}

func processors() control.Condition {
	a, n := procs.Allowed(), procs.Count()
	c := control.Condition{Name: "CPUs", State: good, Found: fmt.Sprintf("%s; Go code on %d at once", a, n)}
	if a.Quota > 0 && a.Quota < 1 {
		c.State, c.Costs, c.Remedy = poor, "packets wait while the quota is used up, up to a tenth of a second",
			"raise the quota (the CPU limit of the container) to 1 or more, or leave it out"
	}
	return c
}

// size formats n in the largest unit that it reaches.
func size(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB"}
	v, i := float64(n), 0
	for ; v >= 1<<10 && i < len(units)-1; i++ {
		v /= 1 << 10
	}
	return fmt.Sprintf("%.4g %s", v, units[i])
}
