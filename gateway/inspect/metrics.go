package inspect

import (
	"maps"
	"slices"
	"strconv"

	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/gateway/latency"
	"culvert/gateway/monitor"
	"culvert/gateway/path"
	"culvert/gateway/pathmtu"
	"culvert/gateway/prometheus"
	"culvert/gateway/seats"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/rules"
)

// Metrics renders the counters. It holds each lock of the packet path only for one copy.
func (src *Source) Metrics(l *seats.Listener, size int) []byte {
	p := new(page)
	p.Text.Grow(size + size/8)
	c, all := src.Current.Get()
	peer, links, rules, liqo := c.Peer, all.ByName, c.Rules, c.Liqo

	stats, tunnels, tunnel := src.Path.Engine.Stats(), src.Path.Endpoint.Stats(), src.Path.WG.Stats()
	p.packets(&stats, &tunnels, &tunnel, src.Path)
	p.connections(&stats)
	p.shares(&stats)
	p.rules(rules, src.Path.Engine.RuleCounters)
	p.neighbours(&tunnels)
	p.nodes(links, src.Path.Endpoint.TunnelStats)
	found := src.Monitor.Connection()
	if s, err := src.Path.WG.PeerStats(); err == nil {
		p.peer(peer, &s, &tunnel)
		if liqo {
			p.liqo(peer, &s, &found)
		}
	}
	p.stages(&tunnel, src.Path)
	p.check(peer, found)
	p.legs(peer, links, src.Monitor.Traffic)
	p.paths(peer, links, src.Monitor.KnownPaths())
	p.sockets(src.Path.Sockets(&tunnel))
	p.listener(l)
	src.Life.WriteMetrics(&p.Page)
	if src.Elector != nil {
		p.replica(src.Elector.Replica())
	}
	if src.Replication != nil {
		p.replication(src.Replication())
	}
	p.build(control.ReadVersion())
	p.findings(src.Monitor.Findings(path.Uptime()))
	return p.Text.Bytes()
}

// A page is a metrics page that is being built.
type page struct{ prometheus.Page }

// durations adds a sample of a histogram.
func (p *page) durations(c *latency.Counts, labels ...string) {
	bounds := make([]float64, len(latency.Bounds))
	for i, b := range latency.Bounds {
		bounds[i] = b.Seconds()
	}
	p.Buckets(bounds, c.Buckets[:], c.Sum.Seconds(), labels...)
}

// packets reports the ledger of each direction.
func (p *page) packets(s *nat.Stats, tunnels *geneve.Stats, tunnel *wg.Stats, of *path.Path) {
	directions := []struct {
		name string
		nat  *nat.Direction
		own  *path.Counters
	}{{"outbound", &s.Outbound, of.Outbound()}, {"inbound", &s.Inbound, of.Inbound()}}

	for _, f := range []struct {
		name, help string
		value      func(*nat.Direction) uint64
	}{
		{"received", "Inner packets received, by direction, after segmentation.", func(d *nat.Direction) uint64 {
			return d.Received
		}},
		{"forwarded", "Inner packets sent on to the tunnel on the other side.", func(d *nat.Direction) uint64 {
			return d.Forwarded
		}},
		{"untracked", "Forwarded packets that belong to no connection, because a rule says so.",
			func(d *nat.Direction) uint64 { return d.Untracked }},
		{"asymmetric", "Forwarded packets of connections that came in at another node than their answers go to.",
			func(d *nat.Direction) uint64 { return d.Asymmetric }},
		{"delivered", "Inner packets addressed to the gateway itself.", func(d *nat.Direction) uint64 {
			return d.Delivered
		}},
		{"answered", "Inner packets that the gateway answered with an error.", func(d *nat.Direction) uint64 {
			return d.Answered
		}},
	} {
		p.Family(prometheus.Counter, f.name+"_packets_total", f.help, "direction")
		for _, d := range directions {
			p.Count(f.value(d.nat), d.name)
		}
	}
	p.Family(prometheus.Counter, "generated_packets_total", "Inner packets made by the gateway itself.", "direction")
	for _, d := range directions {
		p.Count(d.own.Generated(), d.name)
	}
	p.Family(prometheus.Gauge, "held_fragments", "Fragments that wait for the first one of their packet.", "direction")
	for _, d := range directions {
		p.Add(float64(d.nat.Held), d.name)
	}

	p.Family(prometheus.Counter, "dropped_packets_total", "Inner packets dropped, by reason.", "direction", "reason")
	of.EachDrop(s, tunnels, tunnel, func(direction, reason string, packets uint64) {
		p.Count(packets, direction, reason)
	})
}

