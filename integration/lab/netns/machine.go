package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"culvert/gateway/node"
)

// Probes are what labs and tests may need of a machine.
var Probes = []string{"root", "tun", "vxlan", "geneve", "nft", "ipv6"}

// Probe tries one of Probes, inside a holder. The answer is nil for yes, an errors.ErrUnsupported
// if this kernel cannot, and any other error if it could, but not here or not for this user.
func Probe(name string) error {
	switch name {
	case "root":
		return ProbeRoot()
	case "tun":
		return probeTUN()
	case "vxlan":
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "probe0"
		return probeLink(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 4789})
	case "geneve":
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "probe0"
		return probeLink(&netlink.Geneve{LinkAttrs: attrs, ID: 1, Remote: net.IPv4(192, 0, 2, 1), Dport: 6081})
	case "nft":
		return probeNFT()
	case "ipv6":
		if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
			return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
		return nil
	}
	return fmt.Errorf("no probe %q", name)
}

// ProbeRoot distinguishes the root of the machine from the root of a user namespace, which owns
// only its user's files.
func ProbeRoot() error {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	var inside, outside, size uint64
	if _, err := fmt.Sscan(string(text), &inside, &outside, &size); err != nil {
		return fmt.Errorf("/proc/self/uid_map: %w", err)
	}
	if inside != 0 || outside != 0 {
		return fmt.Errorf("user ID %d outside, want 0", outside)
	}
	return nil
}

func probeTUN() error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func probeLink(l netlink.Link) error {
	return OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		err := netlink.LinkAdd(l) // removed with the namespace, that is, with this thread
		if errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("add a %s link: %w", l.Type(), errors.ErrUnsupported)
		}
		if err != nil {
			return fmt.Errorf("add a %s link: %w", l.Type(), err)
		}
		return nil
	})
}

// probeNFT asks nftables for its generation.
func probeNFT() error {
	const getGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	req := nl.NewNetlinkRequest(getGeneration, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: unix.NFNETLINK_V0})
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("nftables generation: %w: %w", errors.ErrUnsupported, err)
	}
	return err
}

// Modes returns which of the given modes this machine supports, and why not the others.
func Modes(modes []node.Mode) (have []node.Mode, missing map[node.Mode]error) {
	missing = make(map[node.Mode]error)
	for _, m := range modes {
		if err := Probe(string(m)); err != nil {
			missing[m] = err
		} else {
			have = append(have, m)
		}
	}
	return have, missing
}
