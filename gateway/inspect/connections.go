package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/path"
	"culvert/gateway/sweep"
	"culvert/nat"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A pacer gives packets precedence: after paceWork of work its goroutine sleeps. It does not merely
// yield, for the reason given at sweep.Pause.
type pacer struct{ began time.Time }

const paceWork = 150 * time.Microsecond

func newPacer() *pacer { return &pacer{time.Now()} }

// rest sleeps if it is time to. Call it often. It returns false if ctx is done.
func (p *pacer) rest(ctx context.Context) bool {
	if time.Since(p.began) >= paceWork {
		time.Sleep(sweep.Pause)
		p.began = time.Now()
	}
	return ctx.Err() == nil
}

// Connections implements control.Source.
func (src *Source) Connections(ctx context.Context, f *control.Filter, yield func(*control.Connection) bool) error {
	v := src.view()
	filter, err := v.filter(f)
	if err != nil {
		return err
	}
	var list []nat.ConnInfo
	var connection control.Connection // reused for all of them
	pace := newPacer()
	for at, more := nat.Cursor(0), true; more && pace.rest(ctx); {
		list, at, more = src.Path.Engine.Connections(at, &filter, path.Now(), list[:0])
		for i := range list {
			connection = v.connection(&list[i], connection.Uses[:0])
			if !yield(&connection) {
				return nil
			}
		}
	}
	return ctx.Err()
}

// DeleteConnections implements control.Source.
func (src *Source) DeleteConnections(ctx context.Context, f *control.Filter) (deleted int, err error) {
	if err := src.Life.Changeable(); err != nil {
		return 0, err // the other process would keep them
	}
	filter, err := src.view().filter(f)
	if err != nil {
		return 0, err
	}
	pace := newPacer()
	for at, more := nat.Cursor(0), true; more && pace.rest(ctx); {
		var n int
		n, at, more = src.Path.Engine.DeleteConnections(at, &filter, path.Now())
		deleted += n
	}
	if deleted > 0 {
		src.Log.WithField("connections", deleted).Info("deleted by command")
	}
	return deleted, ctx.Err()
}

const (
	maxWatches   = 4
	watchRoom    = 4096 // events, of less than 300 bytes each
	watchLatency = 50 * time.Millisecond
)

var errWatches = fmt.Errorf("%d others watch connections already; end one of them", maxWatches)

