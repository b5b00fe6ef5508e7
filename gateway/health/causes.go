package health

import (
	"slices"
	"strings"
)

// Level says how much a finding matters.
type Level uint8

// Levels: what a Note is about works, or may be intended; what a Warning is about does not work.
// Log and status call a Note info.
const (
	Note Level = iota
	Warning
)

func (l Level) String() string {
	if l == Warning {
		return "warning"
	}
	return "info"
}

// A Cause is one possible problem.
type Cause struct {
	Name   string // value of the log field cause
	Level  Level
	Says   string // with placeholders: {node}
	Remedy string // what to do, with placeholders; "" = nothing

	// Server is the remedy for a gateway that is the server, which has no wireguard.endpoint; "" =
	// Remedy.
	Server string
	plain  *Cause // the cause with the remedy for a client; nil: this one
}

// About the peer.
var (
	HandshakeMade = cause("handshake-made", Note, "handshake made with {endpoint}", "")
	TunnelBack    = cause("tunnel-restored", Note, "handshake made with {endpoint}: the tunnel is back after {time}",
		"")
	PeerMoved = cause("peer-moved", Note, "the peer has moved from {before} to {endpoint}", "")
	NoName    = cause("endpoint-name", Warning, "wireguard.endpoint {configured} has no address ({error})",
		"correct the name, or the name server of this machine; it is asked again every 5 s")
	NoRouteThere = cause("endpoint-unroutable", Warning,
		"this machine has no route to {endpoint} ({sent} handshakes sent, {answers} answered)",
		"correct wireguard.endpoint, or add a route").atServer("add a route; the peer has called from there")
	Forbidden = cause("endpoint-forbidden", Warning,
		"this machine may not send to {endpoint} ({sent} handshakes sent, {answers} answered)",
		"let its firewall or network policy pass UDP to there")
	NoHost = cause("endpoint-nobody", Warning,
		"nobody has the address of {endpoint} ({sent} handshakes sent, {answers} answered)",
		"correct wireguard.endpoint, or start that machine").atServer(
		"start that machine; the peer has called from there")
	Refused = cause("endpoint-refused", Warning,
		"nothing listens at {endpoint}, says its machine ({sent} handshakes sent, {answers} answered)",
		"start the peer, or make the port of wireguard.endpoint the peer's wireguard.listenPort").atServer(
		"start the peer; it has called from there")
	NoAnswer = cause("no-answer", Warning, "no handshake answer from {endpoint} for {time} ({sent} sent, 0 received)",
		"is UDP {port} open there, is the peer running, and is wireguard.peerPublicKey right here and there? A peer with another key says so in its log, and so does one that refuses this gateway because its clock went back")
	BadAnswer = cause("bad-answer", Warning,
		"the peer at {endpoint} answers, {answers} times in {time}, but with another key",
		"make the pre-shared key (wireguard.presharedKeyFile) the same here and there, or set wireguard.peerPublicKey to the key that `culvert keygen` printed at the peer")
	PeerLost = cause("peer-lost", Warning,
		"the peer at {endpoint} has not answered for {time} ({sent} handshakes sent, 0 answered)",
		"is it running, is UDP {port} open there, and are answers to UDP {listen} let in here? If the clock of this machine went back, the peer says so in its log")
	NobodyCalls = cause("no-handshake", Warning, "no handshake from the peer for {time} (0 received on UDP {listen})",
		"is the peer running, with role client (one side is the server, the other the client), is its wireguard.endpoint an address of this gateway, and is UDP {listen} open here?")
	AnswersLost = cause("answers-lost", Warning,
		"the peer begins handshakes ({received} received), is answered, and completes none",
		"is the pre-shared key the same here and there, and do answers reach it? A firewall or NAT must let UDP from port {listen} of this gateway through")
	PeerClock = cause("peer-clock", Warning,
		"the peer's clock went back: its handshakes are of {seen} and so older than its last one, "+
			"and WireGuard refuses them",
		"correct the clock of the peer's machine, or restart this gateway, which then accepts them; the keys are right")
	PeerLoss = cause("peer-loss", Warning,
		"{lost} of the last {of} requests through the tunnel to {endpoint} were lost",
		"look for a full or faulty link between the gateways, and for overflows and refusals of sockets in culvert status here and there")
	DataLost = cause("data-lost", Warning,
		"handshakes with {endpoint} are made, but nothing has come through the tunnel for {time}",
		"does a firewall let all of UDP {port} pass, and not only the first messages? A peer that answers no pings and has nothing to say looks the same")
	PeerMute = cause("peer-mute", Warning,
		"the peer at {endpoint} sends, and has answered none of {missed} requests for {time}",
		"is UDP {port} open there? A peer that answers pings no longer looks the same")
	PeerSilent = cause("peer-silent", Note, "nothing from the peer at {endpoint} for {time}",
		"is it running? One without traffic and wireguard.keepalive is silent, too")
)

