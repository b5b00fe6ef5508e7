package lab

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// ReferenceConfig is the configuration of the reference gateway: a kernel-based gateway, with which benchmarks compare culvert. It has one kernel
// VXLAN link per node, prefix NAT and MSS clamping by nftables, and the same wireguard-go on a kernel TUN device with its own Bind, all with default
// settings.
type ReferenceConfig struct {
	Underlay      netip.Addr      `json:"underlay"`
	Internal      netip.Addr      `json:"internal"`
	TunnelAddress netip.Prefix    `json:"tunnelAddress"`
	MTU           int             `json:"mtu"`
	Procs         int             `json:"procs"` // GOMAXPROCS, 0: Go's default
	Nodes         []ReferenceNode `json:"nodes"`

	PrivateKey    string         `json:"privateKey"` // hexadecimal
	PeerPublicKey string         `json:"peerPublicKey"`
	ListenPort    uint16         `json:"listenPort"`
	Endpoint      netip.AddrPort `json:"endpoint"` // the zero AddrPort for the server

	// Remote CIDRs, real and remapped, of equal length.
	Remaps []ReferenceRemap `json:"remaps"`
}

// ReferenceNode is one node's VXLAN tunnel.
type ReferenceNode struct {
	VNI      int          `json:"vni"`
	Underlay netip.Addr   `json:"underlay"`
	Address  netip.Addr   `json:"address"`
	PodCIDR  netip.Prefix `json:"podCIDR"`
}

// ReferenceRemap is one remote CIDR.
type ReferenceRemap struct {
	Real     netip.Prefix `json:"real"`
	Remapped netip.Prefix `json:"remapped"`
}

const (
	referencePort      = 6091 // UDP, as the nodes of a lab use it
	referenceTUN       = "wg0"
	referenceTable     = 100 // routes packets from nodes
	referenceKeepalive = 25  // seconds, culvert's default
)

// MissingForReference returns why the reference gateway cannot run here, or nil.
func MissingForReference() error {
	for _, probe := range []string{"root", "tun", "vxlan", "nft"} {
		if err := Probe(probe); err != nil {
			return fmt.Errorf("%s: %w", probe, err)
		}
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return fmt.Errorf("nft tool: %w", err)
	}
	return nil
}

// RunReference runs the reference gateway in this process's network namespace until ctx is done, and then removes what it made.
func RunReference(ctx context.Context, file string) (err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	c := new(ReferenceConfig)
	if err := json.Unmarshal(text, c); err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if c.Procs > 0 {
		runtime.GOMAXPROCS(c.Procs)
	}
	wireguard, err := c.startWireGuard()
	if err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	defer wireguard.Close()
	k := new(kernelParts)
	defer func() { err = errors.Join(err, k.remove()) }()
	if err := k.add(c); err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-wireguard.Wait():
		return errors.New("reference: the WireGuard device has ended")
	}
}

// startWireGuard does the same as the wireguard-go command.
func (c *ReferenceConfig) startWireGuard() (*device.Device, error) {
	t, err := tun.CreateTUN(referenceTUN, c.MTU)
	if err != nil {
		return nil, fmt.Errorf("TUN device: %w", err)
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, "wireguard: "))
	if err := d.IpcSet(c.uapi()); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.Up(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (c *ReferenceConfig) uapi() string {
	var b strings.Builder
	fmt.Fprintf(&b, "private_key=%s\nlisten_port=%d\npublic_key=%s\nallowed_ip=0.0.0.0/0\n", c.PrivateKey, c.ListenPort, c.PeerPublicKey)
	if c.Endpoint.IsValid() {
		fmt.Fprintf(&b, "endpoint=%s\npersistent_keepalive_interval=%d\n", c.Endpoint, referenceKeepalive)
	}
	return b.String()
}

// referenceConfig returns the configuration of the reference in the place of c's gateway.
func (l *Lab) referenceConfig(c, peer *Cluster, procs int) (*ReferenceConfig, error) {
	private, err := l.readKey(c)
	if err != nil {
		return nil, err
	}
	peerPrivate, err := l.readKey(peer)
	if err != nil {
		return nil, err
	}
	r := &ReferenceConfig{
		Underlay: c.Gateway, Internal: c.Internal, MTU: l.options.of(c).MTU, Procs: procs,
		PrivateKey: hex.EncodeToString(private.Bytes()), PeerPublicKey: hex.EncodeToString(peerPrivate.PublicKey().Bytes()),
		ListenPort: 51840,
		Remaps:     []ReferenceRemap{{peer.PodCIDR, peer.SeenPods}, {peer.External, peer.SeenExt}},
	}
	r.TunnelAddress = netip.MustParsePrefix("169.254.18.1/30")
	if c.Role == "client" {
		r.TunnelAddress = netip.MustParsePrefix("169.254.18.2/30")
		r.Endpoint = netip.AddrPortFrom(peer.Peering.Addr(), 51840)
	}
	for _, n := range c.Nodes {
		r.Nodes = append(r.Nodes, ReferenceNode{n.VNI, n.Underlay, n.Internal, n.PodCIDR.Masked()})
	}
	return r, nil
}
