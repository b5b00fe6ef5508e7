//go:build !nokube

package main

import (
	"github.com/sirupsen/logrus"

	"culvert/gateway/node/services"
	"culvert/gateway/node/services/sockets"
)

func newSockets(c *services.Config, tolerant bool, log *logrus.Logger) (server, error) {
	return sockets.New(c, tolerant, log)
}

func checkSockets(c *services.Config) []error { return sockets.Check(c) }