// About nodes.
var (
	FirstPacket = cause("node-heard", Note, "first packet from {node} ({underlay})", "")
	NodeBack    = cause("node-restored", Note, "{node} ({underlay}) is back after {time}", "")
	NeverThere  = cause("node-no-arp", Warning, "{node} ({underlay}) never answered {by} ({asked} asked)",
		"is its link up, with VNI {vni}, the address {address} and the gateway's underlay address as remote, and is UDP {port} open here and there?")
	NodeRefuses = cause("node-refused", Warning,
		"nothing listens on UDP {port} of {node} ({underlay}), says that machine",
		"make the tunnel there (culvert node, or a link with this port), or correct the underlay address")
	NodeNobody = cause("node-nobody", Warning, "nobody has the underlay address {underlay} of {node}",
		"correct it in geneve.nodes, or start that machine")
	NodeUnroutable = cause("node-unroutable", Warning, "this machine has no route to {node} ({underlay})",
		"correct its underlay address in geneve.nodes, or add a route")
	NodeSilent = cause("node-silent", Warning, "{node} ({underlay}) has answered no {by} for {time} ({asked} asked)",
		"is it running, is its link up, with the gateway's underlay address as remote, and is UDP {port} open here and there?")
	NodeDeaf = cause("node-deaf", Warning,
		"{node} ({underlay}) sends, and answers no {by} for {address} ({asked} asked)",
		"does its firewall let UDP {port} of this gateway in, and is that the address of its link?")
	NodeLoss = cause("node-loss", Warning, "{lost} of the last {of} requests by {by} to {node} ({underlay}) were lost",
		"look for a full or faulty link on the way to that node")
	NoReturn = cause("node-no-return", Warning,
		"{node} answers {by}, but has sent no packet back for {sent} that were sent to it",
		"does it forward (sysctl net.ipv4.ip_forward=1, net.ipv6.conf.all.forwarding=1), does it route the remote CIDRs via {gateway}, and does its firewall let pods' traffic pass?")
	OneWay = cause("node-one-way", Warning, "{node} has sent no packet for {time}, and {sent} were sent to it",
		"if answers are due: does it forward (sysctl net.ipv4.ip_forward=1, net.ipv6.conf.all.forwarding=1), do it and its pods route the remote CIDRs via {gateway}, and does its firewall let pods' traffic pass? One-way traffic looks the same")
	WrongUnderlay = cause("node-underlay", Warning, "{node} sends from {source}, configured {underlay}",
		"correct its underlay in geneve.nodes, or the address that the node sends from")
	WrongVNI = cause("node-vni", Warning, "{node} ({underlay}) sends VNI {seen}, configured {vni}",
		"make them the same, here in geneve.nodes and at the node")
	WrongEncap = cause("node-encap", Warning, "{node} ({underlay}) sends another encapsulation than {encap}",
		"set encap in geneve.nodes to what the node sends, or leave it out to follow the node after a minute of silence")
	WrongInner = cause("node-inner", Warning,
		"{node} ({underlay}) sends IP in place of Ethernet frames, or the other way round",
		"set inner in geneve.nodes to what the node sends")
	WrongAddress = cause("node-address", Warning, "{node} calls itself {seen}, configured {address}",
		"correct its address in geneve.nodes, or the one on the node's tunnel link")
	WrongGateway = cause("node-gateway-address", Warning, "{node} asks for the gateway by {seen}, which is {gateway}",
		"correct the gateway's address at the node")
	NoVia = cause("node-route-via", Warning, "{node} asks by {by} for {seen}, which is behind the gateway",
		"give that node's route a gateway: ip route replace CIDR via {gateway} dev LINK onlink")
)

