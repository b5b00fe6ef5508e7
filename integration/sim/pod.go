package sim

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway"
	"culvert/gateway/config"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
	"culvert/nat/rules"
)

// pod is a place where a gateway of a side runs.
type pod struct {
	side    *side
	w       *world
	number  int
	name    string
	config  *config.Config
	toPeer  *leg
	wan     atomic.Pointer[netip.AddrPort] // where the peer's datagrams come to
	deaf    atomic.Bool                    // nothing of the peer comes here
	gateway *gateway.Gateway
	stop    func() error
	folder  string        // of what outlives the gateway; "": nothing does
	saved   time.Duration // when it was written last
	stored  time.Duration // until when that knows what the side has done
	own     *sockets      // of gateway
	moving  *move         // nil: no other gateway takes over
	vote    *vote         // of gateway; nil: it has no replica
	knows   time.Duration // until when the next gateway here knows what this side has done, where there are two
	able    time.Duration // when it could last not have had the Lease

	mu    sync.Mutex
	ports map[uint16]*port // +checklocks:mu
}

// sockets are those of a gateway.
type sockets struct {
	nodes, peer *socket
	relay       *relayEnd // nil: it has taken over from none
	lent        uint64    // packets that it has decrypted for others, which were killed
	gateway     atomic.Pointer[gateway.Gateway]
	closed      atomic.Bool
}

// keepPeer takes the finalizers off what WireGuard has of the peer. Where a peer is being made or
// removed, somebody else does.
func (o *sockets) keepPeer() {
	g := o.gateway.Load()
	if g == nil {
		return
	}
	if all := privateAt[sync.RWMutex](g, "path", "WG", "device", "peers", "RWMutex"); all.TryRLock() {
		defer all.RUnlock()
		for _, peer := range private[map[device.NoisePublicKey]*device.Peer](g, "path", "WG", "device",
			"peers", "keyMap") {
			unfinalize(peer)
		}
	}
}

// close has them receive and send no more, as when their process is gone.
func (o *sockets) close() {
	o.closed.Store(true)
	o.nodes.Close()
	o.peer.Close()
}

// underlay is where the nodes find the gateway.
func (p *pod) underlay() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(1 + p.side.index), byte(1 + 8*p.number)}),
		config.DefaultGenevePort)
}

// moveTo makes the address, or the NAT in front of it, another one.
func (p *pod) moveTo(place byte) {
	old, at := p.wan.Load(),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(1+p.side.index) + 10*place + byte(100*p.number)}),
			wanPort)
	if p.wan.Store(&at); old != nil && *old != at {
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		if receive := p.w.receivers[*old]; receive != nil {
			delete(p.w.receivers, *old)
			p.w.receivers[at] = receive
		}
	}
}

