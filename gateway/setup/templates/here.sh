#!/bin/sh
# Two network namespaces, <client> and <server>, each a node with one pod's address: sh here.sh up | down
set -e
case "$1" in
up)
each| 	ip netns add <cluster>
each| 	ip link add cv-<cluster> type veth peer name eth0 netns <cluster>
each| 	ip address add <gateway>/30 dev cv-<cluster>
each| 	ip link set cv-<cluster> up
each| 	ip -n <cluster> link set lo up
each| 	ip -n <cluster> link set eth0 up
each| 	ip -n <cluster> address add <underlay>/30 dev eth0
each| 	ip -n <cluster> address add <pod>/32 dev lo
each| 	ip netns exec <cluster> sysctl -qw net.ipv4.ip_forward=1
	;;
down)
	ip link delete cv-<client>
	ip link delete cv-<server>
	ip netns delete <client>
	ip netns delete <server>
	;;
*)
	echo "want: sh here.sh up | down" >&2
	exit 2
	;;
esac
