package main

import (
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/node"
)

// newConfigTopic prints culvert help config, and docs/config.md.
func newConfigTopic() *cobra.Command {
	return &cobra.Command{
		Use:     "config",
		Short:   "Every field of both configuration files, ports, sizes",
		Long:    strings.TrimSuffix(configReference(), "\n"),
		Example: "  culvert help config | grep -A3 podCIDRs",
	}
}

// docColumns is the maximum width of the pages in docs/.
const docColumns = 100

func configReference() string {
	return configTerms + cli.WrapLines(configfile.Reference(config.Fields()), docColumns) + `
## The node's file

culvert node reads its whole file at its start, and cpus and services again at SIGHUP. A node that
only serves Services needs name and services, but no field of the tunnel.

` + cli.WrapLines(configfile.Reference(node.Fields()), docColumns) + configNotes
}

const configTerms = `# Configuration

A gateway and a node have a YAML file each. culvert gateway --check --config FILE and culvert node
--check --config FILE say what is wrong, by line, column and field. docs/schema has JSON Schemas for
editors; copy one beside your file, and begin the file with
# yaml-language-server: $schema=gateway.schema.json

## Networks

- Pod CIDRs: each cluster's own. Both clusters may have the same.
- External CIDRs: addresses that each cluster sets aside for everything in it that is not a pod.
- Remaps: the addresses under which a cluster sees the other one. Each side chooses ranges that are
  unused there.
- Underlay: the network between the nodes and their gateway, which carries the tunnels, and its
  addresses. Inner packets are those of pods, inside the tunnels.
- Internal addresses, such as 10.80.0.4 for a gateway and 10.80.0.2 for a node, are the ends of the
  tunnels between nodes and gateway. They never leave their cluster, so both clusters may use the
  same ones. Any unused addresses will do.
- 169.254.18.0/24 is the WireGuard tunnel's own; no other CIDR may overlap it,
  nor 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/3, fe80::/10 or ff00::/8.

## The gateway's file

Each field has its type and unit, then its default, or whether it is required or optional. A change
of a live field takes effect at SIGHUP or culvert reload, of a restart field at the next start. []
stands for each element of a list.

`

const configNotes = `
## Ports to open

- UDP 6091 (geneve.listenPort, port), between each node and its gateway, both ways: Geneve or VXLAN.
- UDP 51840 (wireguard.listenPort), from the client gateway to the server gateway, and answers,
  also through NAT: WireGuard.
- TCP 8082 (metrics), on the gateway's own machine only: /metrics, /healthz, /readyz.

Geneve and VXLAN are neither encrypted nor authenticated. Let UDP 6091 in from the nodes only.

## Sizes

- A gateway runs in 64 MiB of memory, also under a flood.
- A tracked connection takes at most 256 bytes. A quarter of the memory limit (the control group's,
  or 10/7 of GOMEMLIMIT) is for them: 65,536 in 64 MiB, and at most 1,048,576. nat.maxConnections
  sets another cap.
- A node in the file takes 4 KB of memory, an entry of nat.addresses 4 KB.
- At most 32,768 nodes, and 65,536 each of nat.addresses, nat.services and remote CIDRs.
- Outer packets are larger than mtu: to nodes by 50 bytes (70 over IPv6), to the peer by 60 (80 over
  IPv6). With the default of 1340 that is 1390 and 1400, over IPv6 1410 and 1420.
`
