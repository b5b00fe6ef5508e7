package rules

import "culvert/nat/packet"

// A Link names where a packet comes from or goes to. The caller chooses the numbers and keeps them stable.
type Link = packet.Link

// Tunnel is the link of the WireGuard tunnel to the remote cluster. Nodes are numbered from 1.
const Tunnel Link = 0
