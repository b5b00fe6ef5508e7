package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// HostNames are the names of the hosts of every lab.
func HostNames() (names []string) {
	for i := range clusters {
		c := &clusters[i]
		for _, n := range c.Nodes {
			names = append(names, c.Name+"/"+n.PodName, c.Name+"/"+n.Name)
		}
		names = append(names, c.Name+"/gateway", c.Name+"/router", c.Name+"/client")
	}
	return names
}

// addressFrom returns the address by which one host reaches another: in its own
// cluster the other's own, in the other cluster what a gateway makes of it. From
// there only pods are seen, and by each gateway the other one.
func addressFrom(from, to *Host) (a netip.Addr, ok bool) {
	c := clusterOf(to.Name)
	switch {
	case clusterOf(from.Name) == c:
		return to.Address, true
	case c.PodCIDR.Contains(to.Address):
		return c.Seen(to.Address), true
	case isGateway(from.Name) && isGateway(to.Name):
		return c.Peering.Addr(), true
	}
	return netip.Addr{}, false
}

func isGateway(host string) bool { return strings.HasSuffix(host, "/gateway") }

// hostname is a host's name where names may not have a slash.
func (h *Host) hostname() string { return strings.ReplaceAll(h.Name, "/", "-") }

// hostsFile is a hosts(5) file for programs in a host. C libraries take a host's
// own name, such as milan/pod1; URLs and Go need the other one.
func (l *Lab) hostsFile(from *Host) string {
	var text strings.Builder
	text.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, to := range l.hosts {
		if a, ok := addressFrom(from, to); ok {
			fmt.Fprintf(&text, "%s %s %s\n", a, to.Name, to.hostname())
		}
	}
	return text.String()
}

// writeHosts writes the hosts file of each host, for every user inside to read.
func (l *Lab) writeHosts() error {
	for _, h := range l.hosts {
		err := l.write("hosts", h.hostname(), []byte(l.hostsFile(h)))
		if err := errors.Join(err, os.Chmod(l.path("hosts", h.hostname()), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// settle gives this thread, and the processes that it starts, the host's name and
// its view of the others' names. It takes a thread of its own, see onThread.
func (l *Lab) settle(h *Host) error {
	if err := unix.Unshare(unix.CLONE_NEWUTS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new name space: %w", err)
	}
	if err := unix.Sethostname([]byte(h.hostname())); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	// Where there is no such file there is nothing to mount upon: names do not
	// resolve, and addresses still do.
	if err := unix.Mount(l.path("hosts", h.hostname()), "/etc/hosts", "", unix.MS_BIND, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mount /etc/hosts: %w", err)
	}
	return nil
}
