#!/usr/bin/env bash
# Two real Kubernetes clusters, rome and milan, and turin if it is wanted, in network namespaces of this machine: etcd, API server, controller manager, scheduler, and
# nodes with kubelet, containerd and kube-proxy. Both have the pod CIDR 10.244.0.0/16 and the service CIDR 10.96.0.0/16; node N of cluster C is
# 172.30.0.CN in the namespace cv-NAME-N. All that leaves a pod for another cluster is masqueraded, as CNIs do. $CNI is what makes the pods' network:
# bridge (the plugin alone, the default); flannel (as its manifest has it: VXLAN, iptables) or flannel-host-gw (with nftables); or kube-router.
# With FAMILY=dual, nodes, pods and Services have IPv6 as well, and both clusters the pod CIDR fd00:244::/56; with FAMILY=6 they have nothing else, and
# node N of cluster C is fd30::CN; the default is FAMILY=4.
#
#   clusters.sh check               whether this machine has what they need
#   clusters.sh up DIR [turin]      two nodes in each; kubeconfigs are DIR/NAME/kubeconfig, and all in DIR/kubeconfig
#   clusters.sh load DIR IMAGE PROGRAM    makes an image of a culvert and gives it to all nodes
#   clusters.sh dns DIR             CoreDNS in each, if make kube-dns has built it
#   clusters.sh hello DIR NAME      a pod hello-N on each node N, which serves HTTP at port 8080
#   clusters.sh join DIR IMAGE      culvert join, how long it took until those pods reached each other, a Service of milan's for both, and culvert verify
#   clusters.sh shell DIR [CMD...]  a shell, or a command, with kubectl and culvert and in a network that reaches all clusters
#   clusters.sh node DIR NAME N     one more node
#   clusters.sh leave DIR NAME N    ends a node
#   clusters.sh in NODE CMD...      in the network of a node such as rome-1
#   clusters.sh process DIR NAME NAMESPACE/POD    the ID of a pod's process, for nsenter
#   clusters.sh down DIR            ends exactly what was started, and removes it
#
# make clusters does it all. Needs root; the programs of make kube-nodes in $KUBEBUILDER_ASSETS; culvert in bin or $CULVERT; and what check names.
set -euo pipefail
usage='usage: clusters.sh check|up|load|dns|hello|join|shell|node|leave|in|process|down ...'
culvert=$(realpath -m "${CULVERT:-bin/culvert}")
assets=${KUBEBUILDER_ASSETS:-}
cni=${CNI:-bridge}
family=${FAMILY:-4}
pods=10.244.0.0/16 services=10.96.0.0/16
pods6=fd00:244::/56 services6=fd00:96::/112
dual() { [ "$family" = dual ]; }
has4() { [ "$family" != 6 ]; }
has6() { [ "$family" != 4 ]; }
both_of() { case $family in 4) echo "$1" ;; 6) echo "$2" ;; *) echo "$1,$2" ;; esac; } # IPV4 IPV6: what there is of them
one_of() { has4 && echo "$1" || echo "$2"; } # the same, without the second
group() { echo "cv${dir//\//-}-$1"; } # the control group of a node, whose name is of this set of clusters alone

six() { echo "fd30::${1##*[.:]}"; } # ADDRESS of a node: its IPv6 address
address() { local net; net=$(one_of 172.30.0. fd30::); case $1 in rome) echo "${net}1$2" ;; milan) echo "${net}2$2" ;; turin) echo "${net}3$2" ;; esac; } # NAME N
within() { local n=$1; shift; nsenter --net="/run/netns/$n" "$@"; } # not ip netns exec, which hides cgroups
of() { local name=$1; shift; within cv-lan kubectl --kubeconfig "$dir/$name/kubeconfig" "$@"; }
names() { (cd "$dir" && for name in rome milan turin; do [ ! -e "$name" ] || echo "$name"; done); }
say() { echo "clusters: $*"; }

