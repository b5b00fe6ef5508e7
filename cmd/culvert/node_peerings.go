package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"culvert/gateway/configfile"
)

// nodePeerings says whether the node follows Peerings. The port and the DaemonSet are those of
// --liqo.
type nodePeerings struct {
	on                  bool
	gateways, own, host string
	links               *nodeLiqo
}

func (p *nodePeerings) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.on, "kube", false, "make the links and routes that Peerings ask for")
	cmd.Flags().StringVar(&p.gateways, "peering-namespace", "culvert", "with --kube: `NAMESPACE` of Peerings")
	cmd.Flags().StringVar(&p.own, "node-namespace", "culvert-nodes", "with --kube: `NAMESPACE` of TunnelNodes")
	p.host = os.Getenv("KUBERNETES_SERVICE_HOST")
}

// check returns what is wrong with the flags.
func (p *nodePeerings) check(l *nodeLiqo) error {
	if p.on && l.on {
		return errors.New("--kube: not with --liqo; a node has links of one kind")
	}
	e := new(configfile.Errors)
	e.Name("--peering-namespace", p.gateways, configfile.MaxLabel)
	e.Name("--node-namespace", p.own, configfile.MaxLabel)
	return e.Err()
}
