package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/control"
)

// runningPatience is how long --check waits for an answer of a gateway that may already run with
// the same file.
const runningPatience = time.Second

// portsInUse returns a warning for each port of a configuration that a process on this machine
// uses. There is none if that process is the gateway of this configuration, which answers at its
// control socket.
func portsInUse(ctx context.Context, c *config.Config) (warnings []string) {
	if runs(ctx, c) {
		return nil
	}
	udp := func(field string, port uint16) {
		if port == 0 {
			return
		}
		conn, err := net.ListenPacket("udp", net.JoinHostPort("", strconv.Itoa(int(port))))
		if err == nil {
			conn.Close()
		} else if errors.Is(err, syscall.EADDRINUSE) {
			warnings = append(warnings,
				fmt.Sprintf("%s: UDP port %d is in use on this machine; stop what uses it or choose another",
					field, port))
		}
	}
	tcp := func(field, address string) {
		if address == "" {
			return
		}
		l, err := net.Listen("tcp", address)
		if err == nil {
			l.Close()
		} else if errors.Is(err, syscall.EADDRINUSE) {
			warnings = append(warnings,
				fmt.Sprintf("%s: %s is in use on this machine; stop what uses it or choose another", field, address))
		}
	}
	udp("wireguard.listenPort", c.WireGuard.ListenPort)
	udp("geneve.listenPort", c.Geneve.ListenPort)
	tcp("metrics", c.Metrics)
	return warnings
}

// runs reports whether the gateway of a configuration runs on this machine.
func runs(ctx context.Context, c *config.Config) bool {
	path := c.Control
	if path == config.ControlAuto {
		path = control.DefaultPath(c.Cluster, c.Peer)
	}
	if path == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, runningPatience)
	defer cancel()
	s, err := control.NewClient(path).Status(ctx)
	return err == nil && s.Cluster == c.Cluster
}
