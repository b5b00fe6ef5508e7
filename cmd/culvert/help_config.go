package main

import (
	"strings"

	"github.com/spf13/cobra"

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
		Example: "  culvert help config | grep -A1 podCIDRs",
	}
}

func configReference() string {
	return `# Configuration

Both files are YAML. Each field has its type and unit, its default, and whether a change takes effect
while the gateway runs (live, by SIGHUP) or at its next start (restart). [] stands for each element of
a list. culvert gateway --check and culvert node --check name what is wrong by file, line, column and
path. For completion in editors, put a schema of docs/schema into the first line:
# yaml-language-server: $schema=gateway.schema.json

## The gateway's file

` + configfile.Reference(config.Fields()) + `
## The node's file

A node reads it at its start, and services again at SIGHUP. A node that only serves Services has a name
and services, and none of what is required for the tunnel.

` + configfile.Reference(node.Fields()) + configNotes
}

const configNotes = `
## Ports to open

- UDP 6091 (geneve.listenPort, port), between each node and its gateway, both ways: Geneve or VXLAN.
- UDP 51840 (wireguard.listenPort), from the client gateway to the server gateway; the answers come
  back by the same way, also through NAT: WireGuard.
- TCP 8082 (metrics), on the gateway's own machine only: /metrics, /healthz, /readyz.

Geneve and VXLAN are neither encrypted nor authenticated. Let UDP 6091 in from the nodes only.

## Networks

- Pod CIDRs: each cluster's own. Both clusters may have the same.
- External CIDRs: addresses that each cluster sets aside for everything in it that is not a pod.
- Remaps: the addresses under which a cluster sees the other one. Each side chooses ranges that are
  unused there.
- Internal addresses, such as 10.80.0.4 for a gateway and 10.80.0.2 for a node, are the ends of the
  tunnels between nodes and gateway. They never leave their cluster, so both clusters may use the
  same ones. Any unused addresses will do; 10.80.0.0/24 is only a habit.
- 169.254.18.0/24 is the WireGuard tunnel's own; no other CIDR may overlap it,
  nor 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/3, fe80::/10 or ff00::/8.

## Sizes

- A gateway runs in 64 MiB of memory, also under a flood.
- A connection takes at most 256 bytes. A quarter of the memory limit is the table's, at most 1,048,576
  connections: 65,536 of them in 64 MiB. nat.maxConnections sets another cap.
- A node in the file takes 4 KB of memory, an entry of nat.addresses 4 KB.
- At most 32,768 nodes, and 65,536 each of nat.addresses, nat.services and remote CIDRs.
- The underlay carries mtu and 50 bytes to nodes (70 over IPv6), mtu and 60 bytes to the peer (80 over
  IPv6): with the default of 1340, 1390 and 1400, and over IPv6 1410 and 1420.
`
