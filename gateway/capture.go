package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"culvert/gateway/capture"
	"culvert/gateway/control"
	"culvert/nat"
	"culvert/nat/packet"
)

// A tap is where those who look at packets are attached to the packet path. Without any, it
// costs each packet a load and a branch.
type tap = atomic.Pointer[lookers]

// lookers are those who look at packets; what is nil does not.
type lookers struct {
	recording *recording
	next      *nextTrace
}

// look has change put others in the place of the lookers.
func (g *Gateway) look(change func(*lookers)) {
	g.looking.Lock()
	defer g.looking.Unlock()
	var l lookers
	if old := g.tap.Load(); old != nil {
		l = *old
	}
	if change(&l); l == (lookers{}) {
		g.tap.Store(nil)
		return
	}
	g.tap.Store(&l)
}

// A recording is a capture under way.
type recording struct {
	*capture.Session
	engine *nat.Engine
	filter nat.ConnFilter
	all    bool // filter selects everything
	names  *view

	verdict string   // "" = any
	reasons []string // none = any
	rule    string   // table/chain/rule, or rule, that a packet meets; "" = any

	geneve    netip.AddrPort // our ends of the tunnels
	wireguard netip.AddrPort

	telling sync.Mutex
	// outbound and inbound, that were told or are older than the recording
	discards [2]uint64 // +checklocks:telling
}

// A sight is what one direction remembers of the packet under way while somebody captures.
type sight struct {
	before []byte // the packet as it came, or the beginning of it
	length int
	tuple  packet.Tuple
	parsed bool
	met    bool // the recording's rule

	key  noteKey // of note
	note string
}

type noteKey struct {
	action   nat.Action
	reason   nat.Reason
	in, out  nat.Link
	original packet.Tuple
	id       uint64
}

// take looks at a packet before the engine does.
func (x *sight) take(l *lookers, p *packet.Packet, data []byte, in nat.Link, now nat.Time) {
	if l.next != nil {
		l.next.offer(p, data, in, now)
	}
	if l.recording != nil {
		x.remember(l.recording, p, data, in)
	}
}

// remember keeps a packet as it is before the engine changes it.
func (x *sight) remember(r *recording, p *packet.Packet, data []byte, in nat.Link) {
	x.before = append(x.before[:0], data[:r.Room(len(data))]...)
	x.length = len(data)
	x.look(p, in)
	if r.rule != "" {
		x.met = r.meets(data, p.SegmentSize, in)
	}
}

func (x *sight) look(p *packet.Packet, in nat.Link) {
	x.tuple = packet.Tuple{}
	if x.parsed = p.Fault() == packet.NoFault; x.parsed {
		p.Tuple(&x.tuple, in)
	}
}

// tell records the packet that take remembers, and what the engine has made of it.
func (x *sight) tell(l *lookers, p *packet.Packet, in nat.Link, v *nat.Verdict, now nat.Time) {
	r := l.recording
	if r == nil {
		return
	}
	dropped, outbound := v.Action == nat.Drop, in != nat.Tunnel
	pre, post := r.Wants(capture.Pre, dropped), v.Action == nat.Forward && r.Wants(capture.Post, false)
	if !pre && !post || r.rule != "" && !x.met || !r.match(v.Action.String(), v.Reason.String()) {
		return
	}
	c, known := r.connection(&x.tuple, v.Out, now)
	if !r.all && !(x.parsed && r.filter.Selects(&c)) {
		return
	}
	note := x.noteOf(r, p, in, v, &c, known)
	if pre {
		r.Add(capture.Pre, outbound, note, x.length, x.before)
	}
	switch {
	case !post:
	case p.LeadLen() > 0: // not all of what goes out is in p
		var c packet.Cutter
		room := make([]byte, p.Len()+p.LeadLen())
		c.Start(p, v.SegmentSize, v.MTU)
		for n := c.Next(room); n > 0; n = c.Next(room) {
			r.Add(capture.Post, outbound, note, n, room[:n])
		}
	default:
		b := p.Bytes()
		r.Add(capture.Post, outbound, note, len(b), b)
	}
}

// tellReleased records a fragment that waited for the first one of its packet. That it came
// was told then.
func (x *sight) tellReleased(l *lookers, p *packet.Packet, in nat.Link, v *nat.Verdict, now nat.Time) {
	r := l.recording
	if r == nil {
		return
	}
	x.look(p, in)
	met := x.met // by the first one
	if v.Action == nat.Drop {
		x.remember(r, p, p.Bytes(), in)
		x.met = met
		x.tell(l, p, in, v, now)
		return
	}
	c, known := r.connection(&x.tuple, v.Out, now)
	if b := p.Bytes(); r.Wants(capture.Post, false) && (r.rule == "" || met) && r.match(v.Action.String(), "") && (r.all || r.filter.Selects(&c)) {
		r.Add(capture.Post, in != nat.Tunnel, x.noteOf(r, p, in, v, &c, known), len(b), b)
	}
}

