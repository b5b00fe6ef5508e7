#!/bin/sh
# rome-4 without culvert: the kernel's Geneve. Undo: ip link delete tunnel
set -e
ip link add tunnel mtu 1340 type geneve id 4 remote 172.18.0.9 dstport 6091
ip address add 10.80.0.6/32 dev tunnel
ip link set tunnel up
# The gateway is a neighbour on the link, though it shares no prefix with this node: onlink.
ip route add 10.61.0.0/16 via 10.80.0.4 dev tunnel onlink
ip route add 10.71.0.0/16 via 10.80.0.4 dev tunnel onlink
sysctl -qw net.ipv4.ip_forward=1
