package peering

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"culvert/gateway/wgkey"
	"culvert/kube"
)

// The conditions of a Peering. Connected is true only while packets pass between the gateways.
const (
	Accepted   = "Accepted"
	NodesReady = "NodesReady"
	Connected  = "Connected"
	// StandbyReady is present if the gateway has several pods. It is true while a pod that does not
	// forward has a copy of all connections, and could use all of them.
	StandbyReady = "StandbyReady"
	// OneGateway is present if two gateways without an election displace each other.
	OneGateway = "OneGateway"
)

// Condition returns the condition of a type; nil: there is none.
func (s *Status) Condition(kind string) *Condition {
	i := slices.IndexFunc(s.Conditions, func(c *Condition) bool { return c != nil && c.Type == kind })
	if i < 0 {
		return nil
	}
	return s.Conditions[i]
}

// ElectRemedy is what to do about gateways that do not elect the one that forwards.
const ElectRemedy = "apply the manifest of culvert kube template, with which they do, or run one pod"

// A Standby is a pod that copies the connections of the forwarding pod.
type Standby struct {
	Pod   string
	Whole bool // it has a full copy, and all changes since
	// Lacks says which connections it could not use and what to do; nil if it has all.
	Lacks []string
}

// standbyReady returns the condition StandbyReady.
func standbyReady(all []Standby) *Condition {
	c := &Condition{Type: StandbyReady, Status: "False", Reason: "NoStandby",
		Message: "no other pod of the gateway copies its connections; where one runs, look whether a NetworkPolicy keeps TCP 51841 between the pods away"}
	for _, s := range all {
		switch {
		case s.Whole && len(s.Lacks) == 0:
			return &Condition{Type: StandbyReady, Status: "True", Reason: "FullCopy",
				Message: "pod " + s.Pod + " has a copy of all connections"}
		case s.Whole:
			c.Reason, c.Message = "NotTaken", "the copy of pod "+s.Pod+" lacks something: "+strings.Join(s.Lacks, "; ")
		case c.Reason != "NotTaken":
			c.Reason, c.Message = "NoFullCopy", "pod "+s.Pod+" has not yet a copy of all connections"
		}
	}
	return c
}

// standby returns all with StandbyReady, or without it if the gateway is alone, because it may have
// had several pods before.
func (s *GatewaySource) standby(plan *Plan, all []*Condition, pods []Standby, alone bool) []*Condition {
	if alone {
		return without(all, StandbyReady)
	}
	return s.set(plan, all, standbyReady(pods))
}

// displaced returns the condition of gateways of which each takes the place of the other.
func displaced(a, b string) *Condition {
	return &Condition{Type: OneGateway, Status: "False", Reason: "Displaced",
		Message: fmt.Sprintf("pods %s and %s displace each other, because they do not elect the one that forwards; %s",
			min(a, b), max(a, b), ElectRemedy)}
}

// disputeTime is longer than Kubernetes waits before it starts a container again that has ended.
const disputeTime = 6 * time.Minute

// undisputed returns all without OneGateway, if there is an election or the gateways have left each
// other alone.
func (s *GatewaySource) undisputed(all []*Condition) []*Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c *Condition) bool {
		if c == nil || c.Type != OneGateway {
			return false
		}
		since, err := time.Parse(time.RFC3339, c.Since)
		return s.self.Elected || err != nil || s.now().Sub(since) > disputeTime
	})
}

