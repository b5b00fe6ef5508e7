package inspect

import (
	"bytes"
	"encoding/hex"
	"os"
	"runtime/metrics"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/gateway/monitor"
	"culvert/gateway/path"
	"culvert/gateway/pathmtu"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
)

// silentTime is the silence after which a node's state is "silent". An answer to an ARP request
// ends the silence, too. The finding node-silent comes earlier: see package health.
const silentTime = time.Minute

// Status implements control.Source. It holds each lock of the packet path only for one copy.
func (src *Source) Status() control.Status {
	c, links := src.Current.Get()
	stats, tunnels, tunnel := src.Path.Engine.Stats(), src.Path.Endpoint.Stats(), src.Path.WG.Stats()
	up, known := path.Uptime(), src.Monitor.KnownPaths()
	st := control.Status{
		Cluster: c.Cluster, Peer: c.Peer, Role: c.WireGuard.Role.String(), MTU: int(c.MTU),
		Version: control.ReadVersion(), PID: os.Getpid(), Started: time.Now().Add(-up).Round(time.Second),
		UptimeSeconds: seconds(up),
		Findings:      src.findingStatus(),
		Tunnel:        src.tunnelStatus(c, &tunnel, known[nat.Tunnel]),
		Nodes:         src.nodeStatus(c, links, known, path.Uptime()),
		Table: control.Table{
			Connections: stats.Connections, Unreplied: stats.Unreplied, Max: stats.MaxConnections,
			Pressed: stats.Pressed,
			Ports:   stats.Ports, BusiestPorts: stats.BusiestPorts, BusiestPortsMax: stats.BusiestPortsMax,
			Created: stats.Created, Restored: stats.Restored, Expired: stats.Expired, Evicted: stats.Evicted,
			EarlyDropped: stats.EarlyDropped, Deleted: stats.Deleted,
		},
		Outbound: trafficStatus(&stats.Outbound), Inbound: trafficStatus(&stats.Inbound),
		Refused: src.Monitor.Refused(),
		Sockets: make(map[string]control.Socket),
		Memory:  src.memoryStatus(),
	}
	if c.File != (config.File{}) {
		st.ConfigFile, st.ConfigSum = c.File.Path, hex.EncodeToString(c.File.Sum[:])
	}
	if c.Admit == config.AdmitExports {
		st.Admission = &control.Admission{Exports: len(c.Exports), Services: len(c.Services)}
	}
	if src.Teacher != nil {
		r := src.Teacher.Resources()
		st.Resources = &r
	}
	if src.Elector != nil {
		r := src.Elector.Replica()
		st.Replica = &r
	}
	if src.Replication != nil {
		r := src.Replication()
		st.Replication = &r
	}
	drops := src.drops(&stats, &tunnels, &tunnel)
	st.Outbound.Drops, st.Inbound.Drops = src.dropRates.of(drops, path.Uptime(), configuredBy(c))
	for name, socket := range src.Path.Sockets(&tunnel) {
		st.Sockets[name] = socketStatus(&socket)
	}
	return st
}

// seconds returns d in seconds, rounded to the millisecond.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// findingStatus returns the present findings as the log last reported them.
func (src *Source) findingStatus() []control.Finding {
	list := []control.Finding{}
	for _, f := range src.Monitor.Findings(path.Uptime()) {
		list = append(list, control.Finding{Level: f.Cause.Level.String(), Cause: f.Cause.Name, Kind: string(f.Kind),
			Of: f.Of, Text: f.Text})
	}
	return list
}

func (src *Source) tunnelStatus(c *config.Config, s *wg.Stats, found pathmtu.Result) control.Tunnel {
	t := control.Tunnel{State: "down", ListenPort: int(src.Path.WG.Port()),
		PublicKey: c.WireGuard.PrivateKey.Public().Base64(),
		Preshared: !c.WireGuard.PresharedKey.IsZero(),
		Trains:    s.Trains, TrainsLost: s.LostTrains, Path: pathStatus(c, found), Configured: c.WireGuard.Endpoint}
	t.Leg = src.Monitor.Leg(nat.Tunnel, path.Uptime())
	if f := src.Monitor.Connection(); f.State != monitor.CheckOff {
		t.Check = &control.Check{State: f.State.String(), Sent: f.Sent, Answered: f.Answered, Asked: f.Asked}
	}
	p, err := src.Path.WG.PeerStats()
	if err != nil {
		return t // it is being closed
	}
	t.Endpoint, t.ReceivedBytes, t.SentBytes = p.Endpoint, p.Received, p.Sent
	if !p.LastHandshake.IsZero() {
		age := time.Since(p.LastHandshake)
		ageSeconds := seconds(age)
		t.LastHandshake, t.HandshakeSeconds = &p.LastHandshake, &ageSeconds
		t.State = "stale"
		if age < wg.SessionLifetime {
			t.State = "up"
		}
	}
	return t
}

