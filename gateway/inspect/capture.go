package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"culvert/gateway/capture"
	"culvert/gateway/control"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/nat"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A recording is a capture in progress. It is a path.Tap.
type recording struct {
	*capture.Session
	names *view

	filter  nat.ConnFilter
	all     bool     // filter selects everything
	verdict string   // "" = any
	reasons []string // none = any

	notes [2]atomic.Pointer[note] // the latest, inbound and outbound

	telling sync.Mutex
	// discards, outbound and inbound, that are recorded or older than the recording
	discards [2]uint64 // +checklocks:telling
}

// A note is the comment of packets that are alike, as most packets of a connection are.
type note struct {
	of   noteKey
	text string
}

type noteKey struct {
	verdict, reason string
	made            bool
	in, out         nat.Link
	original        packet.Tuple
	id              uint64
}

var captureStages = [...]capture.Stage{
	path.Geneve: capture.Geneve, path.Pre: capture.Pre, path.Post: capture.Post, path.WireGuard: capture.WireGuard,
}

// See implements path.Tap.
func (r *recording) See(o *path.Observation) {
	at := captureStages[o.At]
	if !r.Wants(at, o.Reason != "") || r.verdict != "" && r.verdict != o.Verdict ||
		len(r.reasons) > 0 && !slices.Contains(r.reasons, o.Reason) {
		return
	}
	inner := o.At == path.Pre || o.At == path.Post
	var c nat.ConnInfo
	known := false
	if inner || !r.all {
		c, known = o.Connection()
	}
	if !r.all && !(o.Parsed && r.filter.Selects(&c)) {
		return
	}
	var text string
	switch {
	case inner:
		text = r.noteOf(o, &c, known)
	case o.Reason != "":
		text = o.Verdict + ": " + o.Reason + o.More
	}
	if o.Outer == (packet.Tuple{}) {
		r.Add(at, o.Outbound, text, o.Length, o.Bytes)
		return
	}
	var room [maxOuter]byte
	head := outerHeaders(room[:], &o.Outer, o.Bytes)
	r.Add(at, o.Outbound, text, len(head)+o.Length, head, o.Bytes)
}

// noteOf returns the comment for an inner packet.
func (r *recording) noteOf(o *path.Observation, c *nat.ConnInfo, known bool) string {
	last := &r.notes[0]
	if o.Outbound {
		last = &r.notes[1]
	}
	key := noteKey{o.Verdict, o.Reason, o.Made, o.In, o.Out, c.Original, c.ID}
	if n := last.Load(); n != nil && n.of == key {
		return n.text
	}
	text := o.Verdict
	if o.Reason != "" {
		text += ": " + o.Reason
	}
	switch {
	case o.Made:
	case o.Verdict == nat.Forward.String():
		text += " from " + r.names.names[o.In] + " to " + r.names.names[o.Out]
	default:
		text += ", from " + r.names.names[o.In]
	}
	switch o.Reason {
	case nat.ReasonFiltered.String(), nat.ReasonRejected.String(), path.DropOutput.String():
		rule := ruleTracer{names: r.names}
		if o.Explain(&rule); rule.path != "" {
			text += ", by rule " + rule.path
		}
	}
	if known {
		o, a := tupleOf(&c.Original), tupleOf(&c.Reply)
		text += fmt.Sprintf("; connection %d, %s %v > %v", c.ID, control.ProtocolName(c.Original.Protocol),
			o.From(), o.To())
		if a.To() != o.From() || a.From() != o.To() {
			uses := strings.Join(r.names.uses(c, nil), ", ")
			text += fmt.Sprintf(", translated by %s to %v > %v", uses, a.To(), a.From())
		}
	}
	last.Store(&note{key, text})
	return text
}

// ruleTracer is a rules.Tracer that keeps the last rule that a packet matches: if one refused it,
// that one.
type ruleTracer struct {
	names *view
	path  string // table/chain/rule
}

// LinkName implements rules.Tracer.
func (l *ruleTracer) LinkName(link nat.Link) string { return l.names.link(link) }

// Trace implements rules.Tracer.
func (l *ruleTracer) Trace(s rules.Step) {
	if s.Kind == rules.StepRule && s.Passed {
		l.path = s.Name
	}
}

var errCaptures = errors.New("another capture is running; stop it first")

// Capture implements control.Source.
func (src *Source) Capture(ctx context.Context, o *control.CaptureOptions, w io.Writer, sent func() error) (packets,
	lost uint64, err error) {
	var stages []capture.Stage
	for _, name := range o.At {
		i := slices.Index(capture.Stages(), name)
		if i < 0 {
			return 0, 0, fmt.Errorf("at: no stage %q; there are %v", name, capture.Stages())
		}
		stages = append(stages, capture.Stage(i))
	}
	r := &recording{names: src.view(), all: o.Filter.IsZero(), verdict: o.Verdict, reasons: o.Reasons,
		discards: src.discards()}
	if r.filter, err = r.names.filter(&o.Filter); err == nil {
		err = src.checkReasons(o.Reasons)
	}
	if err != nil {
		return 0, 0, err
	}
	drops := o.Drops || o.Verdict == nat.Drop.String() || len(o.Reasons) > 0
	r.Session = capture.NewSession(stages, drops, o.Snaplen)
	if !src.recording.CompareAndSwap(nil, r) {
		return 0, 0, errCaptures
	}
	defer src.recording.Store(nil)
	src.Path.SetTap(r)
	defer src.Path.SetTap(nil)
	result, err := r.Write(ctx, w, o.Count, sent)
	return result.Packets, result.Lost, err
}

// checkReasons returns an error for an unknown reason.
func (src *Source) checkReasons(reasons []string) error {
	if len(reasons) == 0 {
		return nil
	}
	stats, tunnels, tunnel := src.Path.Engine.Stats(), src.Path.Endpoint.Stats(), src.Path.WG.Stats()
	all := make(map[string]bool)
	for key := range src.drops(&stats, &tunnels, &tunnel) {
		all[key.reason] = true
	}
	var errs []error
	for _, reason := range reasons {
		if !all[reason] {
			known := strings.Join(slices.Sorted(maps.Keys(all)), ", ")
			errs = append(errs, fmt.Errorf("reason: no reason %q; there are %s", reason, known))
		}
	}
	return errors.Join(errs...)
}

// discards returns how many packets wireguard-go has discarded, outbound and inbound.
func (src *Source) discards() [2]uint64 {
	s := src.Path.WG.Stats()
	return [2]uint64{s.Outbound[wg.TunnelDiscard], s.Inbound[wg.TunnelDiscard]}
}

// tellDiscards records what wireguard-go has discarded since the last look. Only their number is
// known, because wireguard-go discards them silently, so one empty datagram stands for all.
func (src *Source) tellDiscards() {
	r := src.recording.Load()
	if r == nil {
		return
	}
	now := src.discards()
	r.telling.Lock()
	defer r.telling.Unlock()
	m := wg.Message{Dropped: true, Reason: wg.TunnelDiscard} // Peer is zero: not known yet
	if p, err := src.Path.WG.PeerStats(); err == nil {
		m.Peer, _ = netip.ParseAddrPort(p.Endpoint)
	}
	for i, why := range []string{"without a session, or its queue was full", "forged, replayed or of no session"} {
		if n := now[i] - r.discards[i]; n > 0 {
			m.Outbound = i == 0
			o := src.Path.ObserveMessage(&m)
			o.More = fmt.Sprintf(", %d packets, %s; what was in them is not known", n, why)
			r.See(&o)
		}
	}
	r.discards = now
}
