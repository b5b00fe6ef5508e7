#!/bin/sh
# rome-3 without culvert: Open vSwitch. Undo: ovs-vsctl del-br br-culvert
# DATAPATH=netdev takes Open vSwitch's user-space datapath.
set -e
ovs-vsctl add-br br-culvert -- set bridge br-culvert datapath_type="${DATAPATH:-system}"
ovs-vsctl add-port br-culvert tunnel -- set interface tunnel type=geneve \
	options:remote_ip=172.18.0.9 options:key=3 options:dst_port=6091 options:csum=true
ip link set br-culvert mtu 1340 up
ip address add 10.80.0.5/32 dev br-culvert
# The gateway is a neighbour on the bridge, though it shares no prefix with this node: onlink.
ip route add 10.61.0.0/16 via 10.80.0.4 dev br-culvert onlink
ip route add 10.71.0.0/16 via 10.80.0.4 dev br-culvert onlink
sysctl -qw net.ipv4.ip_forward=1
