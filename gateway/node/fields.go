package node

import (
	"slices"

	"culvert/gateway/configfile"
	"culvert/gateway/node/services"
)

const required = configfile.Required

// fields is the reference of the configuration file. Without a tunnel, a node has only a name and
// services.
var fields = append([]configfile.Field{
	{Path: "name", Type: "name", Default: required, Doc: "Name of the node, for logs."},
	{Path: "underlay", Type: "IP address", Default: required, Unless: "services",
		Doc: "This node's address in the network that it shares with the gateway, IPv4 or IPv6."},
	{Path: "gateway.underlay", Type: "IP address or host name", Default: required, Unless: "services",
		Doc: "The gateway's address in that network, of underlay's family. A name is resolved again every 10 s."},
	{Path: "gateway.address", Type: configfile.OneOrPair, Default: required, Unless: "services",
		Doc: "The gateway's geneve.gatewayAddress."},
	{Path: "vni", Type: "number, 0 to 16777215", Default: required, Unless: "services",
		Doc: "Number of the tunnel: the gateway's vni for this node."},
	{Path: "address", Type: configfile.OneOrPair, Default: required, Unless: "services",
		Doc: "This node's internal address: the gateway's address for this node."},
	{Path: "mtu", Type: "bytes, 576 to 65465", Default: "1340",
		Doc: "Largest inner packet: the gateway's mtu, at least 1280 with IPv6 inside."},
	{Path: "port", Type: "UDP port, 1 to 65535", Default: "6091",
		Doc: "UDP port of both ends: the gateway's geneve.listenPort."},
	{Path: "mode", Type: "one of auto, geneve, vxlan, tun", Default: "auto",
		Doc: "Kind of link: one of the kernel's, or a TUN device of this process, which uses Geneve. auto is the first kind that the machine supports."},
	{Path: "routes[]", Type: "CIDR",
		Doc: "Destinations reached through the gateway: the remote CIDRs as this cluster sees them, which culvert gateway --check -o json lists. A running node restores them within 5 s if another program removes them; culvert node --check compares them with the kernel's."},
	{Path: "interface", Type: "name of a link, 15 letters at most", Default: "culvert0", Doc: "Name of the link."},
	{Path: "keepLinks", Type: "true or false", Default: "false",
		Doc: "Whether the link, its addresses and its routes stay when this process ends, for the next one to use. Meanwhile a kernel link carries packets, and a TUN device does not. To remove them, use ip link del, or start and stop the node once without keepLinks."},
	configfile.CPUsField,
}, services.Fields...)

// Fields returns the reference of the configuration file.
func Fields() []configfile.Field { return slices.Clone(fields) }
