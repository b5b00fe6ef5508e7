package nat

import (
	"errors"
	"fmt"
)

// The smallest MTU: what every IPv4 host must accept unfragmented (RFC 791, Section 3.1), and
// IPv6's minimum (RFC 8200, Section 5).
const (
	minMTU  = 576
	minMTU6 = 1280
	maxMTU  = 65535
	// maxEntries bounds MaxConnections: 3 GiB of connections.
	maxEntries = 1 << 24
)

// validate returns every fault of c, joined, or nil.
func (c *Config) validate() error {
	faults := []error{c.Config.Validate()}
	low := minMTU
	for _, p := range c.LocalPodCIDRs {
		if p.Addr().Is6() {
			low = minMTU6
		}
	}
	if c.MTU < low || c.MTU > maxMTU {
		faults = append(faults, fmt.Errorf("nat: config: MTU: %d is not between %d and %d", c.MTU, low, maxMTU))
	}
	if c.MaxConnections < 0 || c.MaxConnections > maxEntries {
		faults = append(faults, fmt.Errorf("nat: config: MaxConnections: %d is not between 0 and %d",
			c.MaxConnections, maxEntries))
	}
	return errors.Join(faults...)
}
