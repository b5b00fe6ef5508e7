package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/gateway/node"
	"culvert/gateway/node/services"
	"culvert/gateway/node/services/steer"
	"culvert/gateway/procs"
)

// runNode runs the node described by c. links also shows the status of links; nil: there are none.
func runNode(ctx context.Context, load func() (*node.Config, error), c *node.Config, k *nodeKube,
	links *linkStatus) error {
	log, err := newLogger("info", "text")
	if err != nil {
		return err
	}
	// A signal that arrives before the rules are complete would end the process, and leave them.
	// This is never undone: a signal after everything has stopped must not turn success into a
	// failure.
	hup, usr2 := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	if c.Services != nil {
		signal.Notify(usr2, syscall.SIGUSR2)
	}
	chooseProcs(c.CPUs)
	log.WithFields(logrus.Fields{"version": control.ReadVersion(), "node": c.Name}).Info("node starting")
	for _, w := range c.Warnings {
		log.Warn(w)
	}
	leaveRemains(c.Services, log)
	whole := ctx
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go nodeLoad.Run(ctx, c.Name, c.CPUs == 0 && k.on(), log)
	p := &nodeParts{ends: make(chan error, 2), stop: stop}
	var change func(context.Context, *services.Config) error
	if c.Services != nil {
		var serve func(context.Context) error
		if serve, change, err = openServices(ctx, c, k, links, usr2, log); err != nil {
			return err
		}
		p.run(ctx, serve)
	}
	go rereadServices(ctx, hup, load, c, change, log)
	if c.Tunnel {
		tunnel, err := openTunnel(ctx, c, log)
		if err != nil {
			stop()
			_, ended := p.wait()
			return errors.Join(err, ended)
		}
		p.run(ctx, tunnel)
	}
	if err := notify("READY=1"); err != nil {
		log.WithError(err).Warn("the service manager cannot be told that this node runs")
	}
	handed, err := p.wait()
	switch {
	case err != nil:
		return cli.Failed(err)
	case handed != nil:
		return afterHandOver(whole, c.Services, handed, log)
	}
	return nil
}

// nodeParts are what serves Services and what runs the tunnel. Neither continues without the other.
type nodeParts struct {
	ends    chan error
	running int
	stop    func()
}

func (p *nodeParts) run(ctx context.Context, part func(context.Context) error) {
	p.running++
	go func() { p.ends <- part(ctx) }()
}

// wait waits until all have ended. handed says to whom the Services were handed over, if they were.
func (p *nodeParts) wait() (handed *services.HandedOver, err error) {
	for range p.running {
		if ended := <-p.ends; !errors.As(ended, &handed) {
			err = errors.Join(err, ended)
		}
		p.stop()
	}
	return handed, err
}

// openServices returns a function that serves Services until its context ends, and one that
// replaces them. usr2 makes another process take over.
func openServices(ctx context.Context, c *node.Config, k *nodeKube, links *linkStatus, usr2 <-chan os.Signal,
	log *logrus.Logger) (serve func(context.Context) error, change func(context.Context, *services.Config) error,
	err error) {
	if c.Services.Mode != services.Sockets {
		nodeLoad.Devices(func() []string { return []string{c.Services.Interface} })
	}
	open := serveFile
	if k.on() {
		open = k.serve
	}
	show, may := showServices, func() error { return mayTakeOver(c) }
	if links != nil {
		show, may = links.beside, func() error { return errLinksStay }
	}
	if serve, change, err = open(c.Services, show, log); err == nil {
		(&successor{may: may, args: []string{"--takeover"}, log: log}).watch(ctx, usr2)
	}
	return serve, change, err
}

// openTunnel returns a function that runs the tunnel to the gateway until its context ends.
func openTunnel(ctx context.Context, c *node.Config, log *logrus.Logger) (func(context.Context) error, error) {
	n, err := node.New(ctx, c, log)
	if err != nil {
		return nil, err
	}
	if device, socket, ok := n.Carrier(); ok {
		nodeLoad.Devices(func() []string { return []string{device} })
		nodeLoad.Socket("the gateway", socket)
	}
	return n.Run, nil
}

