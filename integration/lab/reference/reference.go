package reference

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"culvert/gateway/config"
	"culvert/integration/lab/netns"
)

const (
	referenceTUN   = "wg0"
	referenceTable = 100 // routes packets from nodes
)

// Missing returns why the reference gateway cannot run here, or nil.
func Missing() error {
	for _, probe := range []string{"root", "tun", "vxlan", "nft"} {
		if err := netns.Probe(probe); err != nil {
			return fmt.Errorf("%s: %w", probe, err)
		}
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return fmt.Errorf("nft tool: %w", err)
	}
	return nil
}

// Run runs the reference gateway in this process's network namespace until ctx is done,
// and then removes what it made.
//
// The reference is a kernel-based gateway, with which benchmarks compare culvert. It has one kernel
// VXLAN link per node, prefix NAT and MSS clamping by nftables, and the same wireguard-go on a
// kernel TUN device with its own Bind, all with default settings. It takes its nodes, remaps and
// keys from the file of a culvert gateway.
func Run(ctx context.Context, file string) (err error) {
	c, err := loadReference(ctx, file)
	if err != nil {
		return err
	}
	if c.CPUs > 0 {
		runtime.GOMAXPROCS(c.CPUs)
	}
	wireguard, err := startWireGuard(c)
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

// loadReference reads the file of a gateway. Remaps that are auto are those that culvert has
// chosen, or would choose.
func loadReference(ctx context.Context, file string) (*config.Config, error) {
	c, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	remapped, err := config.Remap(ctx, c, time.Now(), true, func(*config.Config) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	return remapped.Config, nil
}

// startWireGuard does the same as the wireguard-go command.
func startWireGuard(c *config.Config) (*device.Device, error) {
	t, err := tun.CreateTUN(referenceTUN, int(c.MTU))
	if err != nil {
		return nil, fmt.Errorf("TUN device: %w", err)
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, "wireguard: "))
	if err := errors.Join(d.IpcSet(uapi(&c.WireGuard)), d.Up()); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func uapi(c *config.WireGuard) string {
	var b strings.Builder
	fmt.Fprintf(&b, "private_key=%x\nlisten_port=%d\npublic_key=%x\npreshared_key=%x\nallowed_ip=0.0.0.0/0\n",
		c.PrivateKey[:], c.ListenPort, c.PeerPublicKey[:], c.PresharedKey[:])
	if c.Role == config.Client {
		fmt.Fprintf(&b, "endpoint=%s\npersistent_keepalive_interval=%.0f\n", c.Endpoint, c.Keepalive.Seconds())
	}
	return b.String()
}
