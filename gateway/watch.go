package gateway

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/health"
	"culvert/gateway/wg"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
)

// watch has a Judge look at the gateway once a second, and tells what it finds.
type watch struct {
	g *Gateway

	mu    sync.Mutex
	judge *health.Judge // +checklocks:mu
	links []traffic     // +checklocks:mu
	peer  traffic       // +checklocks:mu

	refusals refusals

	// The rest is for the goroutine that calls look.
	knocker knocker
	private wgkey.Key         // at the last look
	public  string            // that belongs to it
	rules   map[string]uint64 // packets of each rule that refuses, at the last look
	made    int64             // the last handshake
	shown   []geneve.Presence // by nat.Link; room for the next look
	nodes   []health.Node     // likewise
}

func newWatch(g *Gateway) *watch {
	return &watch{g: g, judge: health.NewJudge(), knocker: knocker{deaf: g.udp.Open != nil}, rules: make(map[string]uint64)}
}

func (w *watch) look(now time.Duration) {
	o := w.observe(now)
	w.mu.Lock()
	changes := w.judge.Look(now, o)
	w.mu.Unlock()
	w.tell(changes)
	w.knocker.tidy()
}

// maxLines is how many lines a second are logged of one cause: thousands of nodes may come
// or go at once.
const maxLines = 10

// tell logs what has changed.
func (w *watch) tell(changes []health.Finding) {
	lines := make(map[*health.Cause]int)
	for _, f := range changes {
		if lines[f.Cause]++; lines[f.Cause] > maxLines {
			continue
		}
		entry := w.g.log.WithFields(logrus.Fields{"cause": f.Cause.Name, string(f.Kind): f.Of})
		if f.Cause.Level == health.Warning {
			entry.Warn(f.Text)
		} else {
			entry.Info(f.Text)
		}
	}
	for c, n := range lines {
		if n > maxLines {
			w.g.log.WithFields(logrus.Fields{"cause": c.Name, "nodes": n - maxLines}).Info("more nodes of the same cause")
		}
	}
}

// findings returns what is the case.
func (w *watch) findings(now time.Duration) []health.Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judge.Findings(now)
}

// headersOfTCP is the size of those of IPv4 and TCP without options.
const headersOfTCP = 40

// observe reads what a Judge looks at.
func (w *watch) observe(now time.Duration) *health.Observation {
	g := w.g
	g.mu.Lock()
	c, links := g.config, g.links
	g.mu.Unlock()
	w.mu.Lock()
	doubtPeer, doubtful := w.judge.Doubtful()
	w.mu.Unlock()
	o := &health.Observation{
		Peer: w.seePeer(c), Nodes: w.presences(c, links), Gateway: c.Geneve.GatewayAddress.First(), Port: c.Geneve.ListenPort,
		MSS: int(c.MSSClamp), Fits: int(c.MTU) - headersOfTCP,
		Remote: func(a netip.Addr) bool { return remote(c, a) },
	}
	o.Paths = w.paths(c, o.Peer.Endpoint.Addr())
	tunnel := g.wg.Stats()
	for name, s := range g.sockets(&tunnel) {
		port := c.Geneve.ListenPort
		if name != "geneve" {
			port = g.wg.Port()
		}
		o.Sockets = append(o.Sockets, health.Socket{Name: name, Port: port, Received: s.ReceivedMessages, Overflows: s.Overflows})
	}
	if o.Peer.Handshake != w.made {
		w.made = o.Peer.Handshake
		g.wg.Hello()
	}
	if doubtPeer && o.Peer.Endpoint.IsValid() {
		o.Peer.Knock = w.knocker.knock(o.Peer.Endpoint, now, peerKnocks)
	}
	for _, name := range doubtful {
		if i := slices.IndexFunc(o.Nodes, func(n health.Node) bool { return n.Name == name }); i >= 0 {
			o.Nodes[i].Knock = w.knocker.knock(netip.AddrPortFrom(o.Nodes[i].Underlay, c.Geneve.ListenPort), now, nodeKnocks)
		}
	}
	g.endpoint.Signs(func(s *geneve.Sign) {
		w.refusedSign(s)
		if sign, ok := signOf(s); ok {
			if s.Reason != geneve.UnknownNode {
				sign.Node = g.nodeName(nat.Link(s.Tunnel))
			}
			o.Signs = append(o.Signs, sign)
		}
	})
	g.wg.Strangers(func(r wg.Reason, from netip.Addr) {
		w.refusedStranger(r, from)
		if kind, ok := strangerKinds[r]; ok {
			o.Strangers = append(o.Strangers, health.Stranger{Kind: kind, Address: from})
		}
	})
	stats, pings := g.engine.Stats(), g.pings()
	o.Peer.ReceivedPackets, o.Peer.Pings = stats.Inbound.Received, health.Pings{RTT: pings.RTT, Requests: pings.Requests, Lost: pings.Lost, Sent: pings.Sent, Missed: pings.Missed}
	if w.passes(&stats, w.shown, pings, now); w.pingDue(now, o.Peer.Handshake) {
		g.wg.Ping(time.Since(started)) // now is long ago, where much was looked at
	}
	o.Drops = append(w.drops(c, &stats.Outbound, &g.out.counters, false), w.drops(c, &stats.Inbound, &g.in.counters, true)...)
	return o
}

