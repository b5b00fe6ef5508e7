package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/path"
	"culvert/gateway/role"
)

// replicas are what the two pods of a side share.
type replicas struct {
	api     *apiServer
	lines   *lines
	service netip.AddrPort // leads to the pod that has the label
	ahead   *pod           // that one, where the service knows it
	changes int            // of the label

	forwarded time.Duration // when a pod was last seen to forward
	apart     time.Duration // when they were last seen not to forward both, or to have an excuse
	of        [2]*pod       // who had the label then, and at the peer's
	told      time.Duration // when not both forwarded, or the one without the Lease could not be told who has it
	double    int           // the first of the world's losses since both forward, from 1 on
	barred    time.Duration // when a gateway that has died since, or is cut off, last wrote the Lease
	holders   time.Duration // when not both were seen to have the Lease
	deleted   time.Duration // when the Lease was
	alone     time.Duration // when something was last in the way of a copy
}

// The bounds of docs/standby.md, with the times of this election.
const (
	// nobodyTime is how long nobody forwards although a pod could, and after a pod that cannot
	// forward any more has last renewed the Lease.
	nobodyTime = leaseTime + 2*22*retryTime/10 + 2*time.Second
	// bothTime is how long two pods forward: nodes follow, a handshake that is lost once, the
	// patience, and a look at it.
	bothTime = followTime + handshakeTime + peerPatience + 200*time.Millisecond

	// toldTime is how long two pods forward where the one without the Lease can read who has it, or
	// can be told: a request without an answer, and the time until the next one.
	toldTime = 2 * time.Second

	// copyTime is how long a standby takes to follow a source that it had lost, and copyLag how old
	// its copy may be then.
	copyTime, copyLag = 8 * time.Second, 2 * time.Second

	followTime    = time.Second
	handshakeTime = 5 * time.Second
	watchTime     = 100 * time.Millisecond
)

func (s *side) elects() bool { return s.replicas != nil }

// replicate gives a side a second pod, and an election.
func (s *side) replicate() {
	s.config.Elected = true
	s.config.ConnectionCheck = config.ConnectionCheck{Port: config.LiqoConnectionCheck.Port, Interval: time.Second,
		Threshold: int(peerPatience / time.Second)}
	second := &pod{side: s, w: s.w, number: 1, ports: make(map[uint16]*port)}
	c := *s.config
	second.config = &c
	s.pods = append(s.pods, second)
	s.replicas = &replicas{lines: newLines(),
		service: netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(200 + s.index)}), wanPort)}
	s.api = newAPIServer(func(pod string) { s.w.after(0, func() { s.labelled(pod) }) })
	for i, p := range s.pods {
		p.name = s.config.Cluster + "-" + string(rune('a'+i))
		s.api.add(p.name, p.line().Addr().String())
	}
	second.moveTo(0)
	s.w.listen(s.service, func(from netip.AddrPort, data []byte) {
		if p := s.ahead; p != nil {
			s.w.mu.Lock()
			receive := s.w.receivers[*p.wan.Load()]
			s.w.mu.Unlock()
			if receive != nil {
				receive(from, data)
			}
		}
	})
}

// labelled has the nodes and the service follow a pod, each after its time.
func (s *side) labelled(name string) {
	p := s.pods[slices.IndexFunc(s.pods, func(p *pod) bool { return p.name == name })]
	s.changes++
	change := s.changes
	s.w.logEvent("%s has the label", name)
	follow := func(do func()) {
		s.w.after(time.Duration(s.w.traffic.chance.Int64N(int64(followTime))), func() {
			if s.changes == change {
				do()
			}
		})
	}
	follow(func() { s.ahead = p })
	for _, n := range s.nodes {
		follow(func() { n.towards = p })
	}
}

// became notes the role of a pod's gateway.
func (v *vote) became(to role.Role) {
	s, w, was := v.pod.side, v.pod.w, v.role
	s.extend()
	if v.pod.vote != v || v.pod.stop == nil || to == was {
		return
	}
	s.sample()
	w.logEvent("%s is %v", v.pod.name, to)
	if to.Forwards() != was.Forwards() {
		s.alone = w.now()
	}
	if v.role = to; to.Forwards() && !was.Forwards() {
		v.judgeTable()
		w.losses = append(w.losses, loss{from: v.due(), to: w.now(), side: s, copied: true})
		w.logEvent("%s is to know all until %v", v.pod.name, v.due())
		if w.switches++; s.forwards() == 2 {
			s.double = len(w.losses)
		}
	} else if was.Forwards() && !to.Forwards() {
		v.rested = w.now() // what others have done meanwhile is a loss already
	}
	s.watch()
}

