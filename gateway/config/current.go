package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"culvert/gateway/wgkey"
	"culvert/nat"
)

// Current holds the configuration that a gateway runs by and the links of its nodes, for all parts
// of the gateway. Get must not be called before Set.
type Current struct{ is atomic.Pointer[current] }

type current struct {
	config   *Config
	links    Links
	identity func() string
}

// Set replaces both. What c points to must not be changed any more.
func (c *Current) Set(config *Config, links Links) {
	c.is.Store(&current{config, links, sync.OnceValue(config.identity)})
}

// Identity identifies the configuration: replicas whose configurations have the same identity admit
// the same connections. It is computed once for each configuration.
func (c *Current) Identity() string { return c.is.Load().identity() }

func (c *Config) identity() string {
	same := *c
	same.File, same.Log, same.WireGuard.PresharedKey = File{}, Log{}, wgkey.Key{}
	same.Geneve.Nodes = slices.SortedFunc(slices.Values(c.Geneve.Nodes), func(a, b Node) int {
		return cmp.Compare(a.Name, b.Name)
	})
	for i := range same.Geneve.Nodes {
		same.Geneve.Nodes[i].Underlay = netip.Addr{} // from which a node sends to a pod depends on where the pod is
	}
	text, err := json.Marshal(&same)
	if err != nil {
		panic(err) // unreachable: the configuration is read from such text
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

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

// Tunnel is the name of the peer in places where nodes have names. A node of this name is not found
// by it.
const Tunnel = "tunnel"
