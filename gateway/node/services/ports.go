package services

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/nat/rules"
)

const (
	localRange    = "net.ipv4.ip_local_port_range"
	reservedPorts = "net.ipv4.ip_local_reserved_ports"
)

// checkPorts returns an error if the kernel may give client ports to its own connections: answers
// to those go to the device.
func (c *Config) checkPorts() error {
	own, reserved, err := localPorts()
	if err != nil || len(lent(c.Ports, own, reserved)) == 0 {
		return err
	}
	line := strings.Trim(reserved+fmt.Sprintf(",%d-%d", c.Ports.First, c.Ports.Last), ",")
	return fmt.Errorf("services.clientPorts: %d-%d, and this node gives ports of %d-%d to connections of its own, which then get no answers; "+
		"sysctl -w %s=%s, and write that into /etc/sysctl.d, or choose others", c.Ports.First, c.Ports.Last, own.First,
		own.Last, reservedPorts, line)
}

// localPorts returns the ports that the kernel gives to its own connections, and the list of those
// that it does not give.
func localPorts() (own rules.PortRange, reserved string, err error) {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(localRange, ".", "/"))
	if err != nil {
		return own, "", fmt.Errorf("services: read %s: %w", localRange, err)
	}
	if _, err := fmt.Sscan(string(b), &own.First, &own.Last); err != nil {
		return own, "", fmt.Errorf("services: %s is %q: %w", localRange, b, err)
	}
	b, err = os.ReadFile("/proc/sys/" + strings.ReplaceAll(reservedPorts, ".", "/"))
	if err != nil {
		return own, "", fmt.Errorf("services: read %s: %w", reservedPorts, err)
	}
	return own, strings.TrimSpace(string(b)), nil
}

// lent returns the ports of want that the kernel may give to its own connections.
func lent(want, own rules.PortRange, reserved string) (all []rules.PortRange) {
	first, last := int(max(want.First, own.First)), int(min(want.Last, own.Last))
	add := func(last int) {
		if first <= last {
			all = append(all, rules.PortRange{First: uint16(first), Last: uint16(last)})
		}
	}
	for part := range strings.SplitSeq(reserved, ",") { // in order
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, err1 := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil || to < first || from > last {
			continue
		}
		add(from - 1)
		first = to + 1
	}
	add(last)
	return all
}

// lentPorts returns the node ports that the kernel may give to its own connections, whose answers
// the service would then get.
func (c *Config) lentPorts() (all []rules.PortRange) {
	own, reserved, err := localPorts()
	if err != nil {
		return nil // watchPorts reports it
	}
	for _, r := range c.nodePorts() {
		if len(lent(r.ports, own, reserved)) > 0 {
			all = append(all, r.ports)
		}
	}
	return all
}

// watchPorts logs when the kernel begins to give client ports to its own connections, and when that
// ends. The Services are served all the same: a node without them would be worse off.
//
// +checklocks:s.mu
func (s *Server) watchPorts() {
	err := s.config.checkPorts()
	before := s.lent.Swap(text(err))
	switch {
	case err != nil && (before == nil || *before != err.Error()):
		s.log.WithError(err).Warn("the kernel gives ports of Services' clients to other connections")
	case err == nil && before != nil:
		s.log.Info("services.clientPorts are no longer given to connections of this node")
	}
}

// A listener is a socket on this machine at a port whose packets go to the device.
type listener struct {
	service string // "": the port is one of masquerading
	port    uint16
	process string
}

// listeners returns the sockets that receive nothing because their port is a node port or used for
// masquerading.
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
			if !socket.At.Addr().IsLoopback() && (ok || c.Ports.First <= socket.At.Port() &&
				socket.At.Port() <= c.Ports.Last) {
				all, inodes = append(all, listener{service: service, port: socket.At.Port()}),
					append(inodes, socket.Inode)
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

// nameListeners warns about sockets on this machine whose packets go to the device, and about ports
// where such sockets could appear: once each, however often Services change.
//
// +checklocks:s.mu
func (s *Server) nameListeners() {
	before, now := s.named, map[string]bool{}
	for _, l := range s.config.listeners() {
		at, remedy := "node port of "+l.service, "stop it, or give the service another node port"
		if l.service == "" {
			at, remedy = "one of services.clientPorts", "stop it, or choose other ports"
		}
		if fields := (logrus.Fields{"port": l.port, "process": l.process, "remedy": remedy}); isNews(fields,
			before, now) {
			s.log.WithFields(fields).Warn("a process listens in vain: its port is " + at)
		}
	}
	for _, p := range s.config.lentPorts() {
		if fields := (logrus.Fields{"port": p.First, "last": p.Last,
			"remedy": "reserve it: net.ipv4.ip_local_reserved_ports"}); isNews(fields, before, now) {
			s.log.WithFields(fields).Warn(
				"this node may use a node port for its own connections, whose answers then go to the Service")
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