var strangerKinds = map[wg.Reason]health.StrangerKind{
	wg.NotWireGuard: health.StrangerWithNoise, wg.BadMAC1: health.StrangerWithoutKey,
	wg.HandshakeRate: health.StrangerTooFast, wg.StrangerData: health.StrangerWithData,
}

func (w *watch) seePeer(c *config.Config) health.Peer {
	if k := c.WireGuard.PrivateKey; k != w.private || w.public == "" {
		w.private, w.public = k, k.Public().Base64() // costs as much as a handshake
	}
	p := health.Peer{Name: c.Peer, Role: c.WireGuard.Role.String(), Configured: c.WireGuard.Endpoint,
		ListenPort: w.g.wg.Port(), PublicKey: w.public, Unknown: c.WireGuard.PeerPublicKey == (wgkey.Key{}), Initiator: w.g.wg.Initiator()}
	s, err := w.g.wg.PeerStats()
	if err != nil {
		return p // it is being closed
	}
	p.Endpoint, _ = netip.ParseAddrPort(s.Endpoint) // "" before there is one
	p.NameError, p.ReceivedBytes = s.Unresolved, s.Received
	if !s.LastHandshake.IsZero() {
		p.Handshake = s.LastHandshake.UnixNano()
	}
	stats := w.g.wg.Stats()
	p.TrainsLost = !stats.Trains && slices.ContainsFunc(stats.Sockets, func(s udp.Stats) bool { return s.GSO })
	talk := stats.Talk
	p.SentHandshakes, p.ReceivedHandshakes = talk.SentInitiations, talk.ReceivedInitiations
	p.SentAnswers, p.ReceivedAnswers = talk.SentAnswers, talk.ReceivedAnswers
	return p
}

// presences returns what the nodes show of themselves, until it is called again.
func (w *watch) presences(c *config.Config, links config.Links) []health.Node {
	clear(w.shown)
	w.g.endpoint.Presences(func(p geneve.Presence) {
		for len(w.shown) <= int(p.ID) {
			w.shown = append(w.shown, geneve.Presence{})
		}
		w.shown[p.ID] = p
	})
	w.nodes = w.nodes[:0]
	for i := range c.Geneve.Nodes {
		n := &c.Geneve.Nodes[i]
		p := geneve.Presence{}
		if link := int(links.ByName[n.Name]); link < len(w.shown) {
			p = w.shown[link]
		}
		local := w.g.out.local.of(links.ByName[n.Name]) // each is answered
		probes, answers := w.g.paths.counts(links.ByName[n.Name])
		w.nodes = append(w.nodes, health.Node{
			Name: n.Name, Underlay: n.Underlay, Address: n.Address.First(), VNI: uint32(n.VNI), Encap: encapName(n.Encap),
			ARP: p.ARP, Answered: p.Answered, Asked: p.Asked, Known: p.Known, Silence: p.Silence,
			Received: p.ReceivedPackets, Sent: p.SentPackets, Requests: p.Requests, Lost: p.Lost,
			LocalReceived: local + answers, LocalSent: local + probes, TrainsLost: p.TrainsLost,
		})
	}
	return w.nodes
}

func encapName(e geneve.Encap) string {
	if e == geneve.Auto {
		return "the one it is known to speak"
	}
	return e.String()
}

// signOf returns what s means, unless it means nothing.
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

// paths returns the narrow ones.
func (w *watch) paths(c *config.Config, peer netip.Addr) (all []health.Path) {
	for link, r := range w.g.paths.narrow() {
		x := health.Path{Kind: health.OfPeer, Of: c.Peer, To: peer, Size: r.Size, Configured: int(c.MTU), Way: r.Way.String()}
		x.Wire = int(c.MTU.WireGuardWireMTU(peer.Is6()))
		if link != nat.Tunnel {
			name := w.g.nodeName(link)
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