// About dropped packets.
var (
	ForeignSource = cause("bad-source-node", Warning,
		"{count} packets of {node} dropped as bad-source: {source} is an address of {owner}",
		"give the CIDR to the node that its pods are on (podCIDRs in geneve.nodes), or set geneve.sourceCheck: cluster")
	RemoteSource = cause("bad-source-remote", Warning,
		"{count} packets of {node} dropped as bad-source: {source} is an address that this gateway gives to others",
		"keep what comes from the gateway from being routed back to it, and give remaps CIDRs that nothing here uses")
	OddSource = cause("bad-source", Warning,
		"{count} packets of {node} dropped as bad-source: {source} can be no sender's address",
		"look for what sends so on the node")
	SameRole = cause("same-role", Warning, "the peer uses our tunnel address {source}: it has the role {role}, too",
		"make one of the two gateways the server and the other the client (wireguard.role)")
	PeerSource = cause("bad-source-peer", Warning,
		"{count} packets of the peer dropped as bad-source: {source} is in no cidr of network.remote",
		"set network.remote here to the peer's own CIDRs (its network.local)")
	NoSourceWanted = cause("unknown-source", Warning,
		"{count} packets of {node} dropped as unknown-source: {source} is no pod",
		"add its CIDR to network.local.podCIDRs, or leave out nat.unknownSource: off")
	NowhereRemote = cause("no-route-remote", Warning,
		"{count} packets of {node} to {destination} dropped as no-route: no remote CIDR has it",
		"make the node's routes and the remaps of network.remote the same")
	NowhereNode = cause("no-route-node", Warning,
		"{count} packets to {destination} dropped as no-route: no node has it",
		"add its CIDR to podCIDRs of its node in geneve.nodes")
	NowhereLocal = cause("no-route-local", Warning,
		"{count} packets of the peer to {destination} dropped as no-route: it is in no CIDR of network.local",
		"set network.remote at the peer to this cluster's own CIDRs, or correct network.local here")
	StandsForNothing = cause("no-mapping", Warning,
		"{count} packets of the peer to {destination} dropped as no-mapping: it stands for nothing",
		"add it to nat.addresses or nat.services, or let the sender stop")
	ToNode = cause("to-node", Warning,
		"{count} packets of the peer to {destination} dropped as to-node: it is a node's own address",
		"give the node an address in nat.addresses or nat.services if the peer is to reach it, or let the sender stop")
	NotAdmitted = cause("not-admitted", Note,
		"{count} packets of the peer to {destination} dropped as not-admitted: it is not exported",
		"add it to nat.exports if the peer is to reach it, or let the sender stop")
	RuleDrops = cause("rule-drops", Note,
		"rule {rule} refuses packets of {of}, the last from {source} to {destination} ({reason}, {count})",
		"change rules if that is not meant")
	NoBackend = cause("no-backend", Warning,
		"{count} packets to {destination} dropped as no-backend: its service has none",
		"give the service in nat.services a backend")
	TableFull = cause("table-full", Warning,
		"{count} packets dropped as {reason}: the connection table is full, the last sender is {source}",
		"raise nat.maxConnections and the memory limit, or find who opens so many (culvert connections)")
	PortsFull = cause("ports-full", Warning,
		"{count} packets dropped as {reason}: no source port is left towards {destination}",
		"spread the connections over more destinations or sources, or find who opens so many (culvert connections)")
	SmallMSS = cause("small-mss", Note, "mssClamp cuts TCP into segments of {mss} bytes, where {fits} fit",
		"set mssClamp: auto, or leave it out")
	Malformed = cause("malformed", Warning, "{count} packets of {node} dropped as malformed",
		"look for what sends so, or what spoils packets on the way")
)

// About unknown senders.
var (
	StrangerGeneve = cause("stranger-node", Note, "{address} is no node and sends to the port of the nodes, VNI {seen}",
		"add it to geneve.nodes, or keep it out by a firewall")
	StrangerMAC1 = cause("stranger-key", Warning, "{address} begins handshakes with another public key than ours",
		"if it is the peer, set its wireguard.peerPublicKey to ours: {key}")
	StrangerInitiator = cause("stranger-peer", Warning,
		"{address} knows our public key, and has another one than wireguard.peerPublicKey",
		"if it is the peer, set wireguard.peerPublicKey here to the key that `culvert keygen` printed there")
	StrangerData = cause("stranger-data", Warning, "{address} sends data messages and is not the peer",
		"if the peer has moved, wait for its next handshake; else keep it out by a firewall")
	StrangerRate = cause("stranger-rate", Warning, "{address} sends more handshakes than a peer does",
		"keep it out by a firewall")
	StrangerNoise = cause("stranger-noise", Note, "{address} sends to UDP {listen} what is not WireGuard",
		"keep it out by a firewall, or ignore it")
)

var causes []*Cause

func cause(name string, l Level, says, remedy string) *Cause {
	c := &Cause{Name: name, Level: l, Says: says, Remedy: remedy}
	causes = append(causes, c)
	return c
}

func (c *Cause) atServer(remedy string) *Cause {
	c.Server = remedy
	return c
}

// by returns the cause with the remedy for a gateway's role.
func (c *Cause) by(role string) *Cause {
	if c.Server == "" || role != "server" {
		return c
	}
	at := *c
	at.Remedy, at.plain = c.Server, c
	return &at
}

// Causes returns all causes: about the peer, nodes, drops, unknown senders.
func Causes() []*Cause { return slices.Clone(causes) }

// Sentence returns the cause's text, with placeholders.
func (c *Cause) Sentence() string {
	if c.Remedy == "" {
		return c.Says
	}
	return c.Says + ": " + c.Remedy
}

// Kind says what a finding is about.
type Kind string

// Kinds, which are fields of the log.
const (
	OfPeer    Kind = "peer"
	OfNode    Kind = "node"
	OfAddress Kind = "address"
)

// A Finding is a cause that applies now.
type Finding struct {
	Cause *Cause
	Kind  Kind
	Of    string // name or address
	Text  string // one line: the problem and its remedy

	Problem string // the same without the remedy

	liqo, peering string // Text under Liqo, and in the gateway of a Peering: the Judge makes one of them Text
}

// WithoutFile returns the finding in the words for Liqo, which name no field of a file.
func (f Finding) WithoutFile() Finding {
	f.Text = f.liqo
	return f
}

// findingOf returns the finding of a cause. blanks are placeholders, each followed by its text.
func findingOf(c *Cause, kind Kind, of string, blanks ...string) Finding {
	fill := strings.NewReplacer(blanks...)
	return Finding{c, kind, of, fill.Replace(c.Sentence()), fill.Replace(c.Says), fill.Replace(c.Liqo().Sentence()),
		fill.Replace(c.Peering().Sentence())}
}