# check names what this machine lacks.
check() {
	local p missing=()
	[ "$(id -u)" = 0 ] || missing+=("root's rights")
	[ -c /dev/net/tun ] || missing+=(/dev/net/tun)
	for p in containerd ctr runc kubectl nft ip nsenter unshare setsid sysctl openssl busybox; do command -v "$p" >/dev/null || missing+=("$p"); done
	[ -x /usr/lib/cni/bridge ] || missing+=(/usr/lib/cni/bridge)
	! ldd "$(command -v busybox)" >/dev/null 2>&1 || missing+=("a static busybox")
	case $cni in
	bridge) ;;
	flannel | flannel-host-gw | kube-router) for p in iptables ipset; do command -v "$p" >/dev/null || missing+=("$p"); done ;;
	*) echo "clusters.sh: CNI is bridge, flannel, flannel-host-gw or kube-router, not $cni" >&2; return 1 ;;
	esac
	case $family-$cni in
	4-* | dual-bridge | 6-bridge) ;;
	*) echo "clusters.sh: FAMILY is 4, or dual or 6 with CNI=bridge, not $family with CNI=$cni" >&2; return 1 ;;
	esac
	[ ${#missing[@]} = 0 ] || {
		printf 'clusters.sh: this machine lacks %s\n' "$(printf ', %s' "${missing[@]}" | cut -c3-)" >&2
		echo 'Debian has the programs in containerd, runc, containernetworking-plugins, kubernetes-client, nftables, iptables, ipset, iproute2, procps, openssl, busybox-static' >&2
		return 1
	}
}

# start NAMESPACE NAME PROGRAM... runs in the background until stop DIR/NAME.pid. The process writes its ID before it leaves its process group, so
# that whoever ends the group ends it too, or finds its ID.
start() {
	local n=$1 at=$2
	shift 2
	mkdir -p "$(dirname "$at")"
	{ echo "$BASHPID" >"$at.pid"; exec setsid nsenter --net="/run/netns/$n" "$@"; } >"$at.log" 2>&1 </dev/null &
}

