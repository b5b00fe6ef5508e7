// Package monitor watches a gateway. Once a second it reads the counters of the gateway's parts,
// and package health judges them. It probes the path MTU of each leg with package pathmtu, and the
// peer with Liqo's connection check. It writes its findings to the log, returns them to callers,
// and tells the engine the path MTUs.
package monitor

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"culvert/gateway/config"
	"culvert/gateway/health"
	"culvert/gateway/path"
	"culvert/gateway/procs"
	"culvert/gateway/wg"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
)

// A Monitor lets a health.Judge look at a gateway once a second, probes the other ends of its
// links, and logs the findings. It implements path.Local.
type Monitor struct {
	path    *path.Path
	current *config.Current
	log     *logrus.Entry
	check   *check
	paths   *paths

	exchange *exchange
	reach    atomic.Int32 // a Reach

	mu    sync.Mutex
	judge *health.Judge // +checklocks:mu
	links []Traffic     // +checklocks:mu
	peer  Traffic       // +checklocks:mu

	refusals refusals
	allowed  procs.Allowance // at the start
	progress progress

	// Only the goroutine that calls Look uses the rest.
	knocker  knocker
	private  wgkey.Key                      // at the last Look
	public   string                         // its public key, in base64
	rules    map[string]uint64              // packets of each rule that drops or rejects, at the last Look
	made     int64                          // the last handshake
	dropped  map[bool]map[nat.Reason]uint64 // packets inbound, or outbound, at the last Look
	presence []geneve.Presence              // by nat.Link; room for the next look
	nodes    []health.Node                  // likewise
}

// New makes the Monitor of the gateway whose path is p. deaf says that the gateway is not on the
// kernel's network, as in tests; then the kernel is not asked about addresses.
func New(p *path.Path, current *config.Current, log *logrus.Entry, deaf bool) *Monitor {
	c, _ := current.Get()
	own, peer := c.WireGuard.Role.TunnelAddresses()
	m := &Monitor{
		path: p, current: current, log: log, check: newCheck(own.V4, peer.V4, c.MTU),
		paths:    newPaths(p, current, c.MTU),
		exchange: &exchange{ends: ends{own.V4, peer.V4}, limit: rate.NewLimiter(exportsRate, exportsRate)},
		judge:    health.NewJudge(), knocker: knocker{deaf: deaf}, allowed: procs.Allowed(),
		rules:   make(map[string]uint64),
		dropped: map[bool]map[nat.Reason]uint64{false: {}, true: {}},
	}
	m.check.begin(c, time.Now())
	return m
}

// Close closes the sockets that Look opened. Look must not be called afterwards.
func (m *Monitor) Close() { m.knocker.close() }

// Answered implements path.Local.
func (m *Monitor) Answered(link nat.Link, packet []byte) bool { return m.paths.answered(link, packet) }

// Check implements path.Local.
func (m *Monitor) Check(packet []byte) (answer []byte, ok, mine bool) {
	if !m.check.mine(packet) {
		return nil, false, false
	}
	answer, ok = m.check.receive(packet, time.Now())
	return answer, ok, true
}

// IsCheck reports whether a packet to the tunnel address is a message of the connection check.
func (m *Monitor) IsCheck(packet []byte) bool { return m.check.mine(packet) }

// Connection returns the results of the connection check.
func (m *Monitor) Connection() CheckStatus { return m.check.found() }

// BeginCheck restarts the connection check with the settings of c.
func (m *Monitor) BeginCheck(c *config.Config) { m.check.begin(c, time.Now()) }

// Look observes everything and logs what has changed. One goroutine calls it once a second.
func (m *Monitor) Look(now time.Duration) {
	if nodes, _ := m.reaches(); !nodes {
		m.knocker.close()
		return
	}
	o := m.observe(now)
	m.mu.Lock()
	changes := m.judge.Look(now, o)
	m.mu.Unlock()
	m.logChanges(changes)
	m.knocker.tidy()
}

// LookAtProgress checks that the path handles the packets that arrive. It is called once a second.
func (m *Monitor) LookAtProgress(now time.Duration) {
	tunnel := m.path.WG.Stats()
	m.progress.look(now, m.path.Sockets(&tunnel))
}

// Fault names the part of the path that has stopped; "" = none.
func (m *Monitor) Fault(now time.Duration) string { return m.progress.fault(now) }

// ProbeTrains tests whether trains arrive. Look reports the result.
func (m *Monitor) ProbeTrains(now time.Duration) {
	nodes, peer := m.reaches()
	if nodes {
		m.path.Endpoint.ProbeTrains()
	}
	if peer {
		m.path.WG.ProbeTrains(now)
	}
}

// maxLines limits the lines logged in a second for one cause, because thousands of nodes may come
// or go at once.
const maxLines = 10