func (p *page) connections(s *nat.Stats) {
	p.One(prometheus.Gauge, "connections", "Connections in the table.", float64(s.Connections))
	p.One(prometheus.Gauge, "connections_unreplied", "Connections in the table that have had no answer.",
		float64(s.Unreplied))
	p.One(prometheus.Gauge, "connections_max", "Cap of the connection table.", float64(s.MaxConnections))
	p.One(prometheus.Gauge, "connections_pressed",
		"1 if the table is so full that connections without an answer live 30 s only.", prometheus.Bit[s.Pressed])
	p.One(prometheus.Counter, "connections_created_total", "Connections made.", float64(s.Created))
	p.One(prometheus.Counter, "connections_restored_total",
		"Connections that the previous gateway has left to this one.", float64(s.Restored))
	p.One(prometheus.Gauge, "ports", "Source ports and ICMP identifiers that the gateway keeps apart for connections.",
		float64(s.Ports))
	p.One(prometheus.Gauge, "ports_busiest", "Those towards the remote address and port that has most.",
		float64(s.BusiestPorts))
	p.One(prometheus.Gauge, "ports_busiest_max", "How many there may be towards that one.", float64(s.BusiestPortsMax))
	p.Family(prometheus.Counter, "connections_removed_total",
		"Connections removed: expired, evicted with their configuration, dropped early for others, deleted by command.",
		"reason")
	p.Count(s.Expired, "expired")
	p.Count(s.Evicted, "evicted")
	p.Count(s.EarlyDropped, "early-dropped")
	p.Count(s.Deleted, "deleted")
}

// shares reports the tables that sources share, and what was refused or replaced.
func (p *page) shares(s *nat.Stats) {
	p.One(prometheus.Gauge, "fragmented_datagrams", "Datagrams of which fragments are missing.", float64(s.Datagrams))
	p.One(prometheus.Counter, "fragmented_datagrams_replaced_total", "Datagrams given up incomplete, for others.",
		float64(s.DatagramsReplaced))
	p.One(prometheus.Gauge, "affinity_clients", "Clients of services with affinity that are remembered.",
		float64(s.Clients))
	p.One(prometheus.Gauge, "affinity_clients_max", "Cap of the clients that are remembered.", float64(s.MaxClients))
	p.One(prometheus.Counter, "affinity_clients_replaced_total",
		"Clients forgotten before their time, for others of their service.", float64(s.ClientsReplaced))
	p.One(prometheus.Counter, "affinity_clients_refused_total",
		"Clients not remembered, because their network or service had its share.", float64(s.ClientsRefused))
	p.One(prometheus.Counter, "errors_limited_total", "Errors not sent, because there were too many.",
		float64(s.ErrorsLimited))
	p.One(prometheus.Counter, "rules_uncounted_packets_total",
		"Packets that rules did not count, because there were too many combinations of them.", float64(s.Uncounted))
}

// rules reports the packets that rules matched: configured rules by name, generated rules by table.
func (p *page) rules(configured []rules.FilterRule, each func(func(rules.RuleCount))) {
	named := make(map[string]*rules.RuleCount)
	for _, r := range configured[:min(len(configured), monitor.MaxRules)] {
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
		p.Family(prometheus.Counter, f.label+"_packets_total", "Packets that matched, "+f.help+".", f.label)
		for _, name := range names {
			p.Count(f.counts[name].Packets, name)
		}
		p.Family(prometheus.Counter, f.label+"_bytes_total", "Bytes of the packets that matched, "+f.help+".", f.label)
		for _, name := range names {
			p.Count(f.counts[name].Bytes, name)
		}
	}
}

