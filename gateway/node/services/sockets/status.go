package sockets

import (
	"fmt"

	"golang.org/x/sys/unix"

	"culvert/gateway/control"
)

// Status returns the Server's status; the caller adds what is not about Services.
func (s *Server) Status() control.NodeStatus {
	s.mu.Lock()
	status := s.config.Status()
	s.mu.Unlock()
	status.Fault = s.fault()
	status.Table = control.Table{Connections: s.tcpLimit.count() + s.all.count(), Max: s.tcpLimit.size() + s.all.max}
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		status.Table.Created += s.stats.createdOf(protocol).Load()
		for _, reason := range refusals {
			if n := s.stats.refusedOf(protocol).of(reason).Load(); n > 0 {
				status.Traffic.Drops = append(status.Traffic.Drops,
					control.Drop{Reason: fmt.Sprintf("%s %s", names[protocol], reason), Packets: n})
			}
		}
	}
	return status
}
