package gateway

import (
	"github.com/KimMachineGun/automemlimit/memlimit"

	"culvert/geneve/udp"
)

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

// receiveBuffer is the size in bytes of each of the three sockets' receive buffers: a
// 32nd of the memory limit, for which the kernel books up to twice as much. A
// flood fills them, and control groups of version 2 count them.
func receiveBuffer() int {
	limit, err := memlimit.FromCgroup()
	if err != nil {
		return udp.DefaultSocketBuffer
	}
	return int(min(max(limit/32, minReceiveBuffer), udp.DefaultSocketBuffer))
}
