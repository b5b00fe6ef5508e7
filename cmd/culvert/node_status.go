package main

import (
	"context"
	"errors"
	"io"
	stdlog "log"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/control"
	"culvert/gateway/node/load"
	"culvert/gateway/node/page"
	"culvert/gateway/unixsocket"
)

// nodeLoad checks whether this process has CPU time to spare, whatever it carries.
var nodeLoad load.Watch

func init() { page.Also = nodeLoad.Metrics }

// A shower serves a node's status to culvert status, until ctx ends.
type shower func(ctx context.Context, name string, status func() control.NodeStatus, log logrus.FieldLogger)

// showServices is the shower of a process without links: its socket exists while Services are
// served.
func showServices(ctx context.Context, name string, status func() control.NodeStatus, log logrus.FieldLogger) {
	began := time.Now()
	server := control.NewNodeServer(func() control.NodeStatus {
		n := status()
		n.Findings = append(n.Findings, nodeLoad.Findings()...)
		n.DeviceDrops = nodeLoad.Drops()
		n.Version, n.PID, n.Started, n.UptimeSeconds = control.ReadVersion(), os.Getpid(), began,
			time.Since(began).Seconds()
		return n
	}, stdlog.New(io.Discard, "", 0))
	l, err := listenSoon(ctx, control.NodePath(name))
	if err != nil {
		log.WithError(err).Warn("culvert status finds no node here")
		return
	}
	defer context.AfterFunc(ctx, server.Close)()
	server.Serve(l)
}

// A linkStatus is the status of a process that has links, and may serve Services too.
type linkStatus struct {
	services atomic.Pointer[func() control.NodeStatus]
}

// show serves the status of links, to which each of parts adds something, and of Services.
func (l *linkStatus) show(ctx context.Context, name string, log logrus.FieldLogger,
	parts ...func(*control.NodeStatus)) {
	showServices(ctx, name, func() control.NodeStatus {
		n := control.NodeStatus{Name: name, Services: []control.NodeService{}}
		if services := l.services.Load(); services != nil {
			n = (*services)()
		}
		for _, part := range parts {
			part(&n)
		}
		return n
	}, log)
}

// beside is the shower for the Services of such a process.
func (l *linkStatus) beside(ctx context.Context, _ string, status func() control.NodeStatus, _ logrus.FieldLogger) {
	l.services.Store(&status)
	<-ctx.Done()
	l.services.Store(nil)
}

// errLinksStay says why no process can take over from a running one that has links.
var errLinksStay = errors.New("with --liqo or --kube, the running process has the tunnels' UDP port; restart it: " +
	"links, services.state and connections outlive it")

// listenSoon listens on a Unix socket, which the process that this one replaces may still have for
// a moment.
func listenSoon(ctx context.Context, path string) (l net.Listener, err error) {
	ctx, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	for {
		if l, err = unixsocket.Listen(path); err == nil {
			return l, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(listenPause):
		}
	}
}

const (
	listenPatience = 5 * time.Second
	listenPause    = 20 * time.Millisecond
)
