package services

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/nat/rules"
)

const localRange = "net.ipv4.ip_local_port_range"

// checkPorts refuses masquerading ports that the kernel may give to its own connections.
func (c *Config) checkPorts() error {
	own, err := localPorts()
	if err != nil {
		return err
	}
	if overlap(own, c.Ports) {
		return fmt.Errorf("services.clientPorts: %d-%d, and this node gives %d-%d to connections of its own; sysctl -w %s=\"%d %d\", or choose others",
			c.Ports.First, c.Ports.Last, own.First, own.Last, localRange, min(own.First, c.Ports.First-1), c.Ports.First-1)
	}
	return nil
}

// localPorts returns the ports that the kernel gives to its own connections.
func localPorts() (own rules.PortRange, err error) {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(localRange, ".", "/"))
	if err != nil {
		return own, fmt.Errorf("services: read %s: %w", localRange, err)
	}
	if _, err := fmt.Sscan(string(b), &own.First, &own.Last); err != nil {
		return own, fmt.Errorf("services: %s is %q: %w", localRange, b, err)
	}
	return own, nil
}

func overlap(a, b rules.PortRange) bool { return a.First <= b.Last && b.First <= a.Last }

// lentPorts returns the node ports that the kernel may give to its own connections, whose answers the service would then get. It does not give out
// reserved ports (net.ipv4.ip_local_reserved_ports).
func (c *Config) lentPorts() (all []rules.PortRange) {
	own, err := localPorts()
	if err != nil {
		return nil // New has reported it
	}
	reserved, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
	for _, r := range c.nodePorts() {
		if overlap(own, r.ports) && !slices.ContainsFunc(strings.Split(strings.TrimSpace(string(reserved)), ","), func(s string) bool {
			first, last, isRange := strings.Cut(s, "-")
			if !isRange {
				last = first
			}
			low, _ := strconv.ParseUint(first, 10, 16)
			high, _ := strconv.ParseUint(last, 10, 16)
			return uint16(low) <= r.ports.First && r.ports.Last <= uint16(high)
		}) {
			all = append(all, r.ports)
		}
	}
	return all
}

// A listener is a socket on this machine at a port whose packets go to the device.
type listener struct {
	service string // "": the port is one of masquerading
	port    uint16
	process string
}

// listeners returns the sockets that receive nothing because their port is a node port or used for masquerading.
func (c *Config) listeners() []listener {
	type at struct {
		protocol uint8
		port     uint16
	}
	taken := map[at]string{}
	for i := range c.Services {
		if s := &c.Services[i]; s.NodePort != 0 {
			taken[at{s.Protocol, s.NodePort}] = s.Name
		}
	}
	var all []listener
	var inodes []string
	for _, file := range []string{"tcp", "tcp6", "udp", "udp6"} {
		protocol := uint8(unix.IPPROTO_TCP)
		if file[0] == 'u' {
			protocol = unix.IPPROTO_UDP
		}
		for _, socket := range rtnl.Sockets(file) {
			service, ok := taken[at{protocol, socket.At.Port()}]
			if !socket.At.Addr().IsLoopback() && (ok || c.Ports.First <= socket.At.Port() && socket.At.Port() <= c.Ports.Last) {
				all, inodes = append(all, listener{service: service, port: socket.At.Port()}), append(inodes, socket.Inode)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	owners := rtnl.SocketOwners()
	for i := range all {
		all[i].process = owners[inodes[i]]
	}
	return all
}

// nameListeners warns about sockets on this machine whose packets go to the device, and about ports where such sockets could appear: once each,
// however often Services change.
//
// +checklocks:s.mu
func (s *Server) nameListeners() {
	before, now := s.named, map[string]bool{}
	for _, l := range s.config.listeners() {
		at, remedy := "node port of "+l.service, "stop it, or give the service another node port"
		if l.service == "" {
			at, remedy = "one of services.clientPorts", "stop it, or choose other ports"
		}
		if fields := (logrus.Fields{"port": l.port, "process": l.process, "remedy": remedy}); isNews(fields, before, now) {
			s.log.WithFields(fields).Warn("a process listens in vain: its port is " + at)
		}
	}
	for _, p := range s.config.lentPorts() {
		if fields := (logrus.Fields{"port": p.First, "last": p.Last, "remedy": "reserve it: net.ipv4.ip_local_reserved_ports"}); isNews(fields, before, now) {
			s.log.WithFields(fields).Warn("this node may use a node port for its own connections, whose answers then go to the Service")
		}
	}
	s.named = now
}

// isNews adds what to now, and reports whether before lacks it.
func isNews(what logrus.Fields, before, now map[string]bool) bool {
	key := fmt.Sprint(what)
	now[key] = true
	return !before[key]
}
