package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
)

// Gateway joins the nodes of one cluster with one remote cluster.
type Gateway struct {
	log       *logrus.Entry
	budget    Budget
	udp       udp.Options // of the sockets of both tunnels
	engine    *nat.Engine
	endpoint  *geneve.Endpoint
	out       *outbound
	in        *inbound
	wg        *wg.Device
	check     *check
	paths     *paths
	uapi      net.Listener // nil = off
	metrics   *metricsServer
	health    *metricsServer
	watch     *watch
	keeper    *keeper
	progress  progress
	control   *controlServer
	ready     atomic.Bool
	teacher   Teacher // nil: a file
	taken     *taking // what it takes over from; nil = from none
	lent      []lentSocket
	handing   atomic.Bool   // it hands over
	gone      chan struct{} // closed when another process carries the packets,
	successor atomic.Int64  // which has this ID

	mu     sync.Mutex
	config *config.Config // +checklocks:mu
	links  config.Links   // +checklocks:mu

	reload    func(ctx context.Context, dryRun bool) (*control.Reloaded, error) // nil = nobody can
	tap       tap                                                               // of captures and traces
	looking   sync.Mutex                                                        // changes of tap
	capturing atomic.Bool                                                       // there is one
	dropRates dropRates
	lastView  viewCache
	watches   atomic.Int32 // of connections
}

// New opens every socket of the gateway that c describes and starts its tunnel.
// On error nothing is left open. The error names the field of the configuration
// that could not be satisfied.
func New(c *config.Config, budget Budget, log *logrus.Logger) (*Gateway, error) {
	return NewOver(c, budget, log, nil)
}

// NewOver is New on a network of the caller's, on which open opens sockets. The kernel is
// asked nothing.
func NewOver(c *config.Config, budget Budget, log *logrus.Logger, open func(network string, at netip.AddrPort) (udp.Conn, error)) (*Gateway, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	o := internalOptions(c, budget)
	o.UDP.Open = open
	return newGateway(c, budget, log, o)
}

func internalOptions(c *config.Config, budget Budget) geneve.Options {
	return geneve.Options{
		Listen: netip.AddrPortFrom(netip.Addr{}, c.Geneve.ListenPort),
		UDP:    udp.Options{ReceiveBuffer: budget.ReceiveBuffer},
	}
}

func newGateway(c *config.Config, budget Budget, log *logrus.Logger, internal geneve.Options) (*Gateway, error) {
	return newGatewayFrom(nil, c, budget, log, internal)
}

func newGatewayFrom(t *taking, c *config.Config, budget Budget, log *logrus.Logger, internal geneve.Options) (*Gateway, error) {
	g := &Gateway{log: logrus.NewEntry(log), budget: budget, udp: internal.UDP, config: c, taken: t, gone: make(chan struct{})}
	if c.Cluster != "" {
		g.log = g.log.WithField("cluster", c.Cluster)
	}
	g.watch = newWatch(g)
	g.udp, internal.UDP = g.lend("wireguard", internal.UDP), g.lend("geneve", internal.UDP)
	if err := g.open(c, internal); err != nil {
		g.close()
		g.keeper.close()
		return nil, err
	}
	return g, nil
}

// open opens everything. Nobody else knows g yet.
//
// +checklocksignore
func (g *Gateway) open(c *config.Config, internal geneve.Options) (err error) {
	if g.keeper, err = openKeeper(g, c); err != nil {
		return err
	}
	g.links = g.links.Assign(c.Geneve.Nodes)
	if g.engine, err = nat.New(g.keeper.identity.PortKey, c.NAT(g.links, g.budget.Connections)); err != nil {
		return err
	}
	g.keeper.restore(g.links)
	if g.endpoint, err = geneve.Listen(internal); err != nil {
		return socketError("geneve.listenPort", c.Geneve.ListenPort, err)
	}
	if err := g.reaches(c); err != nil {
		return err
	}
	if err := g.endpoint.Apply(c.Tunnels(g.links)); err != nil {
		return err
	}
	g.connectPath(c)

	if err := g.openWireGuard(c); err != nil {
		return err
	}
	if c.WireGuard.UAPI {
		if g.uapi, err = g.listenUAPI("cv-" + c.Cluster); err != nil {
			return fmt.Errorf("wireguard.uapi: %w; or set uapi: false", err)
		}
	}
	if g.metrics, err = newMetricsServer("metrics", c.Metrics, g); err != nil {
		return err
	}
	if g.health, err = newMetricsServer("health", c.Health, g); err != nil {
		return err
	}
	g.control, err = newControlServer(c, g)
	return err
}