// conditions returns the conditions for a Peering's status, based on the present ones.
func (s *GatewaySource) conditions(plan *Plan, check kube.Check, trouble string) []*Condition {
	all := plan.Status.Conditions
	accepted := &Condition{Type: Accepted, Status: "True", Reason: "Valid"}
	if len(plan.Faults) > 0 {
		accepted = &Condition{Type: Accepted, Status: "False", Reason: "Invalid",
			Message: strings.Join(plan.Faults, "; ")}
	}
	ready := &Condition{Type: NodesReady, Status: "True", Reason: "AllNodes"}
	switch {
	case plan.Peering == nil:
		ready = &Condition{Type: NodesReady, Status: "False", Reason: "NotAccepted"}
	case len(plan.Unready) > 0:
		ready = &Condition{Type: NodesReady, Status: "False", Reason: "NodesMissing", Message: summary(plan.Unready)}
	}
	connected := &Condition{Type: Connected, Status: "False", Reason: "Connecting",
		Message: "no answer of the peer yet"}
	switch {
	case plan.Peering == nil:
		connected.Reason, connected.Message = "NotAccepted", ""
	case plan.Peering.PublicKey == (wgkey.Key{}):
		connected.Reason, connected.Message = noPeerKey,
			"spec.publicKey: missing; it is status.publicKey of the peer's Peering"
	case check.State == kube.CheckConnected:
		connected = &Condition{Type: Connected, Status: "True", Reason: "PeerAnswers", Message: trouble}
	case check.State == kube.CheckLost:
		connected.Reason, connected.Message = "PeerSilent",
			cmp.Or(trouble, "the peer does not answer the connection check")
	default:
		connected.Message = cmp.Or(trouble, connected.Message)
	}
	for _, c := range []*Condition{accepted, ready, connected} {
		all = s.set(plan, all, c)
	}
	return s.services.setConditions(plan, all)
}

// Silent reports whether the peer cannot be reached, according to the status, and since when.
func (p *Peering) Silent() (since time.Time, silent bool) {
	for _, c := range p.Status.Conditions {
		if c != nil && c.Type == Connected && c.Status == "False" {
			at, err := time.Parse(time.RFC3339, c.Since)
			return at, err == nil
		}
	}
	return since, false
}

// maxMessage is the maximum length of a message in a status, in bytes: an API server accepts no
// object of more than 1.5 MiB.
const maxMessage = 1024

// set returns all with c in place of the condition of its type. The time of the last transition
// stays as long as the status does.
func (s *GatewaySource) set(plan *Plan, all []*Condition, c *Condition) []*Condition {
	c.Message = kube.Cut(c.Message, maxMessage)
	if plan.Current != nil {
		c.Observed = plan.Current.Generation
	}
	c.Since = s.now().UTC().Format(time.RFC3339)
	all = slices.Clone(all)
	i := slices.IndexFunc(all, func(o *Condition) bool { return o != nil && o.Type == c.Type })
	if i < 0 {
		return append(all, c)
	}
	if all[i].Status == c.Status && all[i].Since != "" {
		c.Since = all[i].Since
	}
	all[i] = c
	return all
}

// without returns all without the condition of a type.
func without(all []*Condition, kind string) []*Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c *Condition) bool { return c != nil && c.Type == kind })
}

// noPeerKey is the reason of Connected before two clusters have exchanged their keys.
const noPeerKey = "NoPeerKey"

// message returns what is wrong, most urgent first. While only the peer's key is missing, it says
// what will be wrong then, too. Services that are not exported are their owners' matter, and would
// hide all that comes after: they are in the condition alone. Last comes a path that is too narrow.
func message(s *Status) string {
	key, narrow := "", ""
	for _, kind := range []string{Accepted, OneGateway, Connected, NodesReady, StandbyReady, Exported, Imported} {
		for _, c := range s.Conditions {
			switch {
			case c == nil || c.Type != kind || c.Message == "" || c.Reason == notWanted || kind == Exported &&
				c.Reason == refusedExports:
			case c.Status == "True":
				if kind == Connected {
					narrow = c.Message
				}
			case c.Reason == noPeerKey:
				key = c.Message
			case key != "" && kind == NodesReady:
				return key + "; " + c.Message
			case key == "":
				return c.Message
			}
		}
	}
	return cmp.Or(key, narrow)
}

// summary returns the first of several sentences, and how many more there are.
func summary(all []string) string {
	if len(all) <= 1 {
		return strings.Join(all, "")
	}
	return all[0] + more(len(all))
}

// more says how many of n follow the first, which the text has named.
func more(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf("; and %d more", n-1)
}
