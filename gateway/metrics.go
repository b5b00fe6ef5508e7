package gateway

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"culvert/gateway/health"
	"culvert/gateway/pathmtu"
	"culvert/gateway/seats"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
	"culvert/nat/rules"
)

// metricsPage reads the counters; nothing is counted twice for it. Each lock that the
// packet path takes is held for one copy.
func (g *Gateway) metricsPage(l *seats.Listener, size int) []byte {
	p := new(page)
	p.text.Grow(size + size/8)
	g.mu.Lock()
	peer, links, rules, liqo := g.config.Peer, g.links.ByName, g.config.Rules, g.config.LiqoMetrics
	g.mu.Unlock()

	stats, tunnels, tunnel := g.engine.Stats(), g.endpoint.Stats(), g.wg.Stats()
	p.packets(&stats, &tunnels, &tunnel, g)
	p.connections(&stats)
	p.shares(&stats)
	p.rules(rules, g.engine.RuleCounters)
	p.neighbours(&tunnels)
	p.nodes(links, g.endpoint.TunnelStats)
	found := g.check.found()
	if s, err := g.wg.PeerStats(); err == nil {
		p.peer(peer, &s, &tunnel)
		if liqo {
			p.liqo(peer, &s, &found)
		}
	}
	p.stages(&tunnel, g)
	p.check(peer, found)
	p.legs(peer, links, g.watch.of)
	p.paths(peer, links, g.paths.known())
	p.sockets(g.sockets(&tunnel))
	p.listener(l)
	p.flight()
	p.kept(g.keeper)
	p.build(ReadVersion())
	p.findings(g.watch.findings(time.Since(started)))
	return p.text.Bytes()
}

// packets reports the ledger of each direction.
func (p *page) packets(s *nat.Stats, tunnels *geneve.Stats, tunnel *wg.Stats, g *Gateway) {
	directions := []struct {
		name string
		nat  *nat.Direction
		own  *counters
	}{{"outbound", &s.Outbound, &g.out.counters}, {"inbound", &s.Inbound, &g.in.counters}}

	for _, f := range []struct {
		name, help string
		value      func(*nat.Direction) uint64
	}{
		{"received", "Inner packets received, by direction, after segmentation.", func(d *nat.Direction) uint64 { return d.Received }},
		{"forwarded", "Inner packets sent on to the tunnel on the other side.", func(d *nat.Direction) uint64 { return d.Forwarded }},
		{"untracked", "Forwarded packets that belong to no connection, because a rule says so.", func(d *nat.Direction) uint64 { return d.Untracked }},
		{"asymmetric", "Forwarded packets of connections that came in at another node than their answers go to.", func(d *nat.Direction) uint64 { return d.Asymmetric }},
		{"delivered", "Inner packets addressed to the gateway itself.", func(d *nat.Direction) uint64 { return d.Delivered }},
		{"answered", "Inner packets that the gateway answered with an error.", func(d *nat.Direction) uint64 { return d.Answered }},
	} {
		p.family(counter, f.name+"_packets_total", f.help, "direction")
		for _, d := range directions {
			p.count(f.value(d.nat), d.name)
		}
	}
	p.family(counter, "generated_packets_total", "Inner packets made by the gateway itself.", "direction")
	for _, d := range directions {
		p.count(d.own.generated.Load(), d.name)
	}
	p.family(gauge, "held_fragments", "Fragments that wait for the first one of their packet.", "direction")
	for _, d := range directions {
		p.add(float64(d.nat.Held), d.name)
	}

	p.family(counter, "dropped_packets_total", "Inner packets dropped, by reason.", "direction", "reason")
	eachDrop(g, s, tunnels, tunnel, func(direction, reason string, packets uint64) { p.count(packets, direction, reason) })
}