// left notes that a gateway has ended.
func (v *vote) left() {
	if v.pod.knows = v.known(); v.role.Forwards() {
		v.pod.knows = v.pod.w.now()
	}
	if v.pod.folder == "" {
		v.pod.knows = 0
	}
	v.pod.stored = v.pod.knows
	s, now := v.pod.side, v.pod.w.now()
	v.pod.able, s.alone, s.barred = now, now, max(s.barred, v.renewal())
	v.role = role.Standby
}

// renewal returns when the gateway last wrote the Lease.
func (v *vote) renewal() time.Duration { return time.Duration(v.renewed.Load()) }

// known returns until when a gateway that does not forward knows what its side has done.
func (v *vote) known() time.Duration { return max(v.rested, v.copied) }

// due returns until when a gateway has to know what its side has done: if nothing was in its way
// since it started, what the other one does.
func (v *vote) due() time.Duration {
	if o := v.pod.other(); !v.hindered && o.there() && o.vote.full {
		return max(v.known(), o.vote.known())
	}
	return v.known()
}

// extend notes that while two pods forward, each does what the other one does not know.
func (s *side) extend() {
	for i := range s.w.losses {
		if l := &s.w.losses[i]; l.copied && l.side == s && i+1 >= s.double && s.forwards() > 1 {
			l.to = s.w.now()
		}
	}
}

// forwards returns how many pods do.
func (s *side) forwards() (n int) {
	for _, p := range s.pods {
		if p.forwards() {
			n++
		}
	}
	return n
}

func (p *pod) forwards() bool {
	return p.stop != nil && (p.vote == nil || p.vote.role.Forwards() && !p.vote.dead.Load())
}

// sample notes how far copies are.
func (s *side) sample() {
	for i, p := range s.pods {
		source, follower := p.vote, s.pods[1-i].vote
		if source == nil || follower == nil || p.stop == nil {
			continue
		}
		at, ok := source.acknowledged(follower.pod.name)
		if !ok {
			continue
		}
		at -= time.Duration(path.Now()) - s.w.now()
		if !source.role.Forwards() {
			at = min(at, source.known())
		}
		if at >= follower.began { // otherwise it is of the gateway before, whose end the source has not seen
			follower.copied = max(follower.copied, at)
		}
	}
}

// acknowledged returns until when a follower has said that it has all, on the gateways' clock, if
// it has a whole copy.
func (v *vote) acknowledged(follower string) (until time.Duration, ok bool) {
	at, ok := v.replica.Acknowledged(follower)
	return time.Duration(at), ok
}

// watch judges all the time how many pods of each side forward.
func (w *world) watch() {
	for _, s := range w.sides {
		if s.elects() {
			s.sample()
			s.watch()
		}
	}
	w.after(watchTime, w.watch)
}

// watch judges how many pods forward.
func (s *side) watch() {
	now := s.w.now()
	able := now
	for _, p := range s.pods {
		v := p.vote
		if !p.there() || s.api.fails(p.name) {
			p.able, s.barred = now, max(s.barred, v.renewal())
		}
		v.hindered = v.hindered || s.api.fails(p.name) || s.lines.fail() || !p.other().there()
		v.full = v.full || v.copied > 0 || v.role.Forwards()
		able = min(able, p.able)
		if p.stop != nil {
			p.recordSaved()
		}
		if v.before = v.known(); p.forwards() {
			v.before = now
		}
	}
	n := s.forwards()
	if n > 0 {
		s.forwarded = now
	}
	if since := max(able, s.forwarded, s.barred); n == 0 && now-since > nobodyTime+watchTime {
		s.w.fail("%s: nobody forwards for %v although a pod could: %s", s.config.Cluster, now-since, s.roles())
	}
	if of := [2]*pod{s.leader(), s.peer.leader()}; n < 2 || of != s.of || s.excused() {
		s.apart, s.of = now, of
	} else if now-s.apart > bothTime+watchTime {
		s.w.fail("%s: two pods forward for %v: %s", s.config.Cluster, now-s.apart, s.roles())
	}
	if n < 2 || s.untold() {
		s.told = now
	} else if now-s.told > toldTime+watchTime {
		s.w.fail("%s: two pods forward for %v, and the one without the Lease could know: %s", s.config.Cluster,
			now-s.told, s.roles())
	}
	if s.active() < 2 || now-s.deleted < leaseTime {
		s.holders = now
	} else if now-s.holders > watchTime+200*time.Millisecond {
		// a gateway looks each 200 ms whether its Lease has run out
		s.w.fail("%s: two pods have the Lease: %s", s.config.Cluster, s.roles())
	}
	s.extend()
	s.watchCopy()
}