func (p *page) neighbours(s *geneve.Stats) {
	p.Family(prometheus.Counter, "arp_messages_total", "ARP messages: of nodes and for us, and ours.", "way")
	p.Count(s.ARPReceived, "received")
	p.Count(s.ARPSent, "sent")
	p.Family(prometheus.Counter, "nd_messages_total",
		"Messages of IPv6 neighbour discovery: of nodes and for us, and ours.", "way")
	p.Count(s.NDReceived, "received")
	p.Count(s.NDSent, "sent")
	p.One(prometheus.Counter, "neighbours_doubted_total",
		"Neighbours forgotten, because they were silent while the send buffer was full.", float64(s.Doubted))
	p.One(prometheus.Gauge, "held_packets", "Inner packets that wait for a node's answer to ARP.", float64(s.Held))
}

// nodeFamilies are the metrics of each node's tunnel.
var nodeFamilies = []struct {
	kind, name, help string
	value            func(*geneve.TunnelStats) float64
}{
	{prometheus.Counter, "received_packets_total", "Inner packets received from a node.",
		func(s *geneve.TunnelStats) float64 { return float64(s.ReceivedPackets) }},
	{prometheus.Counter, "received_bytes_total", "Bytes of inner packets received from a node.",
		func(s *geneve.TunnelStats) float64 { return float64(s.ReceivedBytes) }},
	{prometheus.Counter, "sent_packets_total", "Inner packets sent to a node.", func(s *geneve.TunnelStats) float64 {
		return float64(s.SentPackets)
	}},
	{prometheus.Counter, "sent_bytes_total", "Bytes of inner packets sent to a node.",
		func(s *geneve.TunnelStats) float64 { return float64(s.SentBytes) }},
	{prometheus.Gauge, "held_packets", "Inner packets that wait for the node's answer to ARP.",
		func(s *geneve.TunnelStats) float64 { return float64(s.Held) }},
	{prometheus.Counter, "encap_changes_total",
		"How often a node was heard in the other encapsulation after a minute of silence.",
		func(s *geneve.TunnelStats) float64 { return float64(s.EncapChanges) }},
	{prometheus.Gauge, "trains", "1 if UDP_SEGMENT trains are sent to a node, 0 if single datagrams.",
		func(s *geneve.TunnelStats) float64 { return prometheus.Bit[s.Train] }},
	{prometheus.Counter, "trains_lost_total", "How often trains to a node were found lost.",
		func(s *geneve.TunnelStats) float64 { return float64(s.LostTrains) }},
	{prometheus.Counter, "trains_refused_total", "Trains to a node that the gateway's kernel refused.",
		func(s *geneve.TunnelStats) float64 { return float64(s.RefusedTrains) }},
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
		p.Family(f.kind, "node_"+f.name, f.help, "node")
		for i := range nodes {
			p.Add(f.value(&nodes[i].stats), nodes[i].name)
		}
	}
	p.Family(prometheus.Gauge, "node_encap", "What a node speaks; absent while nothing tells.", "encap", "node")
	for i := range nodes {
		if s := &nodes[i].stats; s.Encap != geneve.Auto {
			p.Add(1, s.Encap.String(), nodes[i].name)
		}
	}
	p.Family(prometheus.Gauge, "node_silence_seconds",
		"For how long nothing has come from a node; absent where its MAC address is not known.", "node")
	for i := range nodes {
		if s := &nodes[i].stats; s.MAC != nil {
			p.Add(s.Silence.Seconds(), nodes[i].name)
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
		{prometheus.Gauge, "last_handshake_seconds", "Unix time of the last handshake with the peer; 0 = none.",
			handshake},
		{prometheus.Counter, "received_bytes_total", "Bytes of WireGuard messages received from the peer.",
			float64(s.Received)},
		{prometheus.Counter, "sent_bytes_total", "Bytes of WireGuard messages sent to the peer.", float64(s.Sent)},
		{prometheus.Gauge, "trains", "1 if UDP_SEGMENT trains are sent to the peer, 0 if single datagrams.",
			prometheus.Bit[tunnel.Trains]},
		{prometheus.Counter, "trains_lost_total", "How often trains to the peer were found lost.",
			float64(tunnel.LostTrains)},
		{prometheus.Counter, "receive_pauses_total", "Pauses of a receiver after an error that the kernel reported.",
			float64(tunnel.ReceivePauses)},
	} {
		p.Family(f.kind, "wireguard_"+f.name, f.help, "peer")
		p.Add(f.value, name)
	}
	p.Family(prometheus.Counter, "wireguard_handshake_messages_total",
		"Messages that begin handshakes (initiation) and answer them.", "kind", "peer", "way")
	p.Count(tunnel.Talk.SentInitiations, "initiation", name, "sent")
	p.Count(tunnel.Talk.ReceivedInitiations, "initiation", name, "received")
	p.Count(tunnel.Talk.SentAnswers, "answer", name, "sent")
	p.Count(tunnel.Talk.ReceivedAnswers, "answer", name, "received")
}

