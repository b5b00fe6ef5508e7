#!/bin/sh
# Two network namespaces, {{.Client.Cluster}} and {{.Server.Cluster}}, each a node with one pod's address: sh here.sh up | down
set -e
case "$1" in
up)
{{- range .Client.Nodes}}{{template "namespace" .}}
{{- end}}
{{- range .Server.Nodes}}{{template "namespace" .}}
{{- end}}
	;;
down)
	ip link delete cv-{{.Client.Cluster}}
	ip link delete cv-{{.Server.Cluster}}
	ip netns delete {{.Client.Cluster}}
	ip netns delete {{.Server.Cluster}}
	;;
*)
	echo "want: sh here.sh up | down" >&2
	exit 2
	;;
esac
{{- define "namespace"}}
	ip netns add {{.Side.Cluster}}
	ip link add cv-{{.Side.Cluster}} type veth peer name eth0 netns {{.Side.Cluster}}
	ip address add {{.Side.Underlay}}/30 dev cv-{{.Side.Cluster}}
	ip link set cv-{{.Side.Cluster}} up
	ip -n {{.Side.Cluster}} link set lo up
	ip -n {{.Side.Cluster}} link set eth0 up
	ip -n {{.Side.Cluster}} address add {{.Underlay}}/30 dev eth0
	ip -n {{.Side.Cluster}} address add {{.PodOf}}/32 dev lo
	ip netns exec {{.Side.Cluster}} sysctl -qw net.ipv4.ip_forward=1
{{- end}}
