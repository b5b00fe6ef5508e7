package doctor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"culvert/gateway/control"
)

var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

// A Port is one that a gateway needs.
type Port struct {
	Field   string // of the configuration
	Network string // udp or tcp
	Address string // host:port, in the format of package net

	// Gateways are the running gateways that may use the port, by process.
	Gateways map[int]string
}

func (p *Port) condition() control.Condition {
	what := fmt.Sprintf("%s %s", strings.ToUpper(p.Network), strings.TrimPrefix(p.Address, ":"))
	c := control.Condition{Name: p.Field, State: good, Found: what + " is free"}
	err := p.open()
	switch {
	case err == nil:
		return c
	case errors.Is(err, syscall.EADDRINUSE):
		holder, pid := p.holder()
		if name := p.Gateways[pid]; name != "" {
			c.Found = fmt.Sprintf("%s is taken by the gateway %s, process %d, which runs", what, name, pid)
			return c
		}
		c.Found, c.Remedy = what+" is taken by "+holder, "stop that, or choose another "+p.Field
		if pid == 0 {
			c.Remedy += "; if it is your gateway, all is well: culvert doctor --socket asks it"
		}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		c.Found = what + " is not for this user"
		c.Remedy = "choose one above 1023, or give the process CAP_NET_BIND_SERVICE"
	default:
		c.Found = what + ": " + err.Error()
		c.Remedy = "correct " + p.Field
	}
	c.State, c.Costs = bad, "a gateway does not start"
	return c
}

func (p *Port) open() error {
	var closer io.Closer
	var err error
	if p.Network == "tcp" {
		closer, err = net.Listen(p.Network, p.Address)
	} else {
		closer, err = net.ListenPacket(p.Network, p.Address)
	}
	if err == nil {
		closer.Close()
	}
	return err
}

// holder names the process that uses the port, as far as this user may see, with its number or 0.
func (p *Port) holder() (string, int) {
	const somebody = "a process that this user cannot see (another user's, or in another container)"
	_, text, err := net.SplitHostPort(p.Address)
	port, err2 := strconv.ParseUint(text, 10, 16)
	if err != nil || err2 != nil {
		return somebody, 0
	}
	inodes := make(map[string]bool)
	for _, table := range []string{p.Network, p.Network + "6"} {
		if f, err := os.Open("/proc/net/" + table); err == nil {
			inodesOf(f, uint16(port), inodes)
			f.Close()
		}
	}
	descriptors, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is good
	for _, d := range descriptors {
		link, err := os.Readlink(d)
		if err != nil || !inodes[strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")] {
			continue
		}
		pid := strings.Split(d, "/")[2]
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		number, _ := strconv.Atoi(pid) // digits, by the pattern
		return fmt.Sprintf("%s, process %s", strings.TrimSpace(string(name)), pid), number
	}
	return somebody, 0
}

// inodesOf reads from a kernel table of sockets (Linux's proc_net_tcp.rst; the UDP table is
// similar) the inodes of unconnected sockets on the port.
func inodesOf(table io.Reader, port uint16, inodes map[string]bool) {
	for lines := bufio.NewScanner(table); lines.Scan(); {
		// sl local rem st queues timer retrnsmt uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			continue
		}
		_, local, _ := strings.Cut(fields[1], ":")
		_, remote, _ := strings.Cut(fields[2], ":")
		if n, err := strconv.ParseUint(local, 16, 16); err == nil && uint16(n) == port && remote == "0000" {
			inodes[fields[9]] = true
		}
	}
}
