package services

import (
	"net/netip"
	"slices"

	"culvert/gateway/control"
	"culvert/nat"
)

// Status returns the Server's status; the caller adds what is not about Services.
func (s *Server) Status() control.NodeStatus {
	s.mu.Lock()
	c, announced := s.config, s.announcer.Addresses()
	s.mu.Unlock()
	status := c.Status()
	status.Interface, status.Fault, status.Announced = c.Interface, s.broken(), announced
	if why := s.lent.Load(); why != nil {
		status.Findings = []control.Finding{{Level: "warning", Cause: "client-ports", Kind: "node",
			Of: c.Node, Text: *why}}
	}
	st := s.engine.Stats()
	d := &st.Outbound // all packets come from the host
	status.Traffic = control.Traffic{Received: d.Received, Forwarded: d.Forwarded, Delivered: d.Delivered,
		Untracked: d.Untracked,
		Dropped:   d.DroppedInAll()}
	for reason, n := range d.Dropped {
		if reason > 0 && n > 0 {
			status.Traffic.Drops = append(status.Traffic.Drops,
				control.Drop{Reason: nat.Reason(reason).String(), Packets: n})
		}
	}
	status.Table = control.Table{
		Connections: st.Connections, Unreplied: st.Unreplied, Max: st.MaxConnections, BusiestPorts: st.BusiestPorts,
		BusiestPortsMax: st.BusiestPortsMax,
		Created:         st.Created, Restored: st.Restored, Expired: st.Expired, Evicted: st.Evicted,
		EarlyDropped: st.EarlyDropped,
	}
	return status
}

// Status returns what c serves.
func (c *Config) Status() control.NodeStatus {
	status := control.NodeStatus{Name: c.Node, Mode: string(c.Mode), Addresses: c.Addresses,
		Services: make([]control.NodeService, 0, len(c.Services))}
	for i := range c.Services {
		x := &c.Services[i]
		status.Services = append(status.Services, control.NodeService{
			Name: x.Name, Protocol: protocolName(x.Protocol), Addresses: slices.Concat([]netip.Addr{}, x.ClusterIPs,
				x.ExternalIPs, x.LoadBalancerIPs),
			Port: x.Port, NodePort: x.NodePort, Endpoints: len(x.Endpoints),
		})
	}
	return status
}

func protocolName(number uint8) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	return ""
}
