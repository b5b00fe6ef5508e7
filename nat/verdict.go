package nat

import (
	"time"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A Link names where a packet comes from or goes to. The caller chooses the numbers and keeps them
// stable across Apply.
type Link = packet.Link

const (
	// Tunnel is the link of the Config's WireGuard tunnel. Nodes are numbered from 1.
	Tunnel = rules.Tunnel
	// anyNode stands for every inside link: in the reply tuple of a connection to a node, and as
	// the link of a path MTU.
	anyNode Link = 0xffff
)

// wayOf returns the link, or anyNode for an inside link: a node may be reached through others.
func wayOf(out Link) Link {
	if out.Outside() {
		return out
	}
	return anyNode
}

// Time is a reading of a monotonic clock in nanoseconds. The package never reads a clock of its
// own.
type Time int64

// Add returns the time d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// An Action says what happens to a packet.
type Action uint8

const (
	// Drop discards the packet. Its bytes are unchanged.
	Drop Action = iota
	// Forward sends the packet, rewritten in place, to Verdict.Out through a Cutter.
	Forward
	// Deliver hands the unchanged packet to the gateway's own stack.
	Deliver
	// Hold means that the Engine has copied the packet, a later fragment whose first one has not
	// arrived. The caller forgets it; Release returns it.
	Hold
)

// String returns the action's name.
func (a Action) String() string {
	switch a {
	case Drop:
		return "drop"
	case Forward:
		return "forward"
	case Deliver:
		return "deliver"
	case Hold:
		return "hold"
	}
	return "unknown"
}

// A Verdict is what Process decided about one packet.
type Verdict struct {
	Action  Action
	Reason  Reason         // why Action is Drop
	Refusal packet.Refusal // what AppendError reports to the sender
	Out     Link           // where a forwarded packet goes
	// SegmentSize is the TCP payload, in bytes, of each segment of a forwarded super-frame; 0 means
	// no segmentation.
	SegmentSize int
	// MTU, if positive, is the size in bytes to which a forwarded IPv4 packet is fragmented, or the
	// MTU that TooBig reports.
	MTU int
	// Packets counts packets on the wire: 1, or the segments, datagrams and fragments that the
	// Cutter makes.
	Packets int
	// Held counts the fragments that waited for this first one. The caller calls Release as many
	// times.
	Held int
	// Untracked marks a packet that was forwarded without a connection because the table is full.
	Untracked bool
	// Asymmetric marks a reply from another node than the connection expects.
	Asymmetric bool
}

func drop(r Reason) Verdict { return Verdict{Action: Drop, Reason: r, Packets: 1} }

func refuse(r Reason, told packet.Refusal) Verdict {
	return Verdict{Action: Drop, Reason: r, Refusal: told, Packets: 1}
}
