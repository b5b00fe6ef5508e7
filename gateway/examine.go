package gateway

import (
	"fmt"
	"math"
	"runtime/debug"
	"slices"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/doctor"
)

// Examine reports what this machine offers to a gateway with configuration c, or to one with the
// default ports if c is nil. running names the gateways that may use these ports, by process ID.
func Examine(c *config.Config, running map[int]string) []control.Condition {
	if c == nil {
		c = &config.Config{Metrics: config.DefaultMetrics,
			WireGuard: config.WireGuard{ListenPort: config.DefaultWireGuardPort},
			Geneve:    config.Geneve{ListenPort: config.DefaultGenevePort}}
	}
	ports := slices.DeleteFunc([]doctor.Port{
		{Field: "wireguard.listenPort", Network: "udp", Address: fmt.Sprintf(":%d", c.WireGuard.ListenPort)},
		{Field: "geneve.listenPort", Network: "udp", Address: fmt.Sprintf(":%d", c.Geneve.ListenPort)},
		{Field: "metrics", Network: "tcp", Address: c.Metrics},
		{Field: "health", Network: "tcp", Address: c.Health},
	}, func(p doctor.Port) bool { return p.Address == "" || p.Address == ":0" }) // switched off, or any free port
	for i := range ports {
		ports[i].Gateways = running
	}
	b := ReadBudget()
	return doctor.Examine(&doctor.Subject{Memory: b.memory(), Ports: ports})
}

// memory returns the limit that b follows, and where it comes from.
func (b *Budget) memory() doctor.Memory {
	m := doctor.Memory{Connections: b.Connections}
	group, err := memlimit.FromCgroup()
	if err != nil || group > math.MaxInt64 {
		group = 0
	}
	heap := debug.SetMemoryLimit(-1) // derived from the group's by divide, unless GOMEMLIMIT is set
	switch {
	case heap != math.MaxInt64 && heap != b.Heap && (group == 0 || heap/7*10 < int64(group)):
		m.Limit, m.By = heap, "GOMEMLIMIT"
	case group > 0:
		m.Limit, m.By = int64(group), "the control group"
	}
	return m
}