// logChanges logs what has changed.
func (m *Monitor) logChanges(changes []health.Finding) {
	lines := make(map[*health.Cause]int)
	for _, f := range changes {
		if lines[f.Cause]++; lines[f.Cause] > maxLines {
			continue
		}
		entry := m.log.WithFields(logrus.Fields{"cause": f.Cause.Name, string(f.Kind): f.Of})
		if f.Cause.Level == health.Warning {
			entry.Warn(f.Text)
		} else {
			entry.Info(f.Text)
		}
	}
	for c, n := range lines {
		if n > maxLines {
			m.log.WithFields(logrus.Fields{"cause": c.Name, "nodes": n - maxLines}).Info("more nodes of the same cause")
		}
	}
}

// Findings returns the present findings.
func (m *Monitor) Findings(now time.Duration) []health.Finding {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.judge.Findings(now)
}

// headersOfTCP is the size in bytes of the IPv4 and TCP headers without options.
const headersOfTCP = 40

// observe collects the Observation for the Judge. It knocks at each end that the Judge doubted at
// its last look.
func (m *Monitor) observe(now time.Duration) *health.Observation {
	c, links := m.current.Get()
	m.mu.Lock()
	doubtPeer, doubtful := m.judge.Doubtful()
	m.mu.Unlock()
	o := &health.Observation{
		Peer: m.seePeer(c), Nodes: m.seeNodes(c, links), Gateway: c.Geneve.GatewayAddress.First(),
		Port: c.Geneve.ListenPort,
		MSS:  int(c.MSSClamp), Fits: int(c.MTU) - headersOfTCP,
		Remote: func(a netip.Addr) bool { return remote(c, a) },
	}
	o.Paths = m.narrowPaths(c, o.Peer.Endpoint.Addr())
	tunnel := m.path.WG.Stats()
	for name, s := range m.path.Sockets(&tunnel) {
		from, port := "nodes", c.Geneve.ListenPort
		if name != "geneve" {
			from, port = "the peer", m.path.WG.Port()
		}
		o.Sockets = append(o.Sockets, health.Socket{Name: name, From: from, Port: port, Received: s.ReceivedMessages,
			Bytes:     s.ReceivedBytes,
			Overflows: s.Overflows, Waits: s.Waits && !s.OverflowsKnown})
	}
	o.CPU = health.CPU{Used: procs.Used(), Procs: procs.Count(), CPUs: m.allowed.CPUs, Quota: m.allowed.Quota}
	_, reachesPeer := m.reaches()
	if o.Peer.Handshake != m.made && reachesPeer {
		m.made = o.Peer.Handshake
		m.path.WG.Hello()
	}
	if doubtPeer && reachesPeer && o.Peer.Endpoint.IsValid() {
		o.Peer.Knock = m.knocker.knock(o.Peer.Endpoint, now, peerKnocks)
	}
	for _, name := range doubtful {
		if i := slices.IndexFunc(o.Nodes, func(n health.Node) bool { return n.Name == name }); i >= 0 {
			o.Nodes[i].Knock = m.knocker.knock(netip.AddrPortFrom(o.Nodes[i].Underlay, c.Geneve.ListenPort),
				now, nodeKnocks)
		}
	}
	m.path.Endpoint.Signs(func(s *geneve.Sign) {
		m.refusedSign(s)
		if sign, ok := signOf(s); ok {
			if s.Reason != geneve.UnknownNode {
				sign.Node = m.current.NodeName(nat.Link(s.Tunnel))
			}
			o.Signs = append(o.Signs, sign)
		}
	})
	m.path.WG.Strangers(func(r wg.Reason, from netip.Addr) {
		m.refusedStranger(r, from)
		if kind, ok := strangerKinds[r]; ok {
			o.Strangers = append(o.Strangers, health.Stranger{Kind: kind, Address: from})
		}
	})
	stats, pings := m.path.Engine.Stats(), m.pings()
	o.Peer.ReceivedPackets, o.Peer.Pings = stats.Inbound.Received, health.Pings{RTT: pings.RTT,
		Requests: pings.Requests, Lost: pings.Lost, Sent: pings.Sent, Missed: pings.Missed}
	if m.passes(&stats, m.presence, pings, now); m.pingDue(now, o.Peer.Handshake) {
		m.path.WG.Ping(path.Uptime()) // now may be long ago if there was much to observe
	}
	o.Drops = append(m.drops(c, &stats.Outbound, m.path.Outbound(), false), m.drops(c, &stats.Inbound,
		m.path.Inbound(), true)...)
	return o
}

var strangerKinds = map[wg.Reason]health.StrangerKind{
	wg.NotWireGuard: health.StrangerWithNoise, wg.BadMAC1: health.StrangerWithoutKey,
	wg.HandshakeRate: health.StrangerTooFast, wg.StrangerData: health.StrangerWithData,
}