// connectPath builds the packet path between the Geneve endpoint and the WireGuard
// device; see doc.go.
func (g *Gateway) connectPath(c *config.Config) {
	own, peer := c.WireGuard.Role.TunnelAddresses()
	g.wg = wg.New(wg.Options{
		PrivateKey: c.WireGuard.PrivateKey,
		ListenPort: c.WireGuard.ListenPort,
		MTU:        int(c.MTU),
		Sockets:    g.udp,
		Own:        own.V4,
		Peer:       peer.V4,
		Log:        g.log.WithField("tunnel", "wireguard"),
	})
	g.check = newCheck(own.V4, peer.V4, c.MTU)
	g.check.begin(c, time.Now())
	g.paths = newPaths(g, c.MTU)
	g.out = &outbound{
		endpoint: g.endpoint,
		receiver: g.endpoint.NewReceiver(),
		replies:  g.endpoint.NewSender(),
		engine:   g.engine,
		tap:      &g.tap,
		tunnel:   g.wg,
		queue:    newQueue(g.endpoint.Wake),
		paths:    g.paths,
		piece:    make([]byte, c.MTU),
	}
	g.in = &inbound{
		endpoint: g.endpoint,
		sender:   g.endpoint.NewSender(),
		engine:   g.engine,
		tap:      &g.tap,
		tunnel:   g.wg,
		check:    g.check,
		paths:    g.paths,
		answers:  g.out.queue,
		piece:    make([]byte, c.MTU),
	}
	g.out.witnesses, g.in.witnesses = newWitnesses(), newWitnesses()
	g.out.seen, g.in.seen = make([]uint64, len(g.out.witnesses)), make([]uint64, len(g.in.witnesses))
	g.out.other, g.in.other = &g.in.counters, &g.out.counters
}

func (g *Gateway) openWireGuard(c *config.Config) error {
	path := wg.Path{
		Read:  g.out.read,
		Write: g.in.write,
		Send:  g.out.sendProbe,
		Close: func() { g.endpoint.Close() },
	}
	if g.taken != nil {
		g.wg.Expect(g.keeper.identity.Peer.Endpoint, g.taken.offer.Local)
	}
	if err := g.wg.Open(path, g.keeper.peer(&c.WireGuard)); err != nil {
		return err
	}
	if err := g.wg.Up(); err != nil {
		return socketError("wireguard.listenPort", c.WireGuard.ListenPort, err)
	}
	return nil
}

// socketError names the field behind an error of opening a UDP socket.
func socketError(field string, port uint16, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s: UDP port %d is in use; stop what uses it or choose another", field, port)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%s: no permission to bind UDP port %d; choose one above 1023", field, port)
	}
	return fmt.Errorf("%s: UDP port %d: %w", field, port, err)
}

// Run carries packets until ctx ends or the WireGuard device stops by itself, and
// closes everything. It must be called once.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.keeper.end()
	defer g.close()
	stop := ctx.Done()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // tasks go on until this returns
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()

	g.mu.Lock()
	c := g.config
	g.mu.Unlock()
	if c.WireGuard.Role == config.Client {
		tasks.Go(func() { g.wg.FollowEndpoint(ctx) })
	}
	if g.uapi != nil {
		tasks.Go(func() { g.wg.ServeUAPI(g.uapi) })
		defer g.uapi.Close()
	}
	g.lookAtProgress()
	tasks.Go(func() { g.sweep(ctx) })
	tasks.Go(func() { g.keeper.run(ctx) })
	tasks.Go(func() { g.checkConnection(ctx) })
	tasks.Go(func() { g.probePaths(ctx) })
	tasks.Go(func() { g.taken.finish(g) })
	g.metrics.serve()
	g.health.serve()
	g.control.serve()
	g.ready.Store(true)
	g.logStart(c)

	select {
	case <-stop:
		g.ready.Store(false)
		if g.finishHandOver() {
			return nil
		}
		g.mu.Lock() // what is being applied ends first: the log has its level
		g.log.Info("stopping")
		g.mu.Unlock()
		return nil
	case <-g.gone:
		g.ready.Store(false)
		return nil
	case <-g.wg.Wait():
		return errors.New("gateway: the WireGuard device stopped by itself; its log says why")
	}
}

func (g *Gateway) logStart(c *config.Config) {
	g.log.WithFields(logrus.Fields{
		"version":       ReadVersion().String(),
		"peer":          c.Peer,
		"role":          c.WireGuard.Role,
		"publicKey":     c.WireGuard.PrivateKey.Public().Base64(),
		"wireguardPort": g.wg.Port(),
		"genevePort":    c.Geneve.ListenPort,
		"nodes":         len(c.Geneve.Nodes),
		"mtu":           int(c.MTU),
	}).Info("gateway running")
	tunnel := g.wg.Stats()
	for name, s := range g.sockets(&tunnel) {
		if s.ReceiveBuffer < minReceiveBuffer {
			g.log.WithFields(logrus.Fields{"socket": name, "bytes": s.ReceiveBuffer}).
				Warn("small receive buffer: bursts will be lost; raise net.core.rmem_max to 4194304 or more")
		}
	}
}

