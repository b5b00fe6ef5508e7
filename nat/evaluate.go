package nat

import (
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// traverse runs a packet through the rules. It returns false if they drop it.
func (e *Engine) traverse(tr *rules.Traversal, now Time) bool {
	r := e.snapshot.rules
	if !tr.Enter(r) {
		return false
	}
	if tr.Chooses() {
		tr.SendTo(e.backend(tr.Service, &tr.Client, now))
	}
	return tr.Leave(r)
}

// reasonOf returns why a packet is dropped, or ReasonNone.
func reasonOf(o rules.Outcome) Reason { return outcomeReasons[o] }

var outcomeReasons = [...]Reason{
	rules.Passed: ReasonNone, rules.Filtered: ReasonFiltered, rules.Rejected: ReasonRejected,
	rules.NoRoute: ReasonNoRoute, rules.NoBackend: ReasonNoBackend, rules.UnknownSource: ReasonUnknownSource,
	rules.NoLocalBackend: ReasonNoBackend, rules.Unserved: ReasonNoMapping,
	rules.NotAdmitted: ReasonNotAdmitted,
}

// refusal is the verdict on a packet that rules or routing drop.
func (s *snapshot) refusal(tr *rules.Traversal) Verdict {
	switch tr.Outcome {
	case rules.Rejected:
		return refuse(ReasonRejected, packet.NetUnreachable)
	case rules.NoRoute:
		return s.noRoute(tr.To.Destination())
	case rules.NoBackend:
		if s.rules.IsHost() && tr.From.Protocol == packet.TCP {
			// The kernel accepts no ICMP error from the device whose source is one of the node's
			// own addresses.
			return refuse(ReasonNoBackend, packet.Reset)
		}
		return refuse(ReasonNoBackend, packet.PortUnreachable)
	}
	return drop(reasonOf(tr.Outcome))
}
