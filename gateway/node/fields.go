package node

import (
	"slices"

	"culvert/gateway/configfile"
	"culvert/gateway/node/services"
)

const required = configfile.Required

// fields is the reference of the configuration file. Without a tunnel, a node has only a name and services.
var fields = append([]configfile.Field{
	{Path: "name", Type: "name", Default: required, Doc: "Name of the node, for logs."},
	{Path: "underlay", Type: "IP address", Default: required, Unless: "services", Doc: "This node's address in the network that it shares with the gateway, IPv4 or IPv6."},
	{Path: "gateway.underlay", Type: "IP address or host name", Default: required, Unless: "services", Doc: "The gateway's address there, of the family of underlay; a name is looked up again every 10 s."},
	{Path: "gateway.address", Type: configfile.OneOrPair, Default: required, Unless: "services", Doc: "The gateway's geneve.gatewayAddress."},
	{Path: "vni", Type: "number, 0 to 16777215", Default: required, Unless: "services", Doc: "Number of the tunnel: the gateway's vni for this node."},
	{Path: "address", Type: configfile.OneOrPair, Default: required, Unless: "services", Doc: "This node's internal address: the gateway's address for this node."},
	{Path: "mtu", Type: "bytes, 576 to 65465", Default: "1340", Doc: "Largest inner packet, the same as the gateway's mtu; the underlay carries 50 bytes more, 70 over IPv6. IPv6 inside needs 1280."},
	{Path: "port", Type: "UDP port, 1 to 65535", Default: "6091", Doc: "UDP port of both ends: the gateway's geneve.listenPort."},
	{Path: "mode", Type: "one of auto, geneve, vxlan, tun", Default: "auto", Doc: "Kind of link: of the kernel, or a TUN device that speaks Geneve; auto is the first that there is."},
	{Path: "routes[]", Type: "CIDR", Doc: "What goes to the gateway: the remote CIDRs as this cluster sees them. culvert gateway --check -o json lists them. A running node puts them back within 5 s when somebody else removes them; culvert node --check compares them with the kernel's."},
	{Path: "interface", Type: "name of a link, 15 letters at most", Default: "culvert0", Doc: "Name of the link that is made."},
	{Path: "keepLinks", Type: "true or false", Default: "false", Doc: "Whether the link, its addresses and its routes stay when this process ends, and the next one goes on with them: kernel links carry packets all the while, a TUN device waits. To remove them: ip link del, or start and end this once without keepLinks."},
	configfile.CPUsField,
}, services.Fields...)

// Fields returns the reference of the configuration file.
func Fields() []configfile.Field { return slices.Clone(fields) }
