package inspect

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

// Control serves the control socket. It has as many connections as the metrics listener; see
// package seats.
type Control struct {
	Listener net.Listener // nil = off
	server   *control.Server
}

// NewControl opens the socket; Serve starts answering.
func NewControl(c *config.Config, src *Source) (*Control, error) {
	path := c.Control
	if path == config.ControlAuto {
		path = control.DefaultPath(c.Cluster, c.Peer)
	}
	if path == "" {
		return &Control{}, nil
	}
	l, err := src.Life.Listener("control", path)
	if l == nil && err == nil {
		l, err = unixsocket.Listen(path)
	}
	switch {
	case err != nil && c.Control == config.ControlAuto:
		src.Log.WithError(err).
			Warn("no control socket, so culvert status and similar commands cannot ask this gateway; set control to another path, or to \"\"")
		return &Control{}, nil
	case err != nil:
		return nil, fmt.Errorf("control: %w; or make control \"\"", err)
	}
	return &Control{seats.New(l), control.NewServer(src, newErrorLog(src.Log, "control"))}, nil
}

// Serve answers until Close.
func (s *Control) Serve() {
	if s.Listener != nil {
		go s.server.Serve(s.Listener)
	}
}

// Close ends all conversations.
func (s *Control) Close() {
	if s.Listener != nil {
		s.server.Close()
		s.Listener.Close()
	}
}

// Reload implements control.Source.
func (src *Source) Reload(ctx context.Context, dryRun bool) (*control.Reloaded, error) {
	if src.ReadAgain == nil {
		return nil, errNoReload
	}
	if err := src.Life.Changeable(); err != nil {
		return nil, err
	}
	return src.ReadAgain(ctx, dryRun)
}

var errNoReload = errors.New("this gateway has no file to read again")