func (src *Source) nodeStatus(c *config.Config, links config.Links, known map[nat.Link]pathmtu.Result,
	now time.Duration) []control.Node {
	nodes := make([]control.Node, 0, len(c.Geneve.Nodes))
	for _, n := range c.Geneve.Nodes {
		s, ok := src.Path.Endpoint.TunnelStats(uint16(links.ByName[n.Name]))
		if !ok {
			continue // removed meanwhile
		}
		node := control.Node{
			Leg:  src.Monitor.Leg(links.ByName[n.Name], now),
			Name: n.Name, State: "unresolved", Underlay: n.Underlay, Address: n.Address.First(), VNI: uint32(n.VNI),
			Addresses:       slices.Collect(n.Address.All()),
			Encap:           s.Encap.String(),
			PodCIDRs:        n.PodCIDRs,
			ReceivedPackets: s.ReceivedPackets, ReceivedBytes: s.ReceivedBytes, SentPackets: s.SentPackets,
			SentBytes:   s.SentBytes,
			HeldPackets: s.Held, Trains: s.Train, TrainsLost: s.LostTrains,
			Path: pathStatus(c, known[links.ByName[n.Name]]),
		}
		switch {
		case s.MAC != nil:
			silence := seconds(s.Silence)
			node.MAC, node.SilenceSeconds, node.State = s.MAC.String(), &silence, "up"
			if s.Silence > silentTime {
				node.State = "silent"
			}
		case n.Inner == geneve.IP && s.ReceivedPackets > 0: // it has no ARP
			node.State = "up"
		case n.Inner == geneve.IP:
			node.State = "silent"
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func pathStatus(c *config.Config, r pathmtu.Result) (p control.Path) {
	if r.Known {
		p.MTU, p.OneWay = r.Size, r.OneWay
	}
	if r.Known && r.Size < int(c.MTU) {
		p.Narrow = r.Way.String()
	}
	return p
}

func trafficStatus(d *nat.Direction) control.Traffic {
	return control.Traffic{Received: d.Received, Forwarded: d.Forwarded, Delivered: d.Delivered, Untracked: d.Untracked,
		Asymmetric: d.Asymmetric,
		Dropped:    d.DroppedInAll()}
}

func socketStatus(s *udp.Stats) control.Socket {
	socket := control.Socket{
		ReceivedBytes: s.ReceivedBytes, SentBytes: s.SentBytes, ReceiveBuffer: s.ReceiveBuffer,
		SendBuffer: s.SendBuffer,
		GRO:        s.GRO, GSO: s.GSO, RefusedTrains: s.RefusedTrains,
	}
	if s.OverflowsKnown {
		socket.Overflows = &s.Overflows
	}
	for r, n := range s.SendDrops {
		if n > 0 {
			if socket.SendDrops == nil {
				socket.SendDrops = make(map[string]uint64)
			}
			socket.SendDrops[udp.Reason(r).String()] = n
		}
	}
	return socket
}

// memoryStatus reads only what does not stop the world, unlike runtime.ReadMemStats.
func (src *Source) memoryStatus() control.Memory {
	m := control.Memory{HeapLimit: src.Heap, Resident: resident()}
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() == metrics.KindUint64 {
		m.Heap = sample[0].Value.Uint64()
	}
	return m
}

// resident returns the resident memory of this process in bytes; 0 is unknown.
func resident() uint64 {
	text, err := os.ReadFile("/proc/self/statm") // proc(5): sizes in pages, the second is resident
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(string(fields[1]), 10, 64)
	return pages * uint64(os.Getpagesize())
}

// A dropKey names a counter of dropped packets.
type dropKey struct{ direction, reason string }

// drops returns each counter of dropped packets.
func (src *Source) drops(s *nat.Stats, tunnels *geneve.Stats, tunnel *wg.Stats) map[dropKey]uint64 {
	all := make(map[dropKey]uint64)
	src.Path.EachDrop(s, tunnels, tunnel, func(direction, reason string, packets uint64) {
		all[dropKey{direction, reason}] += packets
	})
	return all
}

func configuredBy(c *config.Config) health.By {
	switch {
	case c.Liqo:
		return health.ByLiqo
	case c.Peering:
		return health.ByPeering
	}
	return health.ByFile
}

// dropRates keeps earlier samples of the drop counters, for rates.
type dropRates struct {
	mu           sync.Mutex
	older, newer dropSample // +checklocks:mu
}

type dropSample struct {
	at    time.Duration
	drops map[dropKey]uint64
}

// rateInterval is the least interval of a rate; the longest is twice that.
const rateInterval = 10 * time.Second

// note takes a sample every rateInterval.
func (r *dropRates) note(now time.Duration, drops func() map[dropKey]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newer.drops == nil || now-r.newer.at >= rateInterval {
		r.older, r.newer = r.newer, dropSample{now, drops()}
	}
}

// of returns the drops with rates, most packets first. by selects the words of what they mean.
func (r *dropRates) of(drops map[dropKey]uint64, now time.Duration, by health.By) (outbound, inbound []control.Drop) {
	r.mu.Lock()
	since := r.older
	if since.drops == nil {
		since = r.newer // the start
	}
	r.mu.Unlock()
	outbound, inbound = []control.Drop{}, []control.Drop{}
	for key, packets := range drops {
		if packets == 0 {
			continue
		}
		means, remedy := health.Explain(key.reason, by)
		d := control.Drop{Reason: key.reason, Packets: packets, Means: means, Remedy: remedy}
		d.Rate = float64(packets-min(since.drops[key], packets)) / max(now-since.at, time.Second).Seconds()
		if key.direction == "outbound" {
			outbound = append(outbound, d)
		} else {
			inbound = append(inbound, d)
		}
	}
	for _, list := range [][]control.Drop{outbound, inbound} {
		sort.Slice(list, func(i, j int) bool {
			a, b := &list[i], &list[j]
			return a.Packets > b.Packets || a.Packets == b.Packets && a.Reason < b.Reason
		})
	}
	return outbound, inbound
}