# beside COMMAND... runs in the background in a process group of its own, whose ID is $!, and which quit ends.
beside() {
	set -m
	"$@" &
	set +m
	groups+=($!)
}
groups=()
quit() { [ ${#groups[@]} = 0 ] || kill -- "${groups[@]/#/-}" 2>/dev/null; wait; }

# interrupted COMMAND... is what happens if this ends before its end. A second Ctrl-C does not disturb it.
interrupted() {
	trap '[ $? = 0 ] || { trap "" INT TERM HUP; set +e; quit; '"$*; }" EXIT
	trap 'exit 130' INT TERM HUP
}

# runs PID reports whether it does: one that has ended may wait for a parent that does not ask.
runs() { [ -e "/proc/$1" ] && ! grep -qs '^State:.Z' "/proc/$1/status"; }

# stop FILE... ends processes by their pid, all at once.
stop() {
	local at pid tries
	for at in "$@"; do [ ! -s "$at" ] || kill -"${signal:-TERM}" "$(<"$at")" 2>/dev/null || true; done
	for at in "$@"; do
		[ -s "$at" ] || continue
		pid=$(<"$at")
		for ((tries = 0; tries < 100; tries++)); do runs "$pid" || break; sleep 0.1; done
		kill -9 "$pid" 2>/dev/null || true
		rm -f "$at"
	done
}

# await SECONDS COMMAND... until it succeeds.
await() {
	local until=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		((SECONDS < until)) || { echo "clusters.sh: in vain: $*" >&2; return 1; }
		sleep 0.2
	done
}

# namespace NODE ADDRESS makes one on the bridge.
namespace() {
	ip netns add "$1"
	ip -n "$1" link set lo up
	ip link add "${1#cv-}" netns cv-lan type veth peer name eth0 netns "$1"
	ip -n cv-lan link set "${1#cv-}" master lan up
	! has4 || ip -n "$1" address add "$2/24" dev eth0
	ip -n "$1" link set eth0 up
	! has6 || {
		within "$1" sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0 net.ipv6.conf.all.forwarding=1
		ip -n "$1" address add "$(six "$2")/64" dev eth0 nodad
	}
	within "$1" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
}

# control NAME runs what a cluster has once, in the namespace of its first node.
control() {
	local name=$1 d=$dir/$1 at
	at=$(address "$name" 1)
	mkdir -p "$d"
	openssl genrsa -out "$d/accounts.key" 2048 2>/dev/null
	echo 'admin,admin,admin,system:masters' >"$d/tokens"
	cat >"$d/audit.yaml" <<-Y
		apiVersion: audit.k8s.io/v1
		kind: Policy
		omitStages: [RequestReceived]
		rules: [{level: Metadata, userGroups: ["system:serviceaccounts:culvert", "system:serviceaccounts:culvert-nodes"]}, {level: None}]
	Y
	start "cv-$name-1" "$d/etcd" "$assets/etcd" --data-dir="$d/etcd.data" --unsafe-no-fsync --log-level=error \
		--listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
		--listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 --initial-cluster=default=http://127.0.0.1:2380
	start "cv-$name-1" "$d/apiserver" "$assets/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address="$at" --advertise-address="$at" \
		--secure-port=6443 --cert-dir="$d/certificates" --service-cluster-ip-range="$(both_of $services $services6)" --authorization-mode=Node,RBAC \
		--service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$d/accounts.key" \
		--service-account-signing-key-file="$d/accounts.key" --token-auth-file="$d/tokens" --allow-privileged \
		--audit-policy-file="$d/audit.yaml" --audit-log-path="$d/audit.log" --kubelet-preferred-address-types=InternalIP
	await 60 test -s "$d/certificates/apiserver.crt"
	cat >"$d/kubeconfig" <<-Y
		apiVersion: v1
		kind: Config
		clusters: [{name: $name, cluster: {server: "https://$(one_of "$at" "[$at]"):6443", certificate-authority-data: $(base64 -w0 "$d/certificates/apiserver.crt")}}]
		users: [{name: $name, user: {token: admin}}]
		contexts: [{name: $name, context: {cluster: $name, user: $name}}]
		current-context: $name
	Y
	await 60 of "$name" get --raw /readyz
	say "$name: the API server is ready"
	start "cv-$name-1" "$d/controllers" "$assets/kube-controller-manager" --kubeconfig="$d/kubeconfig" --bind-address=127.0.0.1 --leader-elect=false \
		--service-account-private-key-file="$d/accounts.key" --root-ca-file="$d/certificates/apiserver.crt" --use-service-account-credentials \
		--allocate-node-cidrs --cluster-cidr="$(both_of $pods $pods6)" --service-cluster-ip-range="$(both_of $services $services6)"
	start "cv-$name-1" "$d/scheduler" "$assets/kube-scheduler" --kubeconfig="$d/kubeconfig" --bind-address=127.0.0.1 --leader-elect=false
}

# node NAME N runs one: the kubelet asks for its pod CIDR before the CNI is told.
node() {
	local name=$1 n=$2 id=$1-$2 d=$dir/$1/$2 at cidr cidr6 hierarchy g
	at=$(address "$name" "$n")
	[ -e "/run/netns/cv-$id" ] || namespace "cv-$id" "$at"
	within "cv-$id" ip route replace default via "$(one_of 172.30.0.1 fd30::1)"
	mkdir -p "$d"/{cni,opt,plugins,kubelet,logs}
	while read -r _ hierarchy type _; do # each kubelet has its own root in every hierarchy of version 1
		[ "$type" = cgroup ] || [ "$type $hierarchy" = "cgroup2 /sys/fs/cgroup" ] || continue
		g=$hierarchy/$(group "$id")
		mkdir -p "$g"
		[ ! -e "$hierarchy/cpuset.cpus" ] || { cat "$hierarchy/cpuset.cpus" >"$g/cpuset.cpus"; cat "$hierarchy/cpuset.mems" >"$g/cpuset.mems"; }
	done </proc/mounts
	cat >"$d/containerd.toml" <<-T
		version = 2
		root = "$d/containerd.root"
		state = "$d/containerd.state"
		disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
		[grpc]
		address = "$d/containerd.sock"
		[plugins."io.containerd.internal.v1.opt"]
		path = "$d/opt"
		[plugins."io.containerd.grpc.v1.cri"]
		sandbox_image = "localhost/pause:1"
		restrict_oom_score_adj = true # root without CAP_SYS_RESOURCE may not lower it
		netns_mounts_under_state_dir = true
		[plugins."io.containerd.grpc.v1.cri".cni]
		bin_dir = "/usr/lib/cni"
		conf_dir = "$d/cni"
		[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		runtime_type = "io.containerd.runc.v2"
	T
	cat >"$d/kubelet.yaml" <<-Y
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		failCgroupV1: false
		containerRuntimeEndpoint: unix://$d/containerd.sock
		cgroupDriver: cgroupfs
		cgroupRoot: /$(group "$id")
		authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
		authorization: {mode: AlwaysAllow}
		address: "$at"
		healthzBindAddress: 127.0.0.1
		resolvConf: ""
		clusterDNS: ["$(one_of 10.96.0.10 fd00:96::a)"]
		clusterDomain: cluster.local
		failSwapOn: false
		maxPods: 250
		imageGCHighThresholdPercent: 100
		evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
		podLogsDir: $d/logs
		volumePluginDir: $d/plugins
	Y
	start "cv-$id" "$d/containerd" unshare --uts sh -c "hostname $id; exec containerd -c $d/containerd.toml"
	await 60 test -S "$d/containerd.sock" # without which the kubelet ends
	start "cv-$id" "$d/kubelet" "$assets/kubelet" --kubeconfig="$dir/$name/kubeconfig" --config="$d/kubelet.yaml" --hostname-override="$id" --node-ip="$(both_of "$at" "$(six "$at")")" \
		--root-dir="$d/kubelet" --cert-dir="$d/kubelet/pki"
	start "cv-$id" "$d/kube-proxy" "$assets/kube-proxy" --kubeconfig="$dir/$name/kubeconfig" --proxy-mode=nftables --hostname-override="$id" --cluster-cidr="$(both_of $pods $pods6)" \
		--healthz-bind-address=127.0.0.1:10256 --metrics-bind-address=127.0.0.1:10249 --conntrack-max-per-core=0
	[ ! -d "$dir/images" ] || for image in "$dir"/images/*.tar; do await 30 ctr -a "$d/containerd.sock" -n k8s.io images import "$image"; done
	cidr() {
		read -r cidr cidr6 <<<"$(of "$name" get node "$id" -o 'jsonpath={.spec.podCIDRs[*]}')"
		[ -n "$cidr" ] && { ! dual || [ -n "$cidr6" ]; }
	}
	await 60 cidr
	network "$name" "$n"
	await 60 of "$name" wait --for=condition=Ready "node/$id" --timeout=1s
	say "$id is ready"
}

# network NAME N makes the network of a node's pods, with what leads to those of other nodes and what masquerades.
network() {
	local name=$1 id=$1-$2 d=$dir/$1/$2
	case $cni in
	bridge)
		plugin cni0 0
		! has4 || within "cv-$id" nft "add table ip cni; add chain ip cni post { type nat hook postrouting priority 100; }; add rule ip cni post ip saddr $pods ip daddr != $pods masquerade"
		! has6 || within "cv-$id" nft "add table ip6 cni; add chain ip6 cni post { type nat hook postrouting priority 100; }; add rule ip6 cni post ip6 saddr $pods6 ip6 daddr != $pods6 masquerade"
		routes "$name"
		;;
	flannel*)
		local nftables=false kind=vxlan
		[ $cni = flannel ] || { nftables=true; kind=host-gw; }
		echo "{\"Network\": \"$pods\", \"EnableNFTables\": $nftables, \"Backend\": {\"Type\": \"$kind\"}}" >"$d/net-conf.json"
		start "cv-$id" "$d/network" env NODE_NAME="$id" "$assets/flannel" "$dir/$name/kubeconfig" "$d/net-conf.json" "$d/subnet.env"
		await 60 test -s "$d/subnet.env"
		plugin cni0 "$(sed -n 's/^FLANNEL_MTU=//p' "$d/subnet.env")" # what flannel's own plugin does
		;;
	kube-router) # it writes into /etc/iproute2, and this kernel has no IPIP for its tunnels between subnets
		plugin kube-bridge 0
		local at
		for at in "$dir/$name"/[0-9]*; do # its policies put back the set of pods' subnets of its start: so all start again
			stop "$at/network.pid"
			mkdir -p "$at/iproute2"
			start "cv-$name-${at##*/}" "$at/network" unshare --mount sh -c "mount --bind $at/iproute2 /etc/iproute2; exec $assets/kube-router \
				--kubeconfig=$dir/$name/kubeconfig --hostname-override=$name-${at##*/} --run-router --run-firewall --run-service-proxy=false \
				--enable-cni=false --enable-overlay=false --service-cluster-ip-range=10.96.0.0/16 --bgp-graceful-restart"
		done
		;;
	esac
}

# plugin BRIDGE MTU has containerd make pods' links by the plugin bridge. 0 is the bridge's own MTU.
plugin() {
	local more=
	[ -z "$cidr6" ] || more=", [{\"subnet\": \"$cidr6\"}]"
	cat >"$d/cni/10.conflist" <<-J
		{"cniVersion": "1.0.0", "name": "$id", "plugins": [{"type": "bridge", "bridge": "$1", "mtu": $2, "isDefaultGateway": true, "hairpinMode": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "$cidr"}]$more], "dataDir": "$d/cni.data"}}]}
	J
}

