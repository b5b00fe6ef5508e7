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

// nodeLoad looks whether this process has CPU time to spare, whatever it carries.
var nodeLoad load.Watch

func init() { page.Also = nodeLoad.Metrics }

// A shower lets culvert status see how a node does, until ctx ends.
type shower func(ctx context.Context, name string, status func() control.NodeStatus, log logrus.FieldLogger)

// showServices is the shower of a process that has no links: its socket is there when Services are served.
func showServices(ctx context.Context, name string, status func() control.NodeStatus, log logrus.FieldLogger) {
	began := time.Now()
	server := control.NewNodeServer(func() control.NodeStatus {
		n := status()
		n.Findings = append(n.Findings, nodeLoad.Findings()...)
		n.Version, n.PID, n.Started, n.UptimeSeconds = control.ReadVersion(), os.Getpid(), began, time.Since(began).Seconds()
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

// A linkStatus is how a process does that has links, and may serve Services too.
type linkStatus struct {
	services atomic.Pointer[func() control.NodeStatus]
}

// show lets culvert status see links, which each of parts says something about, and Services.
func (l *linkStatus) show(ctx context.Context, name string, log logrus.FieldLogger, parts ...func(*control.NodeStatus)) {
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

// beside is the shower of the Services of such a process.
func (l *linkStatus) beside(ctx context.Context, _ string, status func() control.NodeStatus, _ logrus.FieldLogger) {
	l.services.Store(&status)
	<-ctx.Done()
	l.services.Store(nil)
}

// errLinksStay says why no process can take the place of one that has links while that runs.
var errLinksStay = errors.New("with --liqo or --kube, the running process has the tunnels' UDP port; restart it: links, services.state and connections outlive it")

// listenSoon listens on a Unix socket, which the process that this one takes over from may have for a moment yet.
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
