package gateway

import (
	"context"
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
	"culvert/gateway/health"
	"culvert/gateway/inspect"
	"culvert/gateway/lifecycle"
	"culvert/gateway/monitor"
	"culvert/gateway/path"
	"culvert/gateway/role"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
)

// Gateway joins the nodes of one cluster with one remote cluster.
type Gateway struct {
	log      *logrus.Entry
	budget   Budget
	udp      udp.Options // for the sockets of both tunnels
	deaf     bool        // its network is not the kernel's
	engine   *nat.Engine
	endpoint *geneve.Endpoint
	wg       *wg.Device
	path     *path.Path
	monitor  *monitor.Monitor
	inspect  *inspect.Source
	life     *lifecycle.Life
	uapi     net.Listener // nil = off
	metrics  *inspect.Server
	health   *inspect.Server
	control  *inspect.Control
	ready    atomic.Bool
	role     atomic.Int32 // a role.Role
	// nil: the table is not replicated
	replicating *replicating

	current  config.Current
	applying sync.Mutex // held while current, or anything derived from it, changes
}

// New opens every socket of the gateway that c describes and starts its tunnel.
// On error nothing is left open. The error names the field of the configuration
// that could not be satisfied.
func New(c *config.Config, budget Budget, log *logrus.Logger) (*Gateway, error) {
	return NewOver(c, budget, log, nil)
}

// NewOver is New on the caller's network: open opens its sockets. It asks nothing of the kernel.
func NewOver(c *config.Config, budget Budget, log *logrus.Logger, open func(network string,
	at netip.AddrPort) (udp.Conn, error)) (*Gateway, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	o := internalOptions(c, budget)
	o.UDP.Open = open
	o.Aside = open == nil && (c.Liqo || c.Peering) // it is a pod
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

func newGatewayFrom(t *lifecycle.Taking, c *config.Config, budget Budget, log *logrus.Logger, internal geneve.Options) (
	*Gateway, error) {
	g := &Gateway{log: logrus.NewEntry(log), budget: budget, deaf: internal.UDP.Open != nil}
	if c.Cluster != "" {
		g.log = g.log.WithField("cluster", c.Cluster)
	}
	if c.Elected {
		g.role.Store(int32(role.Standby))
	}
	g.life = lifecycle.New(lifecycle.Options{Log: g.log, Current: &g.current, Applying: &g.applying,
		Ready: g.ready.Load, Listeners: g.listeners,
		AsOf: g.asOf}, t)
	g.udp, internal.UDP = g.life.Lend("wireguard", internal.UDP), g.life.Lend("geneve", internal.UDP)
	if err := g.open(c, internal); err != nil {
		g.close()
		g.life.Close()
		return nil, err
	}
	return g, nil
}

// open opens everything. No other goroutine uses g yet.
func (g *Gateway) open(c *config.Config, internal geneve.Options) (err error) {
	if err := g.life.Open(c); err != nil {
		return err
	}
	if g.Role() == role.Standby { // before there are sockets
		g.life.Mute("geneve", true)
		g.life.Mute("wireguard", true)
	}
	links := config.Links{}.Assign(c.Geneve.Nodes)
	g.current.Set(c, links)
	if g.engine, err = nat.New(g.life.PortKey(), c.NAT(links, g.budget.Connections)); err != nil {
		return err
	}
	if g.Role() == role.Standby {
		g.engine.Freeze()
	}
	g.life.Restore(g.engine, links)
	if g.endpoint, err = geneve.Listen(internal); err != nil {
		return socketError("geneve.listenPort", c.Geneve.ListenPort, err)
	}
	if err := g.reaches(c); err != nil {
		return err
	}
	if err := g.endpoint.Apply(c.Tunnels(links)); err != nil {
		return err
	}
	g.connectPath(c)

	if err := g.openWireGuard(c); err != nil {
		return err
	}
	if c.WireGuard.UAPI {
		if g.uapi, err = g.life.ListenUAPI("cv-" + c.Cluster); err != nil {
			return fmt.Errorf("wireguard.uapi: %w; or set uapi: false", err)
		}
	}
	if g.metrics, err = inspect.NewServer("metrics", c.Metrics, g.inspect); err != nil {
		return err
	}
	if g.health, err = inspect.NewServer("health", c.Health, g.inspect); err != nil {
		return err
	}
	g.control, err = inspect.NewControl(c, g.inspect)
	return err
}

// connectPath builds the packet path between the Geneve endpoint and the WireGuard device, and the
// parts beside it.
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
	g.path = path.New(g.engine, g.endpoint, g.wg, int(c.MTU))
	g.monitor = monitor.New(g.path, &g.current, g.log, g.deaf)
	g.path.Local = g.monitor
	g.monitor.SetReach(reaches[g.Role()])
	g.life.Begin(g.path, g.monitor)
	g.inspect = inspect.New(inspect.Options{
		Log: g.log, Path: g.path, Monitor: g.monitor, Current: &g.current, Life: g.life, Ready: g.ready.Load,
		Heap: g.budget.Heap, Memory: g.budget.memory,
	})
}

