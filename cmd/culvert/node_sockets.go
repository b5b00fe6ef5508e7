//go:build !nokube

package main

import (
	"github.com/sirupsen/logrus"

	"culvert/gateway/node/services"
	"culvert/gateway/node/services/sockets"
)

func newSockets(c *services.Config, tolerant bool, log *logrus.Logger) (server, error) {
	s, err := sockets.New(c, tolerant, log)
	if s == nil {
		return nil, err // a nil *sockets.Server would be a server that is not nil
	}
	return s, err
}

func checkSockets(c *services.Config) []error { return sockets.Check(c) }