func (p *page) connections(s *nat.Stats) {
	p.one(gauge, "connections", "Connections in the table.", float64(s.Connections))
	p.one(gauge, "connections_unreplied", "Connections in the table that have had no answer.", float64(s.Unreplied))
	p.one(gauge, "connections_max", "Cap of the connection table.", float64(s.MaxConnections))
	p.one(gauge, "connections_pressed", "1 if the table is so full that connections without an answer live 30 s only.", bit[s.Pressed])
	p.one(counter, "connections_created_total", "Connections made.", float64(s.Created))
	p.one(counter, "connections_restored_total", "Connections that the gateway before has left to this one.", float64(s.Restored))
	p.one(gauge, "ports", "Source ports and ICMP identifiers that the gateway keeps apart for connections.", float64(s.Ports))
	p.one(gauge, "ports_busiest", "Those towards the remote address and port that has most.", float64(s.BusiestPorts))
	p.one(gauge, "ports_busiest_max", "How many there may be towards that one.", float64(s.BusiestPortsMax))
	p.family(counter, "connections_removed_total", "Connections removed: expired, evicted with their configuration, dropped early for others, deleted by command.", "reason")
	p.count(s.Expired, "expired")
	p.count(s.Evicted, "evicted")
	p.count(s.EarlyDropped, "early-dropped")
	p.count(s.Deleted, "deleted")
}

// shares reports the tables that sources share, and what the shares have cost them.
func (p *page) shares(s *nat.Stats) {
	p.one(gauge, "fragmented_datagrams", "Datagrams of which fragments are missing.", float64(s.Datagrams))
	p.one(counter, "fragmented_datagrams_replaced_total", "Datagrams given up incomplete, for others.", float64(s.DatagramsReplaced))
	p.one(gauge, "affinity_clients", "Clients of services with affinity that are remembered.", float64(s.Clients))
	p.one(gauge, "affinity_clients_max", "Cap of the clients that are remembered.", float64(s.MaxClients))
	p.one(counter, "affinity_clients_replaced_total", "Clients forgotten before their time, for others of their service.", float64(s.ClientsReplaced))
	p.one(counter, "affinity_clients_refused_total", "Clients not remembered, because their network or service had its share.", float64(s.ClientsRefused))
	p.one(counter, "errors_limited_total", "Errors not sent, because there were too many.", float64(s.ErrorsLimited))
	p.one(counter, "rules_uncounted_packets_total", "Packets that rules did not count, because there were too many combinations of them.", float64(s.Uncounted))
}

// maxRuleSeries is how many of the configuration's rules have metrics of their own; the
// total of their table has them all.
const maxRuleSeries = 1000

// rules reports what the rules have matched: those of the configuration by name, the
// generated ones by table.
func (p *page) rules(configured []rules.FilterRule, each func(func(rules.RuleCount))) {
	named := make(map[string]*rules.RuleCount)
	for _, r := range configured[:min(len(configured), maxRuleSeries)] {
		named[r.Name] = &rules.RuleCount{Rule: r.Name}
	}
	tables := make(map[string]*rules.RuleCount)
	each(func(c rules.RuleCount) {
		t := tables[c.Table]
		if t == nil {
			t = &rules.RuleCount{Table: c.Table}
			tables[c.Table] = t
		}
		t.Packets += c.Packets
		t.Bytes += c.Bytes
		if c.Table == rules.RulesTable && named[c.Rule] != nil {
			*named[c.Rule] = c
		}
	})
	for _, f := range []struct {
		label, help string
		counts      map[string]*rules.RuleCount
	}{
		{"rule", "of a rule of the configuration", named},
		{"table", "of all rules of a table that are counted", tables},
	} {
		names := slices.Sorted(maps.Keys(f.counts))
		p.family(counter, f.label+"_packets_total", "Packets that matched, "+f.help+".", f.label)
		for _, name := range names {
			p.count(f.counts[name].Packets, name)
		}
		p.family(counter, f.label+"_bytes_total", "Bytes of the packets that matched, "+f.help+".", f.label)
		for _, name := range names {
			p.count(f.counts[name].Bytes, name)
		}
	}
}