// stages reports how long packets take at each stage of the path.
func (p *page) stages(tunnel *wg.Stats, of *path.Path) {
	out, in, sent := of.Outbound().Decided(), of.Inbound().Decided(), of.SentToNodes()
	p.Family(prometheus.Histogram, "stage_duration_seconds",
		"How long a batch of packets spends in a stage of its way; one in 256 packets tells.", "direction", "stage")
	p.durations(&out, "outbound", "decide")
	p.durations(&tunnel.Encrypt, "outbound", "encrypt")
	p.durations(&tunnel.Send, "outbound", "send")
	p.durations(&tunnel.Decrypt, "inbound", "decrypt")
	p.durations(&in, "inbound", "decide")
	p.durations(&sent, "inbound", "send")
}

// build reports the version of this build.
func (p *page) build(v control.Version) {
	p.Family(prometheus.Gauge, "build_info", "Which build of culvert this is; always 1.", "version", "revision",
		"modified", "goversion", "platform")
	p.Add(1, v.Version, v.Revision, strconv.FormatBool(v.Modified), v.Go, v.Platform)
}

// findings reports present findings by the cause that the log names.
func (p *page) findings(all []health.Finding) {
	p.Family(prometheus.Gauge, "fault",
		"1 for each fault that is known now, by cause and whom it concerns: a peer, node or address. The log has the sentence.", "cause", "of")
	for _, f := range all {
		if f.Cause.Level == health.Warning {
			p.Add(1, f.Cause.Name, f.Of)
		}
	}
}

func (p *page) check(peer string, found monitor.CheckStatus) {
	p.Family(prometheus.Gauge, "check_connected",
		"1 if the peer's gateway answers the connection check, 0 if not; absent where none is made.", "peer")
	if found.State != monitor.CheckOff {
		p.Add(prometheus.Bit[found.State == monitor.CheckConnected], peer)
	}
	p.Family(prometheus.Gauge, "check_rtt_seconds",
		"Time to the peer's gateway and back; absent while it does not answer.", "peer")
	if found.State == monitor.CheckConnected {
		p.Add(found.RTT.Seconds(), peer)
	}
	p.Family(prometheus.Counter, "check_pings_total",
		"Pings of the connection check: sent to the peer, answered by it, received from it and answered.",
		"peer", "ping")
	p.Count(found.Sent, peer, "sent")
	p.Count(found.Answered, peer, "answered")
	p.Count(found.Asked, peer, "received")
}

// paths reports the path MTUs found by probes.
func (p *page) paths(peer string, links map[string]nat.Link, known map[nat.Link]pathmtu.Result) {
	p.Family(prometheus.Gauge, "path_mtu_bytes",
		"Largest inner packet that passes to a node or the peer and back; absent while no probe has been answered.",
		"kind", "of")
	if r, ok := known[nat.Tunnel]; ok {
		p.Add(float64(r.Size), string(health.OfPeer), peer)
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if r, ok := known[links[name]]; ok {
			p.Add(float64(r.Size), string(health.OfNode), name)
		}
	}
}
