// Command flannel is flannel's daemon with the parts that make clusters needs: leases in the Nodes
// of Kubernetes, VXLAN and host-gw. flannel's own command also requires modules of clouds. It
// writes subnet.env when the node's network is ready.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
)

func main() {
	if len(os.Args) != 4 || os.Getenv("NODE_NAME") == "" {
		log.Fatal("usage: NODE_NAME=NODE flannel KUBECONFIG NET-CONF.JSON SUBNET.ENV")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

// run makes the node's network, and keeps it until ctx is done.
func run(ctx context.Context, kubeconfig, netConf, subnetEnv string) error {
	leases, err := kube.NewSubnetManager(ctx, "", kubeconfig, "flannel.alpha.coreos.com", netConf, true)
	if err != nil {
		return err
	}
	config, err := leases.GetNetworkConfig(ctx)
	if err != nil {
		return err
	}
	families, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return err
	}
	uplink, err := ipmatch.LookupExtIface("", "", "", families, ipmatch.PublicIPOpts{})
	if err != nil {
		return err
	}
	kind, err := backend.NewManager(ctx, leases, uplink).GetBackend(config.BackendType)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	network, err := kind.RegisterNetwork(ctx, &running, config)
	if err != nil {
		return err
	}
	var rules trafficmngr.TrafficManager = &iptables.IPTablesManager{}
	if config.EnableNFTables {
		rules = &nftables.NFTablesManager{}
	}
	if err := rules.Init(ctx); err != nil {
		return err
	}
	const resync = 5 // seconds, flannel's default
	lease := network.Lease()
	if err := rules.SetupAndEnsureMasqRules(ctx, config.Network, ip.IP4Net{}, ip.IP4Net{}, config.IPv6Network,
		ip.IP6Net{}, ip.IP6Net{}, lease, resync, false); err != nil {
		return err
	}
	rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resync)
	running.Go(func() { network.Run(ctx) })
	if err := leases.HandleSubnetFile(subnetEnv, config, true, lease.Subnet, lease.IPv6Subnet,
		network.MTU()); err != nil {
		return err
	}
	if err := leases.CompleteLease(ctx, lease, &running); err != nil {
		return err
	}
	running.Wait()
	return nil
}
