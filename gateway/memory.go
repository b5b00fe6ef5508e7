package gateway

import "github.com/KimMachineGun/automemlimit/memlimit"

const (
	maxAutoConnections = 1 << 20
	bytesPerConnection = 256 // index included; nat.BenchmarkMemory
)

// autoConnections is the cap of the connection table where the configuration gives
// none: what a quarter of the memory limit of this process's control group holds.
func autoConnections() int {
	limit, err := memlimit.FromCgroup()
	if err != nil {
		return maxAutoConnections // no limit, or no way to know one
	}
	return int(min(limit/4/bytesPerConnection, maxAutoConnections))
}