func (m *Monitor) seePeer(c *config.Config) health.Peer {
	if k := c.WireGuard.PrivateKey; k != m.private || m.public == "" {
		m.private, m.public = k, k.Public().Base64() // costs as much as a handshake
	}
	p := health.Peer{Name: c.Peer, Liqo: c.Liqo, Peering: c.Peering, Role: c.WireGuard.Role.String(),
		Configured: c.WireGuard.Endpoint,
		ListenPort: m.path.WG.Port(), PublicKey: m.public, Unknown: c.WireGuard.PeerPublicKey == (wgkey.Key{}),
		Initiator: m.path.WG.Initiator(), Outdated: m.path.WG.Outdated()}
	s, err := m.path.WG.PeerStats()
	if err != nil {
		return p // it is being closed
	}
	p.Endpoint, _ = netip.ParseAddrPort(s.Endpoint) // "" before there is one
	p.NameError, p.ReceivedBytes = s.Unresolved, s.Received
	if !s.LastHandshake.IsZero() {
		p.Handshake = s.LastHandshake.UnixNano()
	}
	stats := m.path.WG.Stats()
	p.TrainsLost = !stats.Trains && slices.ContainsFunc(stats.Sockets, func(s udp.Stats) bool { return s.GSO })
	talk := stats.Talk
	p.SentHandshakes, p.ReceivedHandshakes = talk.SentInitiations, talk.ReceivedInitiations
	p.SentAnswers, p.ReceivedAnswers = talk.SentAnswers, talk.ReceivedAnswers
	return p
}

// seeNodes returns what is known of each node. The result is valid until the next call.
func (m *Monitor) seeNodes(c *config.Config, links config.Links) []health.Node {
	clear(m.presence)
	m.path.Endpoint.Presences(func(p geneve.Presence) {
		for len(m.presence) <= int(p.ID) {
			m.presence = append(m.presence, geneve.Presence{})
		}
		m.presence[p.ID] = p
	})
	m.nodes = m.nodes[:0]
	for i := range c.Geneve.Nodes {
		n := &c.Geneve.Nodes[i]
		p := geneve.Presence{}
		if link := int(links.ByName[n.Name]); link < len(m.presence) {
			p = m.presence[link]
		}
		local := m.path.Delivered(links.ByName[n.Name]) // each is answered
		probes, answers := m.paths.counts(links.ByName[n.Name])
		m.nodes = append(m.nodes, health.Node{
			Name: n.Name, Underlay: n.Underlay, Address: n.Address.First(), VNI: uint32(n.VNI),
			Encap: encapName(n.Encap),
			ARP:   p.ARP, Answered: p.Answered, Asked: p.Asked, Known: p.Known, Silence: p.Silence,
			Received: p.ReceivedPackets, Sent: p.SentPackets, Requests: p.Requests, Lost: p.Lost,
			LocalReceived: local + answers, LocalSent: local + probes, TrainsLost: p.TrainsLost,
		})
	}
	return m.nodes
}

func encapName(e geneve.Encap) string {
	if e == geneve.Auto {
		return "the one it is known to speak"
	}
	return e.String()
}

// signOf returns the meaning of s, and false if it has none.
func signOf(s *geneve.Sign) (health.Sign, bool) {
	sign := health.Sign{Source: s.Source, VNI: uint32(s.VNI)}
	switch {
	case s.Reason == geneve.UnknownNode:
		sign.Kind = health.SignUnknownNode
	case s.Reason == geneve.WrongEncap:
		sign.Kind = health.SignEncap
	case s.Reason == geneve.WrongInner:
		sign.Kind = health.SignInner
	case s.Reason == geneve.Accepted:
		sign.Kind, sign.Address = health.SignSender, s.Sender
	case (s.Reason == geneve.OtherARP || s.Reason == geneve.OtherND) && s.Target.IsValid():
		sign.Kind, sign.Address = health.SignTarget, s.Target
	default:
		return sign, false
	}
	return sign, true
}

// narrowPaths returns the paths that carry less than the configured MTU.
func (m *Monitor) narrowPaths(c *config.Config, peer netip.Addr) (all []health.Path) {
	for link, r := range m.paths.narrow() {
		x := health.Path{Kind: health.OfPeer, Of: c.Peer, To: peer, Size: r.Size, Configured: int(c.MTU),
			Way: r.Way.String()}
		x.Wire = int(c.MTU.WireGuardWireMTU(peer.Is6()))
		if link != nat.Tunnel {
			name := m.current.NodeName(link)
			i := slices.IndexFunc(c.Geneve.Nodes, func(n config.Node) bool { return n.Name == name })
			if i < 0 {
				continue
			}
			x.Kind, x.Of, x.To = health.OfNode, name, c.Geneve.Nodes[i].Underlay
			x.Wire = int(c.MTU.GeneveWireMTU(x.To.Is6()))
		}
		all = append(all, x)
	}
	return all
}
