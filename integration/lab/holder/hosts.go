package holder

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// addressFrom returns the address by which one host reaches another: within a cluster the other's
// own, across clusters the gateway's translation. Across clusters only pods and the other gateway
// have one.
func addressFrom(from, to *netns.Host) (a netip.Addr, ok bool) {
	c := plan.Of(to.Name)
	switch {
	case plan.Of(from.Name) == c:
		return to.Address, true
	case c.PodCIDR.Contains(to.Address):
		return c.Seen(to.Address), true
	case plan.IsGateway(from.Name) && plan.IsGateway(to.Name):
		return c.Peering.Addr(), true
	}
	return netip.Addr{}, false
}

// hostname is a host's name for places where names may not contain a slash.
func hostname(h *netns.Host) string { return strings.ReplaceAll(h.Name, "/", "-") }

// hostsFile is a hosts(5) file for programs in a host. C libraries accept a host's own name, such
// as milan/pod1; URLs and Go need the other form.
func (l *server) hostsFile(from *netns.Host) string {
	var text strings.Builder
	text.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, to := range l.Hosts {
		if a, ok := addressFrom(from, to); ok {
			fmt.Fprintf(&text, "%s %s %s\n", a, to.Name, hostname(to))
		}
	}
	return text.String()
}

// writeHosts writes each host's hosts file, readable for every user inside.
func (l *server) writeHosts() error {
	for _, h := range l.Hosts {
		err := l.Write("hosts", hostname(h), []byte(l.hostsFile(h)))
		if err := errors.Join(err, os.Chmod(l.Path("hosts", hostname(h)), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// enter gives this thread, and the processes that it starts, the host's name and its view of the
// others' names. It needs a separate thread, see OnThread.
func (l *server) enter(h *netns.Host) error {
	if err := unix.Unshare(unix.CLONE_NEWUTS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new name space: %w", err)
	}
	if err := unix.Sethostname([]byte(hostname(h))); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	// Without that file there is nothing to mount on: names do not resolve, but addresses work.
	if err := unix.Mount(l.Path("hosts", hostname(h)), "/etc/hosts", "", unix.MS_BIND, ""); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mount /etc/hosts: %w", err)
	}
	return nil
}