func (p *page) neighbours(s *geneve.Stats) {
	p.family(counter, "arp_messages_total", "ARP messages: of nodes and for us, and ours.", "way")
	p.count(s.ARPReceived, "received")
	p.count(s.ARPSent, "sent")
	p.family(counter, "nd_messages_total", "Messages of IPv6 neighbour discovery: of nodes and for us, and ours.", "way")
	p.count(s.NDReceived, "received")
	p.count(s.NDSent, "sent")
	p.one(counter, "neighbours_doubted_total", "Neighbours forgotten, because they were silent while the send buffer was full.", float64(s.Doubted))
	p.one(gauge, "held_packets", "Inner packets that wait for a node's answer to ARP.", float64(s.Held))
}

// nodeFamilies are the metrics of each node's tunnel.
var nodeFamilies = []struct {
	kind, name, help string
	value            func(*geneve.TunnelStats) float64
}{
	{counter, "received_packets_total", "Inner packets received from a node.", func(s *geneve.TunnelStats) float64 { return float64(s.ReceivedPackets) }},
	{counter, "received_bytes_total", "Bytes of inner packets received from a node.", func(s *geneve.TunnelStats) float64 { return float64(s.ReceivedBytes) }},
	{counter, "sent_packets_total", "Inner packets sent to a node.", func(s *geneve.TunnelStats) float64 { return float64(s.SentPackets) }},
	{counter, "sent_bytes_total", "Bytes of inner packets sent to a node.", func(s *geneve.TunnelStats) float64 { return float64(s.SentBytes) }},
	{gauge, "held_packets", "Inner packets that wait for the node's answer to ARP.", func(s *geneve.TunnelStats) float64 { return float64(s.Held) }},
	{counter, "encap_changes_total", "How often a node was heard in the other encapsulation after a minute of silence.", func(s *geneve.TunnelStats) float64 { return float64(s.EncapChanges) }},
	{gauge, "trains", "1 if UDP_SEGMENT trains are sent to a node, 0 if single datagrams.", func(s *geneve.TunnelStats) float64 { return bit[s.Train] }},
	{counter, "trains_lost_total", "How often trains to a node were found lost.", func(s *geneve.TunnelStats) float64 { return float64(s.LostTrains) }},
	{counter, "trains_refused_total", "Trains to a node that the gateway's kernel refused.", func(s *geneve.TunnelStats) float64 { return float64(s.RefusedTrains) }},
}

func (p *page) nodes(links map[string]nat.Link, stats func(uint16) (geneve.TunnelStats, bool)) {
	type node struct {
		name  string
		stats geneve.TunnelStats
	}
	nodes := make([]node, 0, len(links))
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if s, ok := stats(uint16(links[name])); ok {
			nodes = append(nodes, node{name, s})
		}
	}
	for _, f := range nodeFamilies {
		p.family(f.kind, "node_"+f.name, f.help, "node")
		for i := range nodes {
			p.add(f.value(&nodes[i].stats), nodes[i].name)
		}
	}
	p.family(gauge, "node_encap", "What a node speaks; absent while nothing tells.", "encap", "node")
	for i := range nodes {
		if s := &nodes[i].stats; s.Encap != geneve.Auto {
			p.add(1, s.Encap.String(), nodes[i].name)
		}
	}
	p.family(gauge, "node_silence_seconds", "For how long nothing has come from a node; absent where its MAC address is not known.", "node")
	for i := range nodes {
		if s := &nodes[i].stats; s.MAC != nil {
			p.add(s.Silence.Seconds(), nodes[i].name)
		}
	}
}

