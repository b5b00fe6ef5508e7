package sim

import (
	"context"
	"errors"
	"fmt"
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
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
	"culvert/nat/rules"
)

// side is one cluster: its gateway and its nodes.
type side struct {
	w       *world
	index   int
	config  *config.Config
	peer    *side
	nodes   []*node
	toPeer  *leg
	wan     atomic.Pointer[netip.AddrPort] // where the peer's datagrams come to
	gateway *gateway.Gateway
	stop    func() error
	folder  string        // of what outlives the gateway; "": nothing does
	saved   time.Duration // when it was written last
	own     *sockets      // of gateway
	moving  *move         // nil: no other gateway takes over

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

// keepPeer takes the finalizers off what WireGuard has of the peer. Where a peer is being made or removed, somebody else does.
func (o *sockets) keepPeer() {
	g := o.gateway.Load()
	if g == nil {
		return
	}
	if all := privateAt[sync.RWMutex](g, "path", "WG", "device", "peers", "RWMutex"); all.TryRLock() {
		defer all.RUnlock()
		for _, peer := range private[map[device.NoisePublicKey]*device.Peer](g, "path", "WG", "device", "peers", "keyMap") {
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

const (
	maxConnections = 4096
	fewConnections = 256 // where floods make room scarce
	wanPort        = config.DefaultWireGuardPort
	wanPorts       = 4 // from there on, those of a client
)

func newSide(w *world, index, most int) *side {
	s := &side{w: w, index: index, ports: make(map[uint16]*port)}
	name := names[index]
	s.config = &config.Config{
		Cluster: name, Peer: names[1-index], MTU: config.DefaultMTU,
		WireGuard: config.WireGuard{Role: config.Role(index), PrivateKey: wgkey.NewPrivate(), ListenPort: wanPort, Keepalive: 25 * time.Second},
		Geneve:    config.Geneve{ListenPort: config.DefaultGenevePort, GatewayAddress: pair(func(p *plan) netip.Addr { return p.gateway })},

		UnknownSource: pair(func(p *plan) netip.Addr { return p.unknown }),
		Addresses: []config.AddressMapping{{External: pair(func(p *plan) netip.Addr { return p.mapping }),
			Internal: pair(func(p *plan) netip.Addr { return p.mappedHost }), Via: name + "-1"}},
		Services:        services(),
		MaxConnections:  most,
		ConnectionCheck: config.LiqoConnectionCheck,
		Log:             config.Log{Level: "info", Format: "text"},
	}
	for i := range 2 {
		s.config.Geneve.Nodes = append(s.config.Geneve.Nodes, config.Node{
			Name: fmt.Sprintf("%s-%d", name, i+1), VNI: geneve.VNI(11 + i), Address: pair(func(p *plan) netip.Addr { return p.nodes[i] }),
			Underlay: netip.AddrFrom4([4]byte{192, 168, byte(1 + index), byte(2 + i)}), Encap: []geneve.Encap{geneve.Geneve, geneve.VXLAN}[i],
		})
	}
	for _, p := range plans {
		p.apply(index, s.config)
	}
	for i := range 2 {
		s.nodes = append(s.nodes, newNode(s, i))
	}
	s.moveTo(0)
	return s
}

// underlay is where the nodes find the gateway.
func (s *side) underlay() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(1 + s.index), 1}), config.DefaultGenevePort)
}

// moveTo makes the address, or the NAT in front of it, another one.
func (s *side) moveTo(place byte) {
	old, at := s.wan.Load(), netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(1+s.index) + 10*place}), wanPort)
	if s.wan.Store(&at); old != nil && *old != at {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		for port := range uint16(wanPorts) {
			from := netip.AddrPortFrom(old.Addr(), wanPort+port)
			if receive := s.w.receivers[from]; receive != nil {
				delete(s.w.receivers, from)
				s.w.receivers[netip.AddrPortFrom(at.Addr(), wanPort+port)] = receive
			}
		}
	}
}