// opener returns what opens the sockets of a gateway: beside, those that another one has too.
func (p *pod) opener(beside bool) (own *sockets, open func(string, netip.AddrPort) (udp.Conn, error)) {
	own = new(sockets)
	return own, func(network string, at netip.AddrPort) (udp.Conn, error) {
		if network == "udp6" {
			return nil, syscall.EAFNOSUPPORT
		}
		if own.closed.Load() {
			return nil, net.ErrClosed
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		o := p.ports[at.Port()]
		if o != nil && !beside {
			return nil, syscall.EADDRINUSE
		}
		if o == nil {
			o = p.listen(at.Port())
		}
		c := o.open(own.keepPeer)
		if at.Port() == config.DefaultGenevePort {
			own.nodes = c
		} else {
			own.peer = c
		}
		return c, nil
	}
}

// listen makes a port of the gateway's.
//
// +checklocks:p.mu
func (p *pod) listen(number uint16) *port {
	o := &port{local: netip.AddrPortFrom(netip.IPv4Unspecified(), number)}
	place, arrive := func() netip.AddrPort { return p.underlay() }, o.arrive
	o.send = func(to netip.AddrPort, data []byte) {
		for _, n := range p.side.nodes {
			if n.underlay.Addr() == to.Addr() {
				p.w.carry(n.down, p.underlay(), to, data)
			}
		}
	}
	if number != config.DefaultGenevePort {
		place = func() netip.AddrPort { return netip.AddrPortFrom(p.wan.Load().Addr(), number) }
		o.send = func(to netip.AddrPort, data []byte) { p.w.carry(p.toPeer, place(), to, data) }
		arrive = func(from netip.AddrPort, data []byte) {
			if !p.deaf.Load() {
				o.arrive(from, data)
			}
		}
	}
	o.close = func() {
		p.w.listen(place(), nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.ports, number)
	}
	p.w.listen(place(), arrive)
	p.ports[number] = o
	return o
}

// start starts the gateway.
func (p *pod) start() error {
	own, open := p.opener(false)
	g, err := gateway.NewOver(p.config, gateway.Budget{}, silent(), open)
	if err != nil {
		return err
	}
	p.run(g, own)
	return nil
}

// silent is a log that nobody reads.
func silent() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// run has a gateway run.
func (p *pod) run(g *gateway.Gateway, own *sockets) {
	own.gateway.Store(g)
	own.keepPeer()
	reuseBuffers(g)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	p.gateway, p.own = g, own
	run := g.Run
	if p.side.elects() {
		run = p.campaign(ctx, own)
	}
	go func() { done <- run(ctx) }()
	p.stop = func() error {
		cancel()
		return <-done
	}
}

// halt stops the gateway, unless it has been. If it keeps nothing, all that it knew is forgotten
// from then on until it is started again.
func (p *pod) halt() {
	if p.endHandover(); p.stop == nil {
		return
	}
	killed := p.vote != nil && p.vote.dead.Load()
	switch err := p.stop(); {
	case err != nil && !killed:
		p.w.fail("%s stops: %v", p.name, err)
	case err == nil:
		takeBuffers(p.gateway)
	}
	p.stop, p.saved = nil, p.w.now()
	switch {
	case p.vote != nil:
		p.vote.left()
	case p.folder == "":
		p.w.losses = append(p.w.losses, loss{to: p.w.now(), side: p.side})
	}
}

// kill halts the gateway as a signal does that it cannot heed: what it has kept since it began to
// stop is not there. If all of the machine ends, nobody is told that connections do.
func (p *pod) kill(machine bool) {
	if p.vote != nil && p.stop != nil {
		p.vote.die(machine)
	}
	if p.endHandover(); p.stop == nil || p.folder == "" {
		p.halt()
		return
	}
	p.recordSaved()
	saved, stored, before := p.saved, p.stored, p.kept()
	p.halt()
	for name := range p.kept() {
		os.Remove(name)
	}
	for name, f := range before {
		if err := errors.Join(os.WriteFile(name, f.text, 0o600), os.Chtimes(name, f.changed, f.changed)); err != nil {
			p.w.fail("%v", err)
		}
	}
	const underWay = time.Second // what was there, and had not reached its server
	if p.saved, p.stored = saved, stored; p.vote != nil {
		p.knows = min(stored, max(0, saved-underWay))
		return
	}
	p.w.losses = append(p.w.losses, loss{from: max(0, saved-underWay), to: p.w.now(), side: p.side})
}

// recordSaved notes when the gateway has last written what outlives it, if it has.
func (p *pod) recordSaved() {
	at := p.gateway.Saved()
	if at.IsZero() || p.saved == at.Sub(p.w.start) {
		return
	}
	if p.saved = at.Sub(p.w.start); p.vote != nil {
		p.stored = p.vote.before
	}
}

// keptFile is a file that outlives the gateway.
type keptFile struct {
	text    []byte
	changed time.Time
}

// kept returns the files that outlive the gateway, by name.
func (p *pod) kept() map[string]keptFile {
	all := make(map[string]keptFile)
	names, _ := filepath.Glob(filepath.Join(p.folder, "*", "*"))
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) { // just now its writing has ended
			continue
		} else if err != nil {
			p.w.fail("%v", err)
			continue
		}
		text, err := io.ReadAll(f)
		info, failed := f.Stat()
		if err = errors.Join(err, failed, f.Close()); err != nil {
			p.w.fail("%v", err)
			continue
		}
		all[name] = keptFile{text, info.ModTime()}
	}
	return all
}

// resume starts another gateway, unless one runs.
func (p *pod) resume() {
	if p.stop != nil {
		if p.vote != nil {
			p.vote.again = p.vote.leaving
		}
		return
	}
	if err := p.start(); err != nil {
		p.w.fail("%s starts: %v", p.name, err)
	}
	if p.vote != nil {
		return
	}
	for i := range p.w.losses {
		if l := &p.w.losses[i]; l.side == p.side {
			l.to = p.w.now()
		}
	}
}

// variant is a configuration that differs in what no connection uses.
func (p *pod) variant(number byte) *config.Config {
	c := *p.config
	c.Addresses = append(c.Addresses[:1:1], config.AddressMapping{
		External: rules.PairOf(netip.AddrFrom4([4]byte{10, 70, 1, number})),
		Internal: rules.PairOf(netip.AddrFrom4([4]byte{10, 112, 0, number})), Via: c.Geneve.Nodes[0].Name})
	return &c
}

// reload applies another configuration, unless another gateway is about to take over.
func (p *pod) reload(number byte) {
	c := p.variant(number)
	switch err := p.gateway.Apply(c); {
	case err == nil:
		p.config = c
	case p.moving == nil:
		p.w.fail("%s reloads: %v", c.Cluster, err)
	}
}

func (p *pod) path() *path.Path { return p.gateway.Path() }
func (p *pod) links() config.Links {
	_, links := p.gateway.Current()
	return links
}

func (p *pod) engine() *nat.Engine        { return p.path().Engine }
func (p *pod) endpoint() *geneve.Endpoint { return p.path().Endpoint }
func (p *pod) wg() *wg.Device             { return p.path().WG }

// private returns the field of a pointer's struct, or of the structs that lie on the way there,
// that other packages cannot see. Only wireguard-go's are read so.
func private[T any](of any, names ...string) T { return *privateAt[T](of, names...) }

// privateAt returns where that field is.
func privateAt[T any](of any, names ...string) *T {
	v := reflect.ValueOf(of)
	for _, name := range names {
		for v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		v = v.FieldByName(name)
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}

// unfinalize takes the finalizers off the queues of a peer. They run outside the bubble, where
// nobody may touch its channels.
func unfinalize(peer *device.Peer) {
	queues := reflect.ValueOf(peer).Elem().FieldByName("queue")
	for _, name := range []string{"inbound", "outbound"} {
		q := queues.FieldByName(name)
		runtime.SetFinalizer(reflect.NewAt(q.Type(), unsafe.Pointer(q.UnsafeAddr())).Elem().Interface(), nil)
	}
}
