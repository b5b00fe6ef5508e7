package config

import (
	"sync/atomic"

	"culvert/nat"
)

// Current holds the configuration that a gateway runs by and the links of its nodes, for all parts of the gateway. Get must not be called before Set.
type Current struct{ is atomic.Pointer[current] }

type current struct {
	config *Config
	links  Links
}

// Set replaces both. What c points to must not be changed any more.
func (c *Current) Set(config *Config, links Links) { c.is.Store(&current{config, links}) }

// Get returns the configuration and the links of one call of Set.
func (c *Current) Get() (*Config, Links) {
	is := c.is.Load()
	return is.config, is.links
}

// NodeName returns the name of the node that has a link; "" if it was removed meanwhile.
func (c *Current) NodeName(link nat.Link) string {
	for name, l := range c.is.Load().links.ByName {
		if l == link {
			return name
		}
	}
	return ""
}

// LinkName is NodeName, with Tunnel for the tunnel.
func (c *Current) LinkName(link nat.Link) string {
	if link == nat.Tunnel {
		return Tunnel
	}
	return c.NodeName(link)
}

// Tunnel is the name of the peer in places where nodes have names. A node of this name is not found by it.
const Tunnel = "tunnel"