// Events implements control.Source.
func (src *Source) Events(ctx context.Context, f *control.Filter, yield func(*control.Event) bool) error {
	filter, err := src.view().filter(f)
	if err != nil {
		return err
	}
	if src.watches.Add(1) > maxWatches {
		src.watches.Add(-1)
		return errWatches
	}
	defer src.watches.Add(-1)
	watch := src.Path.Engine.Watch(filter, watchRoom)
	defer watch.Close()
	var list []nat.ConnEvent
	for {
		var lost uint64
		list, lost = watch.Take(list[:0])
		now, at := path.Now(), time.Now()
		v := src.view()
		for i := range list {
			e := &list[i]
			connection := v.connection(&e.ConnInfo, nil)
			event := control.Event{Time: at.Add(-time.Duration(now - e.At)), Kind: "new", Connection: &connection}
			if e.Ended != "" {
				event.Kind, event.Reason = "ended", e.Ended
			}
			if !yield(&event) {
				return nil
			}
		}
		if lost > 0 && !yield(&control.Event{Time: at, Kind: "lost", Lost: lost}) {
			return nil
		}
		pause := watchLatency
		if len(list) > 0 {
			pause = sweep.Pause // there may be more
		} else if !yield(nil) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// A view resolves the names in connections for one configuration.
type view struct {
	config   *config.Config
	places   func() config.Places
	links    map[string]nat.Link
	names    map[nat.Link]string
	services map[serviceKey]served
	mapped   map[netip.Addr]string // text of uses for the external addresses of mappings
	unknown  rules.Pair
}

// served is a service: its name, and its text in uses.
type served struct{ name, use string }

type serviceKey struct {
	address  netip.Addr
	port     uint16
	protocol uint8
}

func (src *Source) view() *view {
	c, links := src.Current.Get()
	if v := src.lastView.Load(); v != nil && v.config == c {
		return v
	}
	v := newView(c, links)
	src.lastView.Store(v)
	return v
}

// A viewCache keeps the view of a configuration, which may have 100,000 names.
type viewCache = atomic.Pointer[view]

func newView(c *config.Config, links config.Links) *view {
	v := &view{config: c, places: sync.OnceValue(c.Places), links: links.ByName,
		names: map[nat.Link]string{nat.Tunnel: config.Tunnel}, services: make(map[serviceKey]served),
		mapped: make(map[netip.Addr]string), unknown: c.UnknownSource}
	for name, link := range links.ByName {
		v.names[link] = name
	}
	for _, s := range c.Services {
		for a := range s.Address.All() {
			v.services[serviceKey{a, s.Port, s.Protocol}] = served{s.Name, strings.TrimSpace("service " + s.Name)}
		}
	}
	for _, m := range c.Addresses {
		for a := range m.External.All() {
			v.mapped[a] = "address " + a.String()
		}
	}
	return v
}

// filter translates names.
func (v *view) filter(f *control.Filter) (nat.ConnFilter, error) {
	filter := nat.ConnFilter{Addresses: f.Addresses, Ports: f.Ports, State: f.State}
	var errs []error
	var err error
	if filter.Protocol, err = control.ProtocolNumber(f.Protocol); err != nil {
		errs = append(errs, err)
	}
	if f.Node == config.Tunnel {
		tunnel := nat.Tunnel
		filter.Link = &tunnel
	} else if f.Node != "" {
		link, ok := v.links[f.Node]
		if !ok {
			errs = append(errs, fmt.Errorf("node: no node %q; there are %s", f.Node,
				some(slices.Sorted(maps.Keys(v.links)))))
		}
		filter.Link = &link
	}
	if f.State != "" && !slices.Contains(nat.States(), f.State) {
		errs = append(errs, fmt.Errorf("state: no state %q; there are %s", f.State, strings.Join(nat.States(), ", ")))
	}
	return filter, errors.Join(errs...)
}

// some lists the first of names.
func some(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(append(names, config.Tunnel), ", ")
}

// connection describes c, and appends to uses what translates it.
func (v *view) connection(c *nat.ConnInfo, uses []string) control.Connection {
	refused := func(d int) string {
		if c.Verdict[d] == nat.ReasonNone {
			return ""
		}
		return c.Verdict[d].String()
	}
	return control.Connection{
		ID: c.ID, Protocol: control.ProtocolName(c.Original.Protocol), State: c.State, Replied: c.Replied, Mark: c.Mark,
		From: v.names[c.Original.Link], To: v.names[c.Out[0]],
		Original: tupleOf(&c.Original), Reply: tupleOf(&c.Reply),
		Uses: v.uses(c, inserted(c, uses)), Refused: refused(0), RefusedReply: refused(1),
		IdleSeconds: seconds(c.Idle), LeftSeconds: seconds(c.Left),
		Sent: control.Volume{Packets: c.Packets[0], Bytes: c.Bytes[0]}, Received: control.Volume{Packets: c.Packets[1],
			Bytes: c.Bytes[1]},
	}
}

func tupleOf(t *packet.Tuple) control.Tuple {
	return control.Tuple{Source: t.Source(), SourcePort: t.SourcePort(), Destination: t.Destination(),
		DestinationPort: t.DestinationPort()}
}

// inserted appends the headers that are inserted into c's stream.
func inserted(c *nat.ConnInfo, uses []string) []string {
	if c.ProxyProtocol {
		return append(uses, "proxy-protocol")
	}
	return uses
}

// uses appends what translated the addresses of c. The addresses tell, because each belongs to one
// mapping, service or remap.
func (v *view) uses(c *nat.ConnInfo, uses []string) []string {
	destination := c.Original.Destination()
	if destination != c.Reply.Source() || c.Service {
		use := v.services[serviceKey{destination, c.Original.DestinationPort(), c.Original.Protocol}].use
		switch {
		case c.Service && use != "":
			uses = append(uses, use)
		case c.Service:
			uses = append(uses, "service")
		case v.mapped[destination] != "":
			uses = append(uses, v.mapped[destination])
		default:
			uses = append(uses, "remap")
		}
	}
	source := c.Reply.Destination()
	if source == c.Original.Source() {
		return uses
	}
	switch {
	case v.unknown.Has(source):
		return append(uses, "unknown-source")
	case v.mapped[source] != "":
		return append(uses, v.mapped[source])
	case slices.Contains(uses, "remap"):
		return uses
	}
	return append(uses, "remap")
}