# routes NAME leads each node of a cluster to the pods of the others.
routes() {
	local name=$1 id at cidr cidr6 netns
	of "$name" get nodes -o 'jsonpath={range .items[*]}{.metadata.name} {.status.addresses[0].address} {.spec.podCIDRs[*]}{"\n"}{end}' | while read -r id at cidr cidr6; do
		[ -n "$cidr" ] || continue
		for netns in /run/netns/cv-"$name"-*; do
			[ "${netns##*/}" != "cv-$id" ] || continue
			within "${netns##*/}" ip route replace "$cidr" via "$at"
			[ -z "$cidr6" ] || within "${netns##*/}" ip route replace "$cidr6" via "$(six "$at")"
		done
	done
}

# image NAME PROGRAM ENTRYPOINT... writes a container image with one static program.
image() {
	local work=$dir/image name=$1 file entry
	file=$dir/images/${1//[\/:]/_}.tar
	rm -rf "$work" # of one that was interrupted
	mkdir -p "$work/root/usr/bin" "$dir/images"
	cp "$2" "$work/root/usr/bin/"
	shift 2
	entry=$(printf '"%s",' "$@")
	tar -C "$work/root" --owner=0 --group=0 -cf "$work/layer.tar" usr
	printf '{"architecture":"%s","os":"linux","config":{"User":"65532:65532","Env":["PATH=/usr/bin"],"Entrypoint":[%s]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$(go env GOHOSTARCH)" "${entry%,}" "$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)" >"$work/config.json"
	printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$name" >"$work/manifest.json"
	tar -C "$work" -cf "$file" config.json manifest.json layer.tar
	rm -r "$work"
	echo "$file"
}

# end N-DIR ends a node with all of its containers.
end() {
	local d=$1 sock=$1/containerd.sock m
	stop "$d/kubelet.pid" "$d/kube-proxy.pid" "$d/network.pid"
	[ ! -S "$sock" ] || await 10 emptied "$sock" || true
	stop "$d/containerd.pid"
	awk -v d="$d/" 'index($2, d) == 1 { print $2 }' /proc/mounts | sort -r | while read -r m; do umount "$m" 2>/dev/null || umount -l "$m" || true; done
}

# emptied SOCKET ends what containerd runs, and reports whether nothing runs any more.
emptied() {
	local c
	for c in $(ctr -a "$1" -n k8s.io tasks ls -q); do ctr -a "$1" -n k8s.io tasks kill -s KILL "$c" || true; done
	for c in $(ctr -a "$1" -n k8s.io tasks ls -q); do ctr -a "$1" -n k8s.io tasks rm -f "$c" || true; done # with the exit status of the container
	[ -z "$(ctr -a "$1" -n k8s.io tasks ls -q)" ]
}

# down ends everything and removes it.
down() {
	local d netns g
	for d in "$dir"/*/[0-9]*; do [ ! -d "$d" ] || end "$d" & done
	wait
	signal=KILL stop "$dir"/*/*.pid # an API server without etcd takes 10 s to end
	for netns in /run/netns/cv-{lan,rome-*,milan-*,turin-*}; do [ ! -e "$netns" ] || ip netns del "${netns##*/}"; done
	find /sys/fs/cgroup -maxdepth 2 -type d -name "$(group '*')-[0-9]" 2>/dev/null | while read -r g; do
		find "$g" -depth -type d -exec rmdir {} + 2>/dev/null || true
	done
	rm -rf "$dir"
}

# up NAME... makes clusters. When it is interrupted, nothing of them stays.
up() {
	local name running kubeconfigs=
	interrupted unmade
	ip netns add cv-lan
	ip -n cv-lan link set lo up
	ip -n cv-lan link add lan type bridge
	! has4 || ip -n cv-lan address add 172.30.0.1/24 dev lan
	ip -n cv-lan link set lan up
	! has6 || {
		within cv-lan sysctl -qw net.ipv6.conf.all.disable_ipv6=0
		ip -n cv-lan address add fd30::1/64 dev lan nodad
	}
	image localhost/pause:1 "$(command -v busybox)" /usr/bin/busybox sleep inf >/dev/null
	for name in "$@"; do
		namespace "cv-$name-1" "$(address "$name" 1)"
		beside cluster "$name"
		kubeconfigs+=:$dir/$name/kubeconfig
	done
	for running in "${groups[@]}"; do wait "$running"; done
	KUBECONFIG=$kubeconfigs kubectl config view --flatten >"$dir/kubeconfig"
}

cluster() { control "$1"; node "$1" 1; node "$1" 2; }

unmade() {
	say 'removing what was started'
	down
	say 'nothing of it is left'
}

# dns runs CoreDNS on the first node of each cluster, anew if it runs already. It serves multi-cluster Services once their kinds are installed: before
# that it would wait for them, and answer SERVFAIL in place of NXDOMAIN.
dns() {
	local name at zone
	for name in $(names); do
		at=$(address "$name" 1)
		zone=$(of "$name" get crd serviceimports.multicluster.x-k8s.io --ignore-not-found -o name)
		zone=${zone:+clusterset.local}
		printf '.:53 {\n errors\n cache 5\n kubernetes cluster.local %s {\n  kubeconfig %s\n  ttl 5\n  %s\n }\n}\n' \
			"$zone" "$dir/$name/kubeconfig" "${zone:+multicluster $zone}" >"$dir/$name/Corefile"
		of "$name" -n kube-system create configmap coredns --from-file="$dir/$name/Corefile" --dry-run=client -o yaml | of "$name" apply -f - >/dev/null
		stop "$dir/$name/dns.pid"
		start "cv-$name-1" "$dir/$name/dns" "$assets/coredns" -conf "$dir/$name/Corefile"
		of "$name" apply -f - <<-Y >/dev/null
			apiVersion: v1
			kind: Service
			metadata: {name: kube-dns, namespace: kube-system}
			spec: {clusterIP: "$(one_of 10.96.0.10 fd00:96::a)", ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}
			---
			apiVersion: discovery.k8s.io/v1
			kind: EndpointSlice
			metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
			addressType: $(one_of IPv4 IPv6)
			ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
			endpoints: [{addresses: ["$at"]}]
		Y
	done
}

# both runs a command of culvert for both clusters.
both() { within cv-lan "$culvert" "$1" --kubeconfig "$dir/kubeconfig" --context rome --context milan "${@:2}"; }

# process NAME NAMESPACE/POD prints the ID of a pod's process.
process() {
	local node id
	read -r node id < <(of "$1" -n "${2%/*}" get pod "${2#*/}" -o 'jsonpath={.spec.nodeName} {.status.containerStatuses[0].containerID}{"\n"}')
	ctr -a "$dir/$1/${node##*-}/containerd.sock" -n k8s.io tasks ls | awk -v id="${id#containerd://}" '$1 == id { print $2 }'
}

# hello NAME makes a pod on each node.
hello() {
	local name=$1 id
	for id in $(of "$name" get nodes -o 'jsonpath={.items[*].metadata.name}'); do
		cat <<-Y
			---
			apiVersion: v1
			kind: Pod
			metadata: {name: hello-${id##*-}, labels: {app: hello}}
			spec: {nodeName: $id, terminationGracePeriodSeconds: 0, containers: [
			    {name: hello, image: "localhost/pause:1", securityContext: {runAsUser: 0},
			     command: [/usr/bin/busybox, sh, -c, "echo hello from $id >/hello; exec /usr/bin/busybox httpd -f -p 8080 -h /"]}]}
		Y
	done >"$dir/$name/hello.yaml"
	await 30 of "$name" apply -f "$dir/$name/hello.yaml" # the namespace's account comes some time after it
	await 60 of "$name" wait pod -l app=hello --for=condition=Ready --timeout=1s
}

# seen prints the address under which rome's pods reach hello-1 of milan, once there is one.
seen() {
	local own remap
	has4 || { seen6; return; }
	own=$(of milan get pod hello-1 -o 'jsonpath={.status.podIP}')
	remap=$(of rome -n culvert get peering milan -o 'jsonpath={.spec.remote.podCIDRs[0].remap}' 2>/dev/null)
	[ -n "$remap" ] && echo "${remap%.*.*}.${own#*.*.}" # both are /16
}

# seen6 is seen for IPv6, of which CIDRs are /56.
seen6() {
	local own remap i
	i=$(one_of 1 0)
	own=$(of milan get pod hello-1 -o "jsonpath={.status.podIPs[$i].ip}")
	remap=$(of rome -n culvert get peering milan -o "jsonpath={.spec.remote.podCIDRs[$i].remap}" 2>/dev/null)
	remap=${remap%::/56}
	[ -n "$remap" ] || return
	[[ $own =~ ^fd00:244:(0:([0-9a-f]+))?:{1,2}([0-9a-f:]+)$ ]]
	printf '%s:%x::%s\n' "${remap%:*}" $((0x${remap##*:} + 0x${BASH_REMATCH[2]:-0})) "${BASH_REMATCH[3]}"
}

# six_answers asks hello-1 of milan from rome by IPv6.
six_answers() {
	local at
	at=$(seen6)
	nsenter --net="/proc/$(process rome default/hello-1)/ns/net" busybox ping -c 3 -W 5 "$at" >/dev/null
	say "it answers as $at, too"
}

# first says how long after now the first answer comes from a pod of milan to one of rome.
first() {
	local began=$EPOCHREALTIME
	until at=$(seen); do sleep 0.2; done
	nsenter --net="/proc/$(process rome default/hello-1)/ns/net" timeout 120 busybox sh -c "until busybox ping -c 1 -W 1 $at >/dev/null 2>&1; do :; done"
	say "a pod of rome had its first answer from $at, a pod of milan, $(((${EPOCHREALTIME/./} - ${began/./}) / 1000)) ms after culvert join began"
}

# named exports the Service hello of milan, and waits until rome's pods find its name.
named() {
	of milan apply -f - <<-Y >/dev/null
		apiVersion: v1
		kind: Service
		metadata: {name: hello, namespace: default}
		spec: {selector: {app: hello}, ipFamilyPolicy: PreferDualStack, ports: [{port: 8080}]}
		---
		apiVersion: multicluster.x-k8s.io/v1beta1
		kind: ServiceExport
		metadata: {name: hello, namespace: default}
	Y
	await 60 of rome -n default get serviceimport hello
	[ ! -e "$dir/rome/dns.pid" ] || dns # with the zone of multi-cluster Services
}

# join IMAGE joins the clusters, checks every path, and says what one can do with them.
join() {
	local name to
	for name in rome milan; do hello $name; done
	beside first
	both join --image "$1" --services all --yes
	wait $!
	named
	both verify
	! dual || six_answers
	to=$(seen)
	[ ! -e "$dir/rome/dns.pid" ] || to=hello.default.svc.clusterset.local
	cat <<-T

		rome and milan are joined. They have two nodes each, and the same addresses of pods.

		  $0 shell $dir
		      a shell in a network that reaches both, with kubectl and culvert; there, for example:
		  kubectl --context rome -n culvert get peerings
		  kubectl --context rome exec hello-1 -- busybox sh -c 'printf "GET /hello HTTP/1.0\r\n\r\n" | busybox nc $to 8080'
		  culvert services --context rome --context milan
		  culvert verify --context rome --context milan
		  $0 node $dir rome 3
		      a third node of rome
		  $0 down $dir    (make clusters-down)
		      ends all of it
	T
}

do=${1:?$usage}
shift
case $do in
check) check; exit ;;
in) id=$1; shift; within "cv-$id" "$@"; exit ;;
up)
	check
	[ ! -e /run/netns/cv-lan ] || { echo "clusters.sh: there are clusters; end them first: $0 down ${1:?$usage} (make clusters-down)" >&2; exit 1; }
	mkdir -p "${1:?$usage}"
	[ -z "$(ls -A "$1")" ] || { echo "clusters.sh: $1 is not empty" >&2; exit 1; }
	echo "$cni $family" >"$1/of-clusters.sh" # what may be removed
	;;
down) [ -e "${1:?$usage}" ] || [ -e /run/netns/cv-lan ] || { say "there are no clusters in $1"; exit; } ;;&
*) [ -e "${1:?$usage}/of-clusters.sh" ] || { echo "clusters.sh: $1 has no clusters; clusters.sh up DIR makes some" >&2; exit 1; } ;;
esac
dir=$(realpath "$1")
read -r cni family <"$dir/of-clusters.sh" || true
shift
case $do in
dns | load | join) interrupted say "'the clusters stay; $0 down $dir (make clusters-down) ends them'" ;;&
node | leave | process | hello) names | grep -x "${1:?$usage}" >/dev/null || # with -q, names may write to nobody, and fail
   { echo "clusters.sh: there is no cluster $1, but" $(names) >&2; exit 2; } ;;&
