package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/seats"
	"culvert/gateway/unixsocket"
)

// controlServer serves the control socket. As many connections as to the metrics wait for
// nobody; see package seats.
type controlServer struct {
	listener net.Listener // nil = off
	server   *control.Server
}

// newControlServer opens the socket; serve starts answering.
func newControlServer(c *config.Config, g *Gateway) (*controlServer, error) {
	path := c.Control
	if path == config.ControlAuto {
		path = control.DefaultPath(c.Cluster, c.Peer)
	}
	if path == "" {
		return &controlServer{}, nil
	}
	l, err := g.taken.listener("control", path)
	if l == nil && err == nil {
		l, err = unixsocket.Listen(path)
	}
	switch {
	case err != nil && c.Control == config.ControlAuto:
		g.log.WithError(err).Warn("no control socket, so that culvert status and the like cannot ask this gateway; choose its place by control, or make that \"\"")
		return &controlServer{}, nil
	case err != nil:
		return nil, fmt.Errorf("control: %w; or make control \"\"", err)
	}
	return &controlServer{seats.New(l), control.NewServer(source{g}, newErrorLog(g.log, "control"))}, nil
}

func (s *controlServer) serve() {
	if s.listener != nil {
		go s.server.Serve(s.listener)
	}
}

func (s *controlServer) close() {
	if s.listener != nil {
		s.server.Close()
		s.listener.Close()
	}
}

// source is a Gateway as control looks at it.
type source struct{ g *Gateway }

var errNoReload = errors.New("this gateway has no file to read again")

// Reload implements control.Source.
func (s source) Reload(ctx context.Context, dryRun bool) (*control.Reloaded, error) {
	if s.g.reload == nil {
		return nil, errNoReload
	}
	if s.g.handing.Load() {
		return nil, errHanding
	}
	return s.g.reload(ctx, dryRun)
}