// leaveRemains removes the remains of an earlier run that served Services by a TUN device, if this
// run does not: rules that lead to no device and, if this run serves Services by sockets, a waiting
// device. It ignores what it cannot inspect, for example without privilege in some sandboxes.
func leaveRemains(c *services.Config, log logrus.FieldLogger) {
	if c != nil && c.Mode != services.Sockets {
		return // this run continues with them
	}
	found, err := steer.RemoveRemains(c != nil)
	switch {
	case found > 0 && err != nil:
		log.WithError(err).WithField("remedy", "run as root: culvert node --remove").Warn(
			"an earlier run has left rules that lead packets for Services elsewhere")
	case found > 0:
		log.WithField("removed", found).Info("leftovers of an earlier run's Services are removed")
	}
}

// afterHandOver ends this process after another one has taken over. As process 1 of a container it
// waits instead: otherwise the container would be restarted and take over in turn. If the other
// process dies, this program restarts itself.
func afterHandOver(ctx context.Context, c *services.Config, to *services.HandedOver, log logrus.FieldLogger) error {
	if os.Getpid() != 1 {
		if to.Process == 0 {
			return nil
		}
		if err := notify(fmt.Sprintf("MAINPID=%d", to.Process)); err != nil {
			log.WithError(err).Warn("the service manager cannot be told that another process serves")
		}
		return nil
	}
	log.Info("waiting, to serve again if the other process dies")
	if !services.Await(ctx, c) {
		return nil
	}
	log.Warn("the other process has died: starting again")
	return cli.Failed(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// serveFile returns a function that serves the Services of a file until its context ends, and one
// that replaces them.
func serveFile(c *services.Config, show shower, log *logrus.Logger) (serve func(context.Context) error,
	change func(context.Context, *services.Config) error, err error) {
	s, err := newServer(c, false, log)
	if s == nil {
		return nil, nil, err
	}
	if err != nil { // a Server that has taken over serves even with an error
		log.WithError(err).Error("not all is served: a change of the file or SIGHUP tries again")
	}
	return func(ctx context.Context) error { return runServer(ctx, s, c.Node, show, log) }, s.Apply, nil
}

// A server serves Services in one of their modes.
type server interface {
	Run(context.Context) error
	Apply(context.Context, *services.Config) error
	Status() control.NodeStatus
}

// runServer runs a server, and shows its status.
func runServer(ctx context.Context, s server, name string, show shower, log logrus.FieldLogger) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { show(ctx, name, s.Status, log) })
	err := s.Run(ctx)
	stop()
	return err
}

// newServer returns a server for c. A tolerant one runs without addresses that the machine lacks
// and, by sockets, without ports that it cannot get.
func newServer(c *services.Config, tolerant bool, log *logrus.Logger) (server, error) {
	if c.Mode == services.Sockets {
		return newSockets(c, tolerant, log)
	}
	s, err := services.New(c, tolerant, log)
	if s == nil {
		return nil, err
	}
	return s, err
}

// rereadServices serves the file's Services again at each SIGHUP; change is nil if none are served.
// A file with any fault, or with changes to the tunnel, changes nothing.
func rereadServices(ctx context.Context, hup <-chan os.Signal, load func() (*node.Config, error), c *node.Config,
	change func(context.Context, *services.Config) error, log logrus.FieldLogger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		next, err := load()
		if err == nil && !c.SameTunnel(next) {
			err = errors.New("only services and cpus change while a node runs; restart it, and set keepLinks: true " +
				"first where its link is to carry packets meanwhile")
		}
		if err == nil && change != nil {
			err = change(ctx, next.Services)
		}
		if err == nil {
			procs.Use(next.CPUs)
		}
		if err != nil {
			log.WithError(err).Error("configuration refused, the running one stays")
			continue
		}
		log.Info("configuration applied")
	}
}
