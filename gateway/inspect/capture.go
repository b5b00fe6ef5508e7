package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"culvert/gateway/capture"
	"culvert/gateway/control"
	"culvert/gateway/path"
	"culvert/nat"
	"culvert/nat/packet"
)

// A recording is a capture in progress. It is a path.Tap.
type recording struct {
	*capture.Session
	engine *nat.Engine
	filter nat.ConnFilter
	all    bool // filter selects everything
	names  *view

	verdict string   // "" = any
	reasons []string // none = any

	geneve    netip.AddrPort // our ends of the tunnels
	wireguard netip.AddrPort

	sights [2]sight // outbound and inbound

	telling sync.Mutex
	// discards, outbound and inbound, that are recorded or older than the recording
	discards [2]uint64 // +checklocks:telling
}

// A sight is what one direction remembers of the current packet during a capture. Only the goroutine of that
// direction uses it.
type sight struct {
	before []byte // the packet as it came, or its first bytes
	length int
	tuple  packet.Tuple
	parsed bool

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

// Packet implements path.Tap.
func (r *recording) Packet(at path.Stage, p *packet.Packet, data []byte, in nat.Link, v nat.Verdict, now nat.Time) {
	switch x := r.sightOf(in); at {
	case path.Arrived:
		x.remember(r, p, data, in)
	case path.Decided:
		x.tell(r, p, in, &v, now)
	case path.Released:
		x.tellReleased(r, p, in, &v, now)
	}
}

// Lost implements path.Tap.
func (r *recording) Lost(at path.Stage, reason string, packet []byte, link nat.Link) {
	switch at {
	case path.ToLocal:
		r.sightOf(link).tellRefused(r, link, reason)
	case path.Sent:
		r.sightOf(link).tellLost(r, reason, packet)
	case path.Made:
		r.tellMade(reason, packet, link)
	}
}

// sightOf returns the sight of the direction of packets from in.
func (r *recording) sightOf(in nat.Link) *sight {
	if in == nat.Tunnel {
		return &r.sights[1]
	}
	return &r.sights[0]
}

// remember copies a packet before the engine changes it.
func (x *sight) remember(r *recording, p *packet.Packet, data []byte, in nat.Link) {
	x.before = append(x.before[:0], data[:r.Room(len(data))]...)
	x.length = len(data)
	x.look(p, in)
}

func (x *sight) look(p *packet.Packet, in nat.Link) {
	x.tuple = packet.Tuple{}
	if x.parsed = p.Fault() == packet.NoFault; x.parsed {
		p.Tuple(&x.tuple, in)
	}
}

// tell records the remembered packet and what the engine has made of it.
func (x *sight) tell(r *recording, p *packet.Packet, in nat.Link, v *nat.Verdict, now nat.Time) {
	dropped, outbound := v.Action == nat.Drop, in != nat.Tunnel
	pre, post := r.Wants(capture.Pre, dropped), v.Action == nat.Forward && r.Wants(capture.Post, false)
	if !pre && !post || !r.match(v.Action.String(), v.Reason.String()) {
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
	case p.LeadLen() > 0: // p does not hold all of the packet that leaves
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

// tellReleased records a fragment that waited for the first one of its packet. Its arrival is already recorded.
func (x *sight) tellReleased(r *recording, p *packet.Packet, in nat.Link, v *nat.Verdict, now nat.Time) {
	x.look(p, in)
	if v.Action == nat.Drop {
		x.remember(r, p, p.Bytes(), in)
		x.tell(r, p, in, v, now)
		return
	}
	c, known := r.connection(&x.tuple, v.Out, now)
	if b := p.Bytes(); r.Wants(capture.Post, false) && r.match(v.Action.String(), "") && (r.all || r.filter.Selects(&c)) {
		r.Add(capture.Post, in != nat.Tunnel, x.noteOf(r, p, in, v, &c, known), len(b), b)
	}
}

// tellRefused records that the gateway itself dropped the remembered packet.
func (x *sight) tellRefused(r *recording, in nat.Link, reason string) {
	if x.length == 0 { // it came before the recording started
		return
	}
	c, _ := r.connection(&x.tuple, in, path.Now())
	if r.Wants(capture.Pre, true) && r.match(nat.Drop.String(), reason) && (r.all || x.parsed && r.filter.Selects(&c)) {
		r.Add(capture.Pre, in != nat.Tunnel, "drop: "+reason+", from "+r.names.names[in], x.length, x.before)
	}
}

// tellLost records a packet that was lost after the engine, as it would have left. If another packet took its room,
// it may be one like it.
func (x *sight) tellLost(r *recording, reason string, packet []byte) {
	if !r.Wants(capture.Post, true) || !r.match(nat.Drop.String(), reason) {
		return
	}
	if c, _ := r.connection(&x.tuple, nat.Tunnel, path.Now()); r.all || r.filter.Selects(&c) {
		r.Add(capture.Post, x.tuple.Link != nat.Tunnel, "drop: "+reason, len(packet), packet)
	}
}

// tellMade records a packet that the gateway made for a link and dropped. Any goroutine may call it. It is called
// before the drop is counted, so a counted packet is in the recording.
func (r *recording) tellMade(reason string, packet []byte, out nat.Link) {
	rule := ruleTracer{names: r.names}
	if reason == path.DropOutput.String() {
		r.engine.ExplainOut(packet, out, &rule)
	}
	r.addLost(capture.Post, out == nat.Tunnel, reason, rule.by(), packet, out)
}

// addLost records a packet at its link that no sight remembers. It does not look for a connection.
func (r *recording) addLost(at capture.Stage, outbound bool, reason, more string, packet []byte, link nat.Link) {
	if r.Wants(at, true) && r.match(nat.Drop.String(), reason) && (r.all || r.selects(packet, link, true)) {
		r.Add(at, outbound, "drop: "+reason+more, len(packet), packet)
	}
}

// connection returns the connection of a packet with tuple t, or the one that it would create.
func (r *recording) connection(t *packet.Tuple, out nat.Link, now nat.Time) (c nat.ConnInfo, known bool) {
	if c, known = r.engine.FindConnection(t, now); known {
		return c, true
	}
	return nat.ConnInfo{Original: *t, Reply: t.Reply(out), Out: [2]nat.Link{out, t.Link}}, false
}

// noteOf returns the comment for a packet, which is mostly the same for all packets of a connection.
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

var errCaptures = errors.New("another capture is running; stop it first")

// Capture implements control.Source.
func (src *Source) Capture(ctx context.Context, o *control.CaptureOptions, w io.Writer, sent func() error) (packets, lost uint64, err error) {
	var stages []capture.Stage
	for _, name := range o.At {
		i := slices.Index(capture.Stages(), name)
		if i < 0 {
			return 0, 0, fmt.Errorf("at: no stage %q; there are %v", name, capture.Stages())
		}
		stages = append(stages, capture.Stage(i))
	}
	r := &recording{engine: src.Path.Engine, names: src.view(), all: o.Filter.IsZero(), verdict: o.Verdict, reasons: o.Reasons}
	if r.filter, err = r.names.filter(&o.Filter); err == nil {
		err = r.check(src)
	}
	if err != nil {
		return 0, 0, err
	}
	drops := o.Drops || o.Verdict == nat.Drop.String() || len(o.Reasons) > 0
	r.Session = capture.NewSession(stages, drops, o.Snaplen)
	r.prepare(src)
	if !src.recording.CompareAndSwap(nil, r) {
		return 0, 0, errCaptures
	}
	defer src.recording.Store(nil)
	defer r.attach(src)()
	result, err := r.Write(ctx, w, o.Count, sent)
	return result.Packets, result.Lost, err
}