func (p *page) peer(name string, s *wg.PeerStats, tunnel *wg.Stats) {
	handshake := 0.0
	if !s.LastHandshake.IsZero() {
		handshake = float64(s.LastHandshake.UnixNano()) / 1e9
	}
	for _, f := range []struct {
		kind, name, help string
		value            float64
	}{
		{gauge, "last_handshake_seconds", "Unix time of the last handshake with the peer; 0 = none.", handshake},
		{counter, "received_bytes_total", "Bytes of WireGuard messages received from the peer.", float64(s.Received)},
		{counter, "sent_bytes_total", "Bytes of WireGuard messages sent to the peer.", float64(s.Sent)},
		{gauge, "trains", "1 if UDP_SEGMENT trains are sent to the peer, 0 if single datagrams.", bit[tunnel.Trains]},
		{counter, "trains_lost_total", "How often trains to the peer were found lost.", float64(tunnel.LostTrains)},
		{counter, "receive_pauses_total", "Pauses of a receiver after an error that the kernel reported.", float64(tunnel.ReceivePauses)},
	} {
		p.family(f.kind, "wireguard_"+f.name, f.help, "peer")
		p.add(f.value, name)
	}
	p.family(counter, "wireguard_handshake_messages_total", "Messages that begin handshakes (initiation) and answer them.", "kind", "peer", "way")
	p.count(tunnel.Talk.SentInitiations, "initiation", name, "sent")
	p.count(tunnel.Talk.ReceivedInitiations, "initiation", name, "received")
	p.count(tunnel.Talk.SentAnswers, "answer", name, "sent")
	p.count(tunnel.Talk.ReceivedAnswers, "answer", name, "received")
}

// stages reports how long packets take on the stages of their way.
func (p *page) stages(tunnel *wg.Stats, g *Gateway) {
	out, in, sent := g.out.decided.Counts(), g.in.decided.Counts(), g.in.sent.Counts()
	p.family("histogram", "stage_duration_seconds", "How long a batch of packets spends in a stage of its way; one in 256 packets tells.", "direction", "stage")
	p.histogram(&out, "outbound", "decide")
	p.histogram(&tunnel.Encrypt, "outbound", "encrypt")
	p.histogram(&tunnel.Send, "outbound", "send")
	p.histogram(&tunnel.Decrypt, "inbound", "decrypt")
	p.histogram(&in, "inbound", "decide")
	p.histogram(&sent, "inbound", "send")
}

// flight reports whether somebody waits for a slow batch.
func (p *page) flight() {
	p.one(gauge, "flight_recorder_bytes", "What Go's flight recorder may keep while somebody waits for a slow batch; 0 if nobody does.", float64(flightRecorded.Load()))
}

// build says which build this is.
func (p *page) build(v Version) {
	p.family(gauge, "build_info", "Which build of culvert this is; always 1.", "version", "revision", "modified", "goversion", "platform")
	p.add(1, v.Version, v.Revision, strconv.FormatBool(v.Modified), v.Go, v.Platform)
}

// findings says what does not work, by the cause that the log names.
func (p *page) findings(all []health.Finding) {
	p.family(gauge, "fault", "1 for each fault that is known now, by cause and whom it concerns: a peer, node or address. The log has the sentence.", "cause", "of")
	for _, f := range all {
		if f.Cause.Level == health.Warning {
			p.add(1, f.Cause.Name, f.Of)
		}
	}
}

func (p *page) check(peer string, found CheckStatus) {
	p.family(gauge, "check_connected", "1 if the peer's gateway answers the connection check, 0 if not; absent where none is made.", "peer")
	if found.State != CheckOff {
		p.add(bit[found.State == CheckConnected], peer)
	}
	p.family(gauge, "check_rtt_seconds", "Time to the peer's gateway and back; absent while it does not answer.", "peer")
	if found.State == CheckConnected {
		p.add(found.RTT.Seconds(), peer)
	}
	p.family(counter, "check_pings_total", "Pings of the connection check: sent to the peer, answered by it, received from it and answered.", "peer", "ping")
	p.count(found.Sent, peer, "sent")
	p.count(found.Answered, peer, "answered")
	p.count(found.Asked, peer, "received")
}