// opener returns what opens the sockets of a gateway: beside, those that another one has too.
func (s *side) opener(beside bool) (own *sockets, open func(string, netip.AddrPort) (udp.Conn, error)) {
	own = new(sockets)
	return own, func(network string, at netip.AddrPort) (udp.Conn, error) {
		if network == "udp6" {
			return nil, syscall.EAFNOSUPPORT
		}
		if own.closed.Load() {
			return nil, net.ErrClosed
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		p := s.ports[at.Port()]
		if p != nil && !beside {
			return nil, syscall.EADDRINUSE
		}
		if p == nil {
			p = s.listen(at.Port())
		}
		c := p.open(own.keepPeer)
		switch {
		case at.Port() == config.DefaultGenevePort:
			own.nodes = c
		case own.peer == nil: // not of the port that the gateway before has
			own.peer = c
		}
		return c, nil
	}
}

// listen makes a port of the gateway's.
//
// +checklocks:s.mu
func (s *side) listen(number uint16) *port {
	p := &port{local: netip.AddrPortFrom(netip.IPv4Unspecified(), number)}
	place := func() netip.AddrPort { return s.underlay() }
	p.send = func(to netip.AddrPort, data []byte) {
		for _, n := range s.nodes {
			if n.underlay.Addr() == to.Addr() {
				s.w.carry(n.down, s.underlay(), to, data)
			}
		}
	}
	if number != config.DefaultGenevePort {
		place = func() netip.AddrPort { return netip.AddrPortFrom(s.wan.Load().Addr(), number) }
		p.send = func(to netip.AddrPort, data []byte) { s.w.carry(s.toPeer, place(), to, data) }
	}
	p.close = func() {
		s.w.listen(place(), nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ports, number)
	}
	s.w.listen(place(), p.arrive)
	s.ports[number] = p
	return p
}

// start starts the gateway.
func (s *side) start() error {
	own, open := s.opener(false)
	g, err := gateway.NewOver(s.config, gateway.Budget{}, silent(), open)
	if err != nil {
		return err
	}
	s.run(g, own)
	return nil
}

// silent is a log that nobody reads.
func silent() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// run has a gateway run.
func (s *side) run(g *gateway.Gateway, own *sockets) {
	own.gateway.Store(g)
	own.keepPeer()
	reuseBuffers(g)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	s.gateway, s.own = g, own
	s.stop = func() error {
		cancel()
		return <-done
	}
}

// halt stops the gateway, unless it has been. If it keeps nothing, all that it knew is forgotten from then on until it is started again.
func (s *side) halt() {
	if s.endHandover(); s.stop == nil {
		return
	}
	if err := s.stop(); err != nil {
		s.w.fail("%s stops: %v", s.config.Cluster, err)
	}
	takeBuffers(s.gateway)
	if s.stop, s.saved = nil, s.w.now(); s.folder == "" {
		s.w.losses = append(s.w.losses, loss{0, s.w.now(), s})
	}
}

// kill halts the gateway as a signal does that it cannot heed: what it has kept since it began to stop is not there.
func (s *side) kill() {
	if s.endHandover(); s.stop == nil || s.folder == "" {
		s.halt()
		return
	}
	s.recordSaved()
	saved, before := s.saved, s.kept()
	s.halt()
	for name := range s.kept() {
		os.Remove(name)
	}
	for name, text := range before {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			s.w.fail("%v", err)
		}
	}
	const underWay = time.Second // what was there, and had not reached its server
	s.saved = saved
	s.w.losses = append(s.w.losses, loss{max(0, saved-underWay), s.w.now(), s})
}

// recordSaved notes when the gateway has last written what outlives it, if it has.
func (s *side) recordSaved() {
	if at := private[time.Time](s.gateway, "life", "keeper", "saved"); !at.IsZero() {
		s.saved = at.Sub(s.w.start)
	}
}

// kept returns the files that outlive the gateway.
func (s *side) kept() map[string][]byte {
	all := make(map[string][]byte)
	names, _ := filepath.Glob(filepath.Join(s.folder, "*", "*"))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) { // just now its writing has ended
			continue
		} else if err != nil {
			s.w.fail("%v", err)
		}
		all[name] = text
	}
	return all
}

// resume starts another gateway, unless one runs.
func (s *side) resume() {
	if s.stop != nil {
		return
	}
	if err := s.start(); err != nil {
		s.w.fail("%s starts: %v", s.config.Cluster, err)
	}
	for i := range s.w.losses {
		if l := &s.w.losses[i]; l.side == s {
			l.to = s.w.now()
		}
	}
}

func (s *side) restart() {
	s.halt()
	s.resume()
}

// variant is a configuration that differs in what no connection uses.
func (s *side) variant(number byte) *config.Config {
	c := *s.config
	c.Addresses = append(c.Addresses[:1:1], config.AddressMapping{
		External: rules.PairOf(netip.AddrFrom4([4]byte{10, 70, 1, number})), Internal: rules.PairOf(netip.AddrFrom4([4]byte{10, 112, 0, number})), Via: c.Geneve.Nodes[0].Name})
	return &c
}

// successor is a configuration that cannot be applied, but be taken over with: a client's socket is elsewhere.
func (s *side) successor(number byte) *config.Config {
	c := s.variant(number)
	if c.WireGuard.Role == config.Client {
		c.WireGuard.ListenPort = wanPort + uint16(number>>4%wanPorts)
	}
	return c
}

// reload applies another configuration, unless another gateway is about to take over.
func (s *side) reload(number byte) {
	c := s.variant(number)
	switch err := s.gateway.Apply(c); {
	case err == nil:
		s.config = c
	case s.moving == nil:
		s.w.fail("%s reloads: %v", c.Cluster, err)
	}
}

func (s *side) path() *path.Path { return private[*path.Path](s.gateway, "path") }
func (s *side) links() config.Links {
	_, links := privateAt[config.Current](s.gateway, "current").Get()
	return links
}

func (s *side) engine() *nat.Engine        { return s.path().Engine }
func (s *side) endpoint() *geneve.Endpoint { return s.path().Endpoint }
func (s *side) wg() *wg.Device             { return s.path().WG }

// private returns the field of a pointer's struct, or of the structs that lie on the way there, that other packages cannot see.
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

// unfinalize takes the finalizers off the queues of a peer. They run outside the bubble, where nobody may touch its channels.
func unfinalize(peer *device.Peer) {
	queues := reflect.ValueOf(peer).Elem().FieldByName("queue")
	for _, name := range []string{"inbound", "outbound"} {
		q := queues.FieldByName(name)
		runtime.SetFinalizer(reflect.NewAt(q.Type(), unsafe.Pointer(q.UnsafeAddr())).Elem().Interface(), nil)
	}
}