// watchCopy judges how old the copy of a standby is.
func (s *side) watchCopy() {
	now := s.w.now()
	for i, p := range s.pods {
		if o := s.pods[1-i]; p.there() && p.forwards() && o.there() && o.vote.role == role.Standby &&
			!s.api.fails(o.name) && !s.lines.fail() {
			if now-s.alone > copyTime && now-o.vote.copied > copyLag {
				s.w.fail("%s: its copy is %v old: %+v; %s: %+v", o.name, now-o.vote.copied, o.vote.replica.Status(),
					p.name, p.vote.replica.Status())
			}
			return
		}
	}
	s.alone = now
}

// active returns how many pods have the Lease, as they think.
func (s *side) active() (n int) {
	for _, p := range s.pods {
		if p.forwards() && p.vote.role == role.Active {
			n++
		}
	}
	return n
}

// leader returns the pod that is to be the one that forwards: the one that has the label, if there
// is one.
func (s *side) leader() *pod {
	if !s.elects() {
		return s.pod
	}
	labels := s.api.labels()
	for _, p := range s.pods {
		if len(labels) == 1 && labels[0] == p.name && p.forwards() {
			return p
		}
	}
	return nil
}

// excused reports whether two pods may forward: the peer has no good way to the one that has the
// label, or that one does not know where the peer is, and cannot tell the other one, which does not
// reach the API server, that it has the Lease.
func (s *side) excused() bool {
	own, other := s.leader(), s.peer.leader()
	return own == nil || other == nil || other.stop == nil || s.peer.forwards() > 1 || own.cut() || other.cut() ||
		s.lines.fail() && s.api.fails(own.other().name) && !own.reaches(other)
}

// reaches reports whether what the pod sends to the peer gets to another pod.
func (p *pod) reaches(peer *pod) bool {
	at, peerAt := p.wg().Endpoint(), netip.AddrPortFrom(peer.wan.Load().Addr(), peer.config.WireGuard.ListenPort)
	return at == peerAt || peer.side.elects() && at == peer.side.service && peer.side.ahead == peer
}

// untold reports whether a pod that has no Lease does not get to know who has it: it cannot read
// that, nor can the other one, which looks up where to call, tell it. One that leaves has to be
// waited for.
func (s *side) untold() bool {
	if s.active() != 1 {
		return true
	}
	for _, p := range s.pods {
		if !p.there() || p.vote.role != role.Active && s.api.fails(p.name) &&
			(s.lines.fail() || s.api.fails(p.other().name)) {
			return true
		}
	}
	return false
}

// cut reports whether a pod's way to the peer fails in whatever manner.
func (p *pod) cut() bool {
	l := p.toPeer
	l.mu.Lock()
	defer l.mu.Unlock()
	return p.deaf.Load() || l.down || l.loss > 0 || l.garbled > 0
}

// roles says what each pod is.
func (s *side) roles() (text string) {
	for _, p := range s.pods {
		switch v := p.vote; {
		case p.stop == nil:
			text += fmt.Sprintf("%s is not there. ", p.name)
		default:
			r, why := v.elector.State().Role, v.elector.State().Why
			text += fmt.Sprintf("%s is %v because %s. ", p.name, r, why)
		}
	}
	return text
}

func (p *pod) other() *pod { return p.side.pods[1-p.number] }

// there reports whether the pod has a gateway that will stay.
func (p *pod) there() bool {
	return p.stop != nil && p.vote != nil && !p.vote.dead.Load() && !p.vote.leaving
}

// pick returns the pod that a byte of a fault means.
func (s *side) pick(how byte) *pod { return s.pods[int(how/2)%len(s.pods)] }

// pods returns all with a gateway.
func (w *world) pods() (all []*pod) {
	for _, s := range w.sides {
		for _, p := range s.pods {
			if p.stop != nil {
				all = append(all, p)
			}
		}
	}
	return all
}

// connect connects the sides.
func (w *world) connect() {
	a, b := w.sides[0], w.sides[1]
	a.peer, b.peer = b, a
	for i := range 2 {
		for _, s := range w.sides {
			if i < len(s.pods) {
				s.pods[i].toPeer = w.newLeg(s.pods[i].name, s.peer.config.Cluster, wanLatency)
			}
		}
	}
	at := *b.wan.Load()
	if b.elects() {
		at = b.service
	}
	for _, s := range w.sides {
		for _, p := range s.pods {
			p.config.WireGuard.PeerPublicKey = s.peer.config.WireGuard.PrivateKey.Public()
			if s == a {
				p.config.WireGuard.Endpoint = at.String()
			}
		}
	}
}