func (g *Gateway) openWireGuard(c *config.Config) error {
	if err := g.path.Open(g.peer(c)); err != nil {
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
	defer g.life.End()
	defer g.close()
	stop := ctx.Done()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // tasks run until this function returns
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()

	c, _ := g.current.Get()
	if c.WireGuard.Role == config.Client {
		tasks.Go(func() { g.wg.FollowEndpoint(ctx) })
	}
	if g.uapi != nil {
		tasks.Go(func() { g.wg.ServeUAPI(g.uapi) })
		defer g.uapi.Close()
	}
	g.monitor.LookAtProgress(path.Uptime())
	tasks.Go(func() { g.sweep(ctx) })
	tasks.Go(func() { g.life.Keep(ctx) })
	tasks.Go(func() { g.monitor.CheckConnection(ctx) })
	tasks.Go(func() { g.monitor.ProbePaths(ctx) })
	tasks.Go(func() { g.life.Overlap() })
	if r := g.replicating; r != nil {
		tasks.Go(func() { r.Serve(r.listener) })
		defer r.Close()
	}
	g.metrics.Serve()
	g.health.Serve()
	g.control.Serve()
	g.ready.Store(true)
	g.logStart(c)

	select {
	case <-stop:
		g.ready.Store(false)
		if g.life.Finish() {
			return nil
		}
		g.applying.Lock() // waits for a running Apply, which may set the log's level
		log := g.log
		if g.replicating != nil && g.Role() == role.Standby {
			log = log.WithField("dropped", g.unheard()-g.replicating.unheard)
		}
		log.Info("stopping")
		g.applying.Unlock()
		return nil
	case <-g.life.Gone():
		g.ready.Store(false)
		return nil
	case <-g.wg.Wait():
		return errors.New("gateway: the WireGuard device stopped by itself; its log says why")
	}
}

func (g *Gateway) logStart(c *config.Config) {
	g.log.WithFields(logrus.Fields{
		"version":       control.ReadVersion().String(),
		"peer":          c.Peer,
		"role":          c.WireGuard.Role,
		"publicKey":     c.WireGuard.PrivateKey.Public().Base64(),
		"wireguardPort": g.wg.Port(),
		"genevePort":    c.Geneve.ListenPort,
		"nodes":         len(c.Geneve.Nodes),
		"mtu":           int(c.MTU),
	}).Info("gateway running")
	tunnel := g.wg.Stats()
	for name, s := range g.path.Sockets(&tunnel) {
		if s.ReceiveBuffer < minReceiveBuffer {
			g.log.WithFields(logrus.Fields{"socket": name, "bytes": s.ReceiveBuffer}).
				Warn("small receive buffer: bursts will be lost; raise net.core.rmem_max to 4194304 or more")
		}
	}
}

// minReceiveBuffer is where measurements begin to show losses: one train takes up
// to 64 KiB, which the kernel books as about twice that.
const minReceiveBuffer = 1 << 20

// close closes what open opened, in an order in which each part can stop: the WireGuard device
// stops read through the tun device.
func (g *Gateway) close() {
	if g.uapi != nil {
		g.uapi.Close()
	}
	if r := g.replicating; r != nil {
		r.listener.Close()
		r.Close()
	}
	if g.endpoint != nil {
		g.endpoint.Close()
	}
	if g.wg != nil {
		g.wg.Close()
	}
	if g.health != nil {
		g.health.Close()
	}
	if g.metrics != nil {
		g.metrics.Close()
	}
	if g.control != nil {
		g.control.Close()
	}
}

// Path returns the way of packets through the gateway.
func (g *Gateway) Path() *path.Path { return g.path }

// Current returns what the gateway is configured with, and the links of its nodes. What they point
// to must not be changed.
func (g *Gateway) Current() (*config.Config, config.Links) { return g.current.Get() }

// Saved returns when connections were last written to the state folder; zero = never.
func (g *Gateway) Saved() time.Time { return g.life.Saved() }

// Connection returns what the connection check has found.
func (g *Gateway) Connection() monitor.CheckStatus { return g.monitor.Connection() }

// Findings returns what the log last said about each current fault and each fault that has just
// ended.
func (g *Gateway) Findings() []health.Finding { return g.monitor.Findings(path.Uptime()) }

// listeners returns the open listeners by name.
func (g *Gateway) listeners() map[string]net.Listener {
	all := make(map[string]net.Listener)
	if g.metrics.Listener != nil {
		all["metrics"] = g.metrics.Listener
	}
	if g.health.Listener != nil {
		all["health"] = g.health.Listener
	}
	if g.control.Listener != nil {
		all["control"] = g.control.Listener
	}
	if g.uapi != nil {
		all["uapi"] = g.uapi
	}
	return all
}

// ControlSocket returns the path of the control socket; "" = none.
func (g *Gateway) ControlSocket() string {
	if g.control.Listener == nil {
		return ""
	}
	return g.control.Listener.Addr().String()
}

// Successor returns the process that has taken over; 0 = none has, or it is unknown.
func (g *Gateway) Successor() int { return g.life.Successor() }

// LearnFrom makes the gateway report to t, which configures it in place of a file. It must be
// called before Run.
func (g *Gateway) LearnFrom(t inspect.Teacher) { g.inspect.Teacher = t }

// Exchange passes the peer's datagrams about the Services that it exports to take, which returns
// false for a useless one.
func (g *Gateway) Exchange(take func(datagram []byte) bool) { g.monitor.Exchange(take) }

// Tell sends the peer a datagram about exports, as package exports makes them. In a role that does
// not speak it does nothing.
func (g *Gateway) Tell(datagram []byte) { g.monitor.Tell(datagram) }

// ElectedBy makes the gateway's status show the election of e. It must be called before Run.
func (g *Gateway) ElectedBy(e inspect.Elector) { g.inspect.Elector = e }