// tellRefused records the packet that take remembers as dropped by the gateway itself.
func (x *sight) tellRefused(l *lookers, in nat.Link, reason DropReason, now nat.Time) {
	r := l.recording
	if r == nil {
		return
	}
	c, _ := r.connection(&x.tuple, in, now)
	if r.Wants(capture.Pre, true) && (r.rule == "" || x.met) && r.match(nat.Drop.String(), reason.String()) && (r.all || x.parsed && r.filter.Selects(&c)) {
		r.Add(capture.Pre, in != nat.Tunnel, "drop: "+reason.String()+", from "+r.names.names[in], x.length, x.before)
	}
}

// tellLost records a packet as it would have gone out, which is lost behind the engine: this one or, where others take its room, one
// like it.
func (x *sight) tellLost(l *lookers, reason string, packet []byte) {
	r := l.recording
	if r == nil || !r.Wants(capture.Post, true) || r.rule != "" && !x.met || !r.match(nat.Drop.String(), reason) {
		return
	}
	if c, _ := r.connection(&x.tuple, nat.Tunnel, clock()); r.all || r.filter.Selects(&c) {
		r.Add(capture.Post, x.tuple.Link != nat.Tunnel, "drop: "+reason, len(packet), packet)
	}
}

// tellMade records a packet that the gateway has made for a link and loses, in whichever goroutine. It is called before the loss is counted,
// so that whoever sees the count finds the packet recorded.
func tellMade(t *tap, reason DropReason, packet []byte, out nat.Link) {
	l := t.Load()
	if l == nil || l.recording == nil {
		return
	}
	r, met := l.recording, ruleTracer{of: l.recording}
	if reason == DropOutput {
		r.engine.ExplainOut(packet, out, &met)
	}
	r.addLost(capture.Post, out == nat.Tunnel, reason.String(), met.by(), packet, out, met.met)
}

// addLost records a packet, at its link, that no sight remembers; met says whether it has met the recording's rule. Connections are not asked
// about it.
func (r *recording) addLost(at capture.Stage, outbound bool, reason, more string, packet []byte, link nat.Link, met bool) {
	if r.Wants(at, true) && (r.rule == "" || met) && r.match(nat.Drop.String(), reason) && (r.all || r.selects(packet, link, true)) {
		r.Add(at, outbound, "drop: "+reason+more, len(packet), packet)
	}
}

// connection returns that of a packet with tuple t, or what would be known of it.
func (r *recording) connection(t *packet.Tuple, out nat.Link, now nat.Time) (c nat.ConnInfo, known bool) {
	if c, known = r.engine.FindConnection(t, now); known {
		return c, true
	}
	return nat.ConnInfo{Original: *t, Reply: t.Reply(out), Out: [2]nat.Link{out, t.Link}}, false
}

// noteOf returns the comment on a packet. Packets of one connection have the same, mostly.
func (x *sight) noteOf(r *recording, p *packet.Packet, in nat.Link, v *nat.Verdict, c *nat.ConnInfo, known bool) string {
	key := noteKey{v.Action, v.Reason, in, v.Out, c.Original, c.ID}
	if x.note != "" && x.key == key {
		return x.note
	}
	text := v.Action.String()
	switch v.Action {
	case nat.Drop:
		text += ": " + v.Reason.String() + ", from " + r.names.names[in]
		if v.Reason == nat.ReasonFiltered || v.Reason == nat.ReasonRejected {
			text += r.ruleText(p, in)
		}
	case nat.Forward:
		text += " from " + r.names.names[in] + " to " + r.names.names[v.Out]
	default:
		text += ", from " + r.names.names[in]
	}
	if known {
		o, a := tupleOf(&c.Original), tupleOf(&c.Reply)
		text += fmt.Sprintf("; connection %d, %s %v > %v", c.ID, control.ProtocolName(c.Original.Protocol), o.From(), o.To())
		if a.To() != o.From() || a.From() != o.To() {
			text += fmt.Sprintf(", translated by %s to %v > %v", strings.Join(r.names.uses(c, nil), ", "), a.To(), a.From())
		}
	}
	x.key, x.note = key, text
	return text
}

var errCaptures = errors.New("somebody else captures already; end that first")

// Capture implements control.Source.
func (s source) Capture(ctx context.Context, o *control.CaptureOptions, w io.Writer, sent func() error) (packets, lost uint64, err error) {
	g := s.g
	var stages []capture.Stage
	for _, name := range o.At {
		i := slices.Index(capture.Stages(), name)
		if i < 0 {
			return 0, 0, fmt.Errorf("at: no stage %q; there are %v", name, capture.Stages())
		}
		stages = append(stages, capture.Stage(i))
	}
	r := &recording{engine: g.engine, names: s.view(), all: o.Filter.IsZero(), verdict: o.Verdict, reasons: o.Reasons, rule: o.Rule}
	if r.filter, err = r.names.filter(&o.Filter); err == nil {
		err = r.check(g)
	}
	if err != nil {
		return 0, 0, err
	}
	drops := o.Drops || o.Verdict == nat.Drop.String() || len(o.Reasons) > 0
	r.Session = capture.NewSession(stages, drops, o.Snaplen)
	if !g.capturing.CompareAndSwap(false, true) {
		return 0, 0, errCaptures
	}
	defer g.capturing.Store(false)
	defer r.attach(g)()
	result, err := r.Write(ctx, w, o.Count, sent)
	return result.Packets, result.Lost, err
}
