package config

import (
	"errors"
	"fmt"
)

// TakesOver is part of each line of ChangesLive about a field that can change in a process that
// takes over.
const TakesOver = "cannot change while the gateway runs; to keep connections"

// ChangesLive refuses, by name, each difference from old that needs another process. A process that
// takes over may change everything except cluster, peer and WireGuard's port.
func (c *Config) ChangesLive(old *Config) error {
	var errs []error
	fixed := func(path string, same bool) {
		if !same {
			remedy := TakesOver +
				" start culvert gateway --takeover with this file (culvert reload --takeover does), else restart it"
			if path == "cluster" || path == "peer" || path == "wireguard.listenPort" {
				remedy = "cannot change while the gateway runs; restart it"
			}
			errs = append(errs, fmt.Errorf("%s: %s", path, remedy))
		}
	}
	fixed("cluster", c.Cluster == old.Cluster)
	fixed("peer", c.Peer == old.Peer)
	fixed("mtu", c.MTU == old.MTU)
	fixed("wireguard.role", c.WireGuard.Role == old.WireGuard.Role)
	fixed("wireguard.privateKeyFile", c.WireGuard.PrivateKey == old.WireGuard.PrivateKey)
	fixed("wireguard.listenPort", c.WireGuard.ListenPort == old.WireGuard.ListenPort)
	fixed("wireguard.uapi", c.WireGuard.UAPI == old.WireGuard.UAPI)
	fixed("geneve.listenPort", c.Geneve.ListenPort == old.Geneve.ListenPort)
	fixed("rules", c.Given.Rules == old.Given.Rules)
	fixed("state", c.State == old.State)
	fixed("ipam.file", c.IPAM.File == old.IPAM.File || c.State != old.State)
	fixed("control", c.Control == old.Control)
	fixed("metrics", c.Metrics == old.Metrics && c.Health == old.Health && c.Liqo == old.Liqo &&
		c.Peering == old.Peering)
	fixed("--leader-election", c.Elected == old.Elected)
	fixed("log.format", c.Log.Format == old.Log.Format)
	return errors.Join(errs...)
}