node | leave) [[ ${2:?$usage} =~ ^[1-9]$ ]] || { echo "clusters.sh: the number of a node is 1 to 9, not $2" >&2; exit 2; } ;;&
up) [ "${*:-turin}" = turin ] || { echo "clusters.sh: the third cluster is turin, not $*" >&2; exit 2; }; up rome milan "$@" ;;
dns) dns ;;
hello) hello "$1" ;;
join) join "${1:?$usage}" ;;
shell)
	export KUBECONFIG=$dir/kubeconfig PATH=${culvert%/*}:$PATH
	[ $# -gt 0 ] || set -- "${SHELL:-/bin/bash}"
	within cv-lan "$@"
	;;
node) node "$1" "$2" ;;
leave)
	of "$1" delete node "$1-$2"
	end "$dir/$1/$2"
	ip netns del "cv-$1-$2"
	rm -rf "${dir:?}/$1/$2"
	;;
load)
	file=$dir/images/${1//[\/:]/_}.tar
	mkdir -p "$dir/images"
	"$culvert" image save --binary "$2" --name "$1" "$file" >/dev/null
	for sock in "$dir"/*/*/containerd.sock; do ctr -a "$sock" -n k8s.io images import "$file" >/dev/null; done
	;;
process) process "$1" "$2" ;;
down) down ;;
*) echo "$usage" >&2; exit 2 ;;
esac