// minReceiveBuffer is where measurements begin to show losses: one train takes up
// to 64 KiB, which the kernel books as about twice that.
const minReceiveBuffer = 1 << 20

// sockets returns the statistics of each UDP socket by its name in metrics.
func (g *Gateway) sockets(tunnel *wg.Stats) map[string]udp.Stats {
	sockets := map[string]udp.Stats{"geneve": g.endpoint.Stats().Socket}
	for i, s := range tunnel.Sockets {
		sockets[[]string{"wireguard", "wireguard6"}[i]] = s
	}
	return sockets
}

// prepared is a configuration that every layer has accepted.
type prepared struct {
	config  *config.Config
	links   config.Links
	rules   *nat.Prepared
	tunnels *geneve.Prepared
}

// Apply replaces the desired state. A configuration that is not valid, or that
// changes what cannot change while the gateway runs, is refused whole and leaves no
// trace. So is any while another process takes over.
func (g *Gateway) Apply(c *config.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if g.handing.Load() {
		return errHanding // the other process would not have it
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p, err := g.prepare(c)
	if err != nil {
		return err
	}
	g.commit(p)
	return nil
}

// Check reports everything for which Apply would refuse c, and changes nothing.
func (g *Gateway) Check(c *config.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.prepare(c)
	return err
}

// Changes says in words what differs between c and the running configuration.
func (g *Gateway) Changes(c *config.Config) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.Changes(g.config)
}

// SetReload says how the configuration is read again when the control socket asks for that.
// It is to be called before Run.
func (g *Gateway) SetReload(reload func(ctx context.Context, dryRun bool) (*control.Reloaded, error)) {
	g.reload = reload
}

// prepare does all of Apply that can fail, and changes nothing.
//
// Preconditions: g.mu is held.
// +checklocks:g.mu
func (g *Gateway) prepare(c *config.Config) (*prepared, error) {
	if err := c.ChangesLive(g.config); err != nil {
		return nil, err
	}
	p := &prepared{config: c, links: g.links.Assign(c.Geneve.Nodes)}
	err := g.reaches(c)
	if err != nil {
		return nil, err
	}
	if p.rules, err = g.engine.Prepare(c.NAT(p.links, g.budget.Connections)); err != nil {
		return nil, err
	}
	if p.tunnels, err = g.endpoint.Prepare(c.Tunnels(p.links)); err != nil {
		return nil, err
	}
	return p, nil
}

// reaches finds nodes that no socket of this machine sends to.
func (g *Gateway) reaches(c *config.Config) error {
	var errs []error
	for i := range c.Geneve.Nodes {
		at := c.Geneve.Nodes[i].Underlay
		if !g.endpoint.Reaches(at) {
			errs = append(errs, fmt.Errorf("geneve.nodes[%d].underlay: %s is of IPv6, which the kernel of this machine has not; boot it without ipv6.disable=1, "+
				"or write an IPv4 address", i, at))
		}
	}
	return errors.Join(errs...)
}

// commit does the rest, which cannot fail.
//
// Preconditions: g.mu is held.
// +checklocks:g.mu
func (g *Gateway) commit(p *prepared) {
	g.engine.Commit(p.rules)
	g.keeper.restore(p.links) // before packets come by them
	g.endpoint.Commit(p.tunnels)
	if err := g.wg.SetPeer(g.keeper.peer(&p.config.WireGuard)); err != nil {
		g.log.WithError(err).Warn("the WireGuard device is closed")
	}
	if old := g.config; p.config.ConnectionCheck != old.ConnectionCheck || p.config.WireGuard.PeerPublicKey != old.WireGuard.PeerPublicKey {
		g.check.begin(p.config, time.Now())
	}
	changes, level, before := p.config.Changes(g.config), p.config.Log.Level, g.config.Log.Level
	g.links, g.config = p.links, p.config
	g.log.Info("configuration applied: " + changes)
	if level != before {
		level, _ := logrus.ParseLevel(level) // who read it has checked it
		g.log.Logger.SetLevel(level)
	}
}

// close closes what open opened, in the order that lets each part end: the
// WireGuard device ends read through the tun device.
func (g *Gateway) close() {
	if g.uapi != nil {
		g.uapi.Close()
	}
	if g.endpoint != nil {
		g.endpoint.Close()
	}
	if g.wg != nil {
		g.wg.Close()
	}
	if g.health != nil {
		g.health.close()
	}
	if g.metrics != nil {
		g.metrics.close()
	}
	if g.control != nil {
		g.control.close()
	}
}

// newPortKey draws the key of nat's port choice.
func newPortKey() (key [16]byte) {
	rand.Read(key[:])
	return key
}

// clock is the monotonic time that nat is told.
func clock() nat.Time { return nat.Time(time.Since(started)) }

var started = time.Now()