// paths reports what probes have told of path MTUs.
func (p *page) paths(peer string, links map[string]nat.Link, known map[nat.Link]pathmtu.Result) {
	p.family(gauge, "path_mtu_bytes", "Largest inner packet that passes to a node or the peer and back; absent while no probe has been answered.", "kind", "of")
	if r, ok := known[nat.Tunnel]; ok {
		p.add(float64(r.Size), string(health.OfPeer), peer)
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if r, ok := known[links[name]]; ok {
			p.add(float64(r.Size), string(health.OfNode), name)
		}
	}
}

// socketFamilies are the metrics of each UDP socket that have one value.
var socketFamilies = []struct {
	kind, name, help string
	value            func(*udp.Stats) float64
}{
	{counter, "received_messages_total", "Messages received; a merged train is one.", func(s *udp.Stats) float64 { return float64(s.ReceivedMessages) }},
	{counter, "received_bytes_total", "Bytes received, without UDP headers.", func(s *udp.Stats) float64 { return float64(s.ReceivedBytes) }},
	{gauge, "waiting", "1 if a message is there that nobody has received yet.", func(s *udp.Stats) float64 { return bit[s.Waits] }},
	{counter, "receive_errors_total", "Errors of datagrams sent earlier that the kernel reported.", func(s *udp.Stats) float64 { return float64(s.ReceiveErrors) }},
	{counter, "truncated_messages_total", "Messages lost because they were longer than their buffer.", func(s *udp.Stats) float64 { return float64(s.Truncated) }},
	{counter, "sent_datagrams_total", "Datagrams sent.", func(s *udp.Stats) float64 { return float64(s.SentDatagrams) }},
	{counter, "sent_bytes_total", "Bytes sent, without UDP headers.", func(s *udp.Stats) float64 { return float64(s.SentBytes) }},
	{counter, "refused_trains_total", "Trains that the kernel refused, sent again as single datagrams.", func(s *udp.Stats) float64 { return float64(s.RefusedTrains) }},
	{gauge, "receive_buffer_bytes", "Receive buffer granted by the kernel.", func(s *udp.Stats) float64 { return float64(s.ReceiveBuffer) }},
	{gauge, "send_buffer_bytes", "Send buffer granted by the kernel.", func(s *udp.Stats) float64 { return float64(s.SendBuffer) }},
}

func (p *page) sockets(sockets map[string]udp.Stats) {
	names := slices.Sorted(maps.Keys(sockets))
	for _, f := range socketFamilies {
		p.family(f.kind, "socket_"+f.name, f.help, "socket")
		for _, name := range names {
			s := sockets[name]
			p.add(f.value(&s), name)
		}
	}
	p.family(counter, "socket_calls_total", "System calls that receive and send messages.", "call", "socket")
	for _, name := range names {
		p.count(sockets[name].ReceiveCalls, "receive", name)
		p.count(sockets[name].SendCalls, "send", name)
	}
	p.family(counter, "socket_overflows_total", "Datagrams lost because the receive buffer was full; absent where the kernel does not tell.", "socket")
	for _, name := range names {
		if s := sockets[name]; s.OverflowsKnown {
			p.count(s.Overflows, name)
		}
	}
	p.family(counter, "socket_send_drops_total", "Datagrams that the kernel refused to send, by reason.", "reason", "socket")
	for _, name := range names {
		for r, n := range sockets[name].SendDrops {
			p.count(n, udp.Reason(r).String(), name)
		}
	}
	p.family(gauge, "socket_offload", "1 if the offload is in use.", "offload", "socket")
	for _, name := range names {
		p.add(bit[sockets[name].GRO], "gro", name)
		p.add(bit[sockets[name].GSO], "gso", name)
	}
}

func (p *page) listener(l *seats.Listener) {
	p.one(gauge, "listener_connections", "Connections to this listener.", float64(l.InUse()))
	p.one(counter, "listener_refused_connections_total", "Connections closed at once because there were too many, or too many of their address.", float64(l.Refused()))
}
