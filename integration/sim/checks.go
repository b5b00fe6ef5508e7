package sim

import (
	"fmt"
	"testing/synctest"
	"time"

	"culvert/gateway/path"
	"culvert/geneve"
	"culvert/nat"
)

const (
	// recovery is how long after the last fault everything works again: WireGuard notices a dead
	// session after 15 s, and repeats a lost handshake after 5 s, each with some jitter (WireGuard
	// paper, Sections 6.2 and 6.4).
	recovery = 25 * time.Second
	// patience is how long an answer may take when nothing is wrong.
	patience = 8 * time.Second
)

// recovery is how long all may take to work again.
func (w *world) recovery() time.Duration {
	if w.sides[0].elects() || w.sides[1].elects() {
		return recovery + nobodyTime + followTime
	}
	return recovery
}

// judgeRecovery has each connection go on, and new ones of each kind begin.
func (w *world) judgeRecovery(calm time.Duration) {
	w.traffic.slow = 5 * time.Second // less than patience
	w.run(calm + w.recovery())
	var waiting []*conn
	before := make(map[*conn]int)
	for _, c := range w.traffic.conns {
		if c.over == "" {
			waiting = append(waiting, c)
			before[c] = c.answered
		}
	}
	for _, s := range w.sides {
		for k := range kinds {
			waiting = append(waiting, w.traffic.begin(k, s))
		}
	}
	if w.traffic.slow = 2 * time.Second; w.sides[0].config.MaxConnections == fewConnections {
		w.traffic.slow = time.Second // each packet asks four others whether they make room
	}
	w.run(w.now() + patience)
	for _, c := range waiting {
		if c.over == "" && c.answered == before[c] {
			w.fail("%v: no answer for %v, %v after the last fault; %s", c, patience, w.now()-calm, w.table())
		}
	}
}

// table says how full the tables of connections are.
func (w *world) table() (text string) {
	for _, p := range w.pods() {
		stats := p.engine().Stats()
		text += fmt.Sprintf("%s has %d of %d connections, %d of them unanswered. ", p.name, stats.Connections,
			p.config.MaxConnections, stats.Unreplied)
		for i, d := range []*nat.Direction{&stats.Outbound, &stats.Inbound} {
			for _, r := range nat.Reasons() {
				if n := d.Dropped[r]; n > 0 {
					text += fmt.Sprintf("%s %v: %d. ", []string{"out", "in"}[i], r, n)
				}
			}
		}
	}
	return text
}

// judgeLedgers has everybody be silent, and looks whether each gateway knows what became of each
// packet.
func (w *world) judgeLedgers() {
	w.traffic.closing = true
	for _, c := range w.traffic.conns {
		c.end("the end")
	}
	w.run(w.now() + 3*time.Second)
	synctest.Wait()
	for _, p := range w.pods() {
		p.judgeLedger()
	}
}

func (p *pod) judgeLedger() {
	balance := func(what string, in, out uint64) {
		if in != out {
			p.w.fail("%s: the ledger is not balanced: %s: %d came, and there are reasons for %d", p.config.Cluster,
				what, in, out)
		}
	}
	stats, tunnels := p.engine().Stats(), p.endpoint().Stats()
	for name, d := range map[string]*nat.Direction{"outbound": &stats.Outbound, "inbound": &stats.Inbound} {
		balance(name+" in nat", d.Received, d.Forwarded+d.Delivered+d.Held+sum(d.Dropped[:]))
	}
	var received, sent uint64
	for _, link := range p.links().ByName {
		if t, ok := p.endpoint().TunnelStats(uint16(link)); ok {
			received += t.ReceivedPackets
			sent += t.SentPackets
		}
	}
	taken, _ := p.own.nodes.counts()
	outbound, inbound := p.path().Outbound(), p.path().Inbound()
	balance("datagrams of nodes", taken, outbound.Dropped(path.DropStandby)+received+tunnels.ARPReceived+
		tunnels.NDReceived+sum(tunnels.Drops[1:geneve.UnknownTunnel]))
	if p.w.traffic.cutting { // nat counts the pieces
		received = max(received, stats.Outbound.Received)
	}
	balance("packets of nodes", received, stats.Outbound.Received)

	if p.vote != nil { // a role takes away what is in WireGuard
		return
	}
	// what path.DropReason counts, but what is dropped before it is to be sent
	lost := func(way *path.Counters) uint64 {
		return way.Dropped(path.DropLocalQueueFull) + way.Dropped(path.DropOutput)
	}
	encrypted, decrypted := p.wg().Turnover()
	given, back := encrypted.Given, encrypted.Returned
	toPeer, between := stats.Outbound.Forwarded+outbound.Generated(), uint64(0)
	// the destination of IPv6 has no checksum that a gateway looks at: it may be a pod at another
	// node
	if p.w.traffic.garbled {
		between = toPeer - min(given+lost(outbound), toPeer)
	}
	balance("packets for the peer", toPeer, given+lost(outbound)+between)
	_, data := p.own.peer.counts()
	balance("messages to the peer", data, back)
	if back = decrypted.Returned; p.own.relay != nil { // what the gateway before has decrypted for this one
		back += p.own.relay.packetsArrived.Load()
	}
	back -= p.own.lent
	if p.w.traffic.cutting {
		back = max(back, stats.Inbound.Received)
	}
	balance("packets of the peer", back, stats.Inbound.Received)
	balance("packets for nodes", between+stats.Inbound.Forwarded+inbound.Generated(),
		sent+uint64(tunnels.Held)+sum(tunnels.Drops[geneve.UnknownTunnel:])+lost(inbound))

	if stats.Connections > p.config.MaxConnections || tunnels.Held > 256 {
		p.w.fail("%s: %d connections, %d packets held", p.config.Cluster, stats.Connections, tunnels.Held)
	}
}

func sum(all []uint64) (n uint64) {
	for _, x := range all {
		n += x
	}
	return n
}
