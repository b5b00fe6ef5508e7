package fault

import (
	"fmt"
	"net/netip"

	"culvert/gateway/node"
	"culvert/integration/lab"
)

// strangersKey is a public key that nobody in a lab has.
const strangersKey = "YSBwdWJsaWMga2V5IHRoYXQgaXMgbm9ib2R5J3MgISE="

// holeMTU is the largest IP packet that passes a black hole.
const holeMTU = 1296

// faults are listed in this order: between the gateways, addresses of the clusters, between a node
// and its gateway, on a node.
var faults = []Fault{{
	Name: "wrong-key-rome", Does: "rome's gateway has a stranger's public key for milan",
	Cause:   "wrong peer public key in rome",
	Remedy:  "wireguard.peerPublicKey of rome: what culvert keygen --public prints for milan's key",
	Symptom: AllCut, files: edit("rome/gateway", "wireguard.peerPublicKey", strangersKey),
	Named: milan("stranger-key", "192.0.2.1 begins handshakes with another public key than ours", "no-answer",
		"no-handshake"),
}, {
	Name: "wrong-key-milan", Does: "milan's gateway has a stranger's public key for rome",
	Cause:   "wrong peer public key in milan",
	Remedy:  "wireguard.peerPublicKey of milan: what culvert keygen --public prints for rome's key",
	Symptom: AllCut, files: edit("milan/gateway", "wireguard.peerPublicKey", strangersKey),
	Named: milan("stranger-peer", "192.0.2.1 knows our public key, and has another one than wireguard.peerPublicKey",
		"no-answer", "no-handshake"),
}, {
	Name: "endpoint-nobody", Does: "rome's endpoint is an address on the link to milan that nobody has",
	Cause: "nobody has the endpoint's address", Remedy: "wireguard.endpoint of rome: milan's address, 192.0.2.7:51840",
	Symptom: AllCut, files: withoutState(edit("rome/gateway", "wireguard.endpoint", "192.0.2.99:51840")),
	Named: rome("endpoint-nobody", "nobody has the address of 192.0.2.99:51840 (… handshakes sent, 0 answered)",
		"no-handshake"),
}, {
	Name: "endpoint-unroutable", Does: "rome's endpoint is an address to which its router has no route",
	Cause: "no route to the endpoint", Remedy: "wireguard.endpoint of rome: milan's address, 192.0.2.7:51840",
	Symptom: AllCut, files: withoutState(edit("rome/gateway", "wireguard.endpoint", "198.51.100.7:51840")),
	Named: rome("endpoint-unroutable",
		"this machine has no route to 198.51.100.7:51840 (… handshakes sent, 0 answered)", "no-handshake"),
}, {
	Name: "endpoint-wrong-port", Does: "rome's endpoint has a port at which nobody listens",
	Cause:   "endpoint's port is closed",
	Remedy:  "wireguard.endpoint of rome: the port is milan's wireguard.listenPort, 51840",
	Symptom: AllCut, files: withoutState(edit("rome/gateway", "wireguard.endpoint", "192.0.2.7:51841")),
	Named: rome("endpoint-refused",
		"nothing listens at 192.0.2.7:51841, says its machine (… handshakes sent, 0 answered)", "no-handshake"),
}, {
	Name: "endpoint-wrong-name", Does: "rome's endpoint is a name that does not exist",
	Cause:   "endpoint's name does not resolve",
	Remedy:  "wireguard.endpoint of rome: a name that resolves, or 192.0.2.7:51840",
	Symptom: AllCut, files: withoutState(edit("rome/gateway", "wireguard.endpoint", "gateway.milan.invalid:51840")),
	Named: rome("endpoint-name", "wireguard.endpoint gateway.milan.invalid:51840 has no address (…)", "no-handshake"),
}, {
	Name:  "both-servers",
	Does:  "both gateways are servers, and neither remembers the other's address: each waits for the other",
	Cause: "both gateways are servers", Remedy: "wireguard of rome: role client, endpoint 192.0.2.7:51840",
	Symptom: AllCut, files: withoutState(edit("rome/gateway", "wireguard.role", "server", "wireguard.endpoint", nil)),
	Named: rome("no-handshake", "no handshake from the peer for … (0 received on UDP 51840)", "no-handshake"),
}, {
	Name: "both-clients", Does: "both gateways are clients, so both have the same tunnel address",
	Cause: "both gateways are clients", Remedy: "wireguard of milan: role server, without an endpoint",
	Symptom: Unmeasured, files: edit("milan/gateway", "wireguard.role", "client", "wireguard.endpoint",
		"192.0.2.1:51840"),
	Named: rome("same-role", "the peer uses our tunnel address 169.254.18.2: it has the role client, too",
		"same-role"),
}, {
	Name: "peer-off", Does: "milan's gateway does not run",
	Cause: "peer is not running", Remedy: "start milan's gateway",
	Symptom: AllCut, off: "milan/gateway",
	Named: rome("endpoint-refused",
		"nothing listens at 192.0.2.7:51840, says its machine (… handshakes sent, 0 answered)"),
}, {
	Name: "peer-port-blocked", Does: "a firewall at milan's gateway silently drops WireGuard, UDP 51840",
	Cause: "UDP 51840 is blocked on the way to the peer", Remedy: "let UDP 51840 in at milan",
	Symptom: AllCut, kernel: blockUDP("milan/gateway", "peer", 51840),
	Named: rome("peer-mute", "the peer at 192.0.2.7:51840 sends, and has answered none of … requests for …",
		"peer-lost"),
}, {
	Name: "answers-blocked", Does: "a firewall at rome's gateway silently drops what milan's sends, UDP 51840",
	Cause: "UDP 51840 is blocked on the way back", Remedy: "let UDP 51840 in at rome",
	Symptom: AllCut, kernel: blockUDP("rome/gateway", "peer", 51840),
	Named: rome("peer-lost", "the peer at 192.0.2.7:51840 has not answered for … (… handshakes sent, 0 answered)",
		"peer-mute"),
}, {
	Name: "endpoint-forbidden", Does: "a firewall at rome's gateway forbids it to send to UDP 51840",
	Cause: "the gateway may not send to the peer", Remedy: "let rome's gateway send to UDP 51840",
	Symptom: AllCut, kernel: forbidUDP("rome/gateway", 51840),
	Named: rome("endpoint-forbidden", "this machine may not send to 192.0.2.7:51840 (… handshakes sent, … answered)",
		"peer-lost"),
}, {
	Name: "mtu-hole-peer", Does: fmt.Sprintf("between the gateways, packets of more than %d bytes vanish", holeMTU),
	Cause:   "path MTU between the gateways is too small",
	Remedy:  fmt.Sprintf("let packets of 1400 bytes pass there, or set mtu: %d everywhere", holeMTU-60),
	Symptom: AllLarge, kernel: peerHole(),
	Named: rome("peer-path-mtu",
		"packets of more than … bytes vanish on the way … the peer (192.0.2.7), mtu is 1340; senders are kept to what passes", "peer-path-mtu"),
}, {
	Name:  "lost-trains",
	Does:  "milan's gateway loses trains: batches of datagrams that rome's kernel sends as one where offloads are on",
	Cause: "offloads lose trains", Remedy: "at milan/gateway: tc qdisc del dev peer ingress",
	Symptom: SlowBulk, kernel: loseTrains(), load: streams,
	// milan misses answers in trains, too
	Named: rome("peer-trains",
		"UDP_SEGMENT trains do not arrive at the peer (192.0.2.7): it is sent single datagrams, which is slower",
		"peer-trains"),
}, {
	Name: "rule-drops", Does: "a rule of milan's gateway drops everything from rome",
	Cause: "a rule drops it", Remedy: "rules of milan: remove the rule oops",
	Symptom: AllCut, files: edit("milan/gateway", "rules",
		[]lab.Object{{"name": "oops", "from": "remote", "action": "drop"}}),
	Named: milan("rule-drops", "rule oops refuses packets of rome, the last from … to … (filtered, …)"),
}, {
	Name: "small-mss", Does: "both gateways cut TCP down to segments of 216 bytes",
	Cause: "mssClamp is too small", Remedy: "mssClamp of both: auto",
	Symptom: SlowTCP, files: both("mssClamp", 216),
	Named: rome("small-mss", "mssClamp cuts TCP into segments of 216 bytes, where 1300 fit"),
}, {
	Name:  "full-table",
	Does:  "rome's gateway has room for 4 connections, and rome/node1 opens one UDP stream after the other",
	Cause: "table of connections is full", Remedy: "nat.maxConnections of rome: auto",
	Symptom: NewCut, files: edit("rome/gateway", "nat", lab.Object{"maxConnections": 4}), load: openStreams,
	Named: rome("table-full", "… packets dropped as …: the connection table is full, the last sender is 10.80.0.2"),
}, {
	Name: "exhausted-ports", Does: "rome/node1 uses up its source ports towards UDP port 9 of milan/pod1",
	Cause:   "source ports are exhausted",
	Remedy:  "stop the program that opens so many; culvert connections delete --socket rome --protocol udp --port 9",
	Symptom: PortCut, load: takePorts,
	Named: rome("ports-full", "… packets dropped as …: no source port is left towards 10.61.1.5"),
}, {
	Name: "wrong-cidr-rome", Does: "rome's gateway has 10.9.0.0/16 as milan's pod CIDR",
	Cause: "wrong remote pod CIDR in rome", Remedy: "network.remote.podCIDRs of rome: milan's own, 10.0.0.0/16",
	Symptom: AllCut, files: wrongCIDR("rome/gateway", "10.61.0.0/16", "10.71.0.0/16"),
	Named: milan("no-route-local", "… packets of the peer to … dropped as no-route: it is in no CIDR of network.local",
		"bad-source-peer"),
}, {
	Name: "wrong-cidr-milan", Does: "milan's gateway has 10.9.0.0/16 as rome's pod CIDR",
	Cause: "wrong remote pod CIDR in milan", Remedy: "network.remote.podCIDRs of milan: rome's own, 10.0.0.0/16",
	Symptom: AllCut, files: wrongCIDR("milan/gateway", "10.62.0.0/16", "10.72.0.0/16"),
	Named: milan("bad-source-peer", "… packets of the peer dropped as bad-source: … is in no cidr of network.remote",
		"no-route-local"),
}, {
	Name:    "wrong-remap-rome",
	Does:    "rome's gateway remaps milan to 10.63.0.0/16; its nodes have a route to 10.61.0.0/16",
	Cause:   "remap in rome is not what its nodes route",
	Remedy:  "network.remote.podCIDRs of rome: remap 10.61.0.0/16, or routes of rome's nodes: 10.63.0.0/16",
	Symptom: AllCut, files: edit("rome/gateway", "network.remote.podCIDRs",
		[]lab.Object{{"cidr": "10.0.0.0/16", "remap": "10.63.0.0/16"}}),
	Named: rome("no-route-remote", "… packets of … to … dropped as no-route: no remote CIDR has it"),
}, {
	Name:    "wrong-remap-milan",
	Does:    "milan's gateway remaps rome to 10.64.0.0/16; its nodes have a route to 10.62.0.0/16",
	Cause:   "remap in milan is not what its nodes route",
	Remedy:  "network.remote.podCIDRs of milan: remap 10.62.0.0/16, or routes of milan's nodes: 10.64.0.0/16",
	Symptom: AllCut, files: edit("milan/gateway", "network.remote.podCIDRs",
		[]lab.Object{{"cidr": "10.0.0.0/16", "remap": "10.64.0.0/16"}}),
	Named: milan("no-route-remote", "… packets of … to … dropped as no-route: no remote CIDR has it"),
}, {
	Name: "gateway-off", Does: "rome's gateway does not run",
	Cause: "gateway is not running", Remedy: "start rome's gateway",
	Symptom: AllCut, off: "rome/gateway",
	Named: milan("endpoint-refused",
		"nothing listens at 192.0.2.1:51840, says its machine (… handshakes sent, 0 answered)"),
}, {
	Name: "gateway-port-blocked", Does: "a firewall at rome's gateway silently drops what nodes send, UDP 6091",
	Cause: "UDP 6091 is blocked at the gateway", Remedy: "let UDP 6091 in from the nodes, at rome's gateway",
	Symptom: AllCut, kernel: blockUDP("rome/gateway", "eth0", 6091),
	Named: rome("node-silent", "rome-node1 (172.18.0.2) has answered no ARP for … (… asked)", "node-silent"),
}, {
	Name: "node-port-blocked", Does: "a firewall at node1 silently drops what the gateway sends, UDP 6091",
	Cause: "UDP 6091 is blocked at the node", Remedy: "let UDP 6091 in from the gateway, at rome/node1",
	Symptom: FirstCut, kernel: blockUDP("rome/node1", "eth0", 6091),
	Named: rome("node-deaf", "rome-node1 (172.18.0.2) sends, and answers no ARP for 10.80.0.2 (… asked)"),
}, {
	Name: "mtu-hole-node", Does: fmt.Sprintf("between node1 and its gateway, packets of more than %d bytes vanish",
		holeMTU),
	Cause:   "path MTU between node and gateway is too small",
	Remedy:  fmt.Sprintf("let packets of 1390 bytes pass there, or set mtu: %d everywhere", holeMTU-50),
	Symptom: FirstLarge, kernel: nodeHole(),
	Named: rome("node-path-mtu",
		"packets of more than … bytes vanish on the way … rome-node1 (172.18.0.2), mtu is 1340; senders are kept to what passes"),
}, {
	Name:  "ecmp-half",
	Does:  "one of two equal-cost paths from node1 to its gateway loses everything: half of the node's outer flows vanish",
	Cause: "ECMP drops half of the flows", Remedy: "at rome/gateway: delete the blackhole rule that ip rule lists",
	Symptom: HalfCut, kernel: halfFlows(), not: node.TUN,
	Untold: "packets that arrive from the node are fine, and the missing ones look like silent pods; culvert connections lists connections without an answer",
}, {
	Name: "wrong-underlay", Does: "the gateway's underlay address for node1 is one that nobody has",
	Cause: "wrong underlay address of a node", Remedy: "geneve.nodes of rome: underlay 172.18.0.2 for rome-node1",
	Symptom: FirstCut, files: editFirst("underlay", "172.18.0.22"),
	Named: rome("node-underlay", "rome-node1 sends from 172.18.0.2, configured 172.18.0.22", "node-nobody"),
}, {
	Name: "wrong-vni", Does: "the gateway has another VNI for node1 than node1 uses",
	Cause: "wrong VNI of a node", Remedy: "geneve.nodes of rome: vni 1 for rome-node1",
	Symptom: FirstCut, files: editFirst("vni", 11),
	Named: rome("node-vni", "rome-node1 (172.18.0.2) sends VNI 1, configured 11"),
}, {
	Name: "wrong-address", Does: "the gateway has another internal address for node1 than node1 has",
	Cause: "wrong internal address of a node", Remedy: "geneve.nodes of rome: address 10.80.0.2 for rome-node1",
	Symptom: Harmless, files: editFirst("address", "10.80.0.22"),
	Named: &Named{"rome", "node-address", "rome-node1 calls itself 10.80.0.2, configured 10.80.0.22", nil,
		rome("node-deaf", "rome-node1 (172.18.0.2) sends, and answers no ARP for 10.80.0.22 (… asked)")},
}, {
	Name:  "wrong-encap",
	Does:  "the gateway is configured for VXLAN with node1, which uses Geneve, or for Geneve where node1 uses VXLAN",
	Cause: "wrong encap of a node", Remedy: "geneve.nodes of rome: no encap for rome-node1, or the one that node1 uses",
	Symptom: FirstCut, files: editFirstNode(func(n lab.Object, mode node.Mode) {
		n["encap"] = "vxlan"
		if mode == node.VXLAN {
			n["encap"] = "geneve"
		}
	}),
	Named: rome("node-encap", "rome-node1 (172.18.0.2) sends another encapsulation than geneve"),
}, {
	Name: "overlapping-cidrs", Does: "the gateway looks for rome/pod1 behind node2, whose pod CIDRs overlap node1's",
	Cause: "overlapping pod CIDRs of nodes", Remedy: "geneve.nodes of rome: podCIDRs of rome-node2 without 10.0.1.0/25",
	Symptom: FirstCut, files: map[string]change{"rome/gateway": func(config lab.Object, _ node.Mode) {
		n := lab.NodesOf(config)[1]
		n["podCIDRs"] = append(n["podCIDRs"].([]netip.Prefix), netip.MustParsePrefix("10.0.1.0/25"))
	}},
	Named: rome("bad-source-node",
		"… packets of rome-node1 dropped as bad-source: 10.0.1.5 is an address of rome-node2"),
}, {
	Name: "wrong-pod-cidr", Does: "the gateway has 10.0.3.0/24 as node1's pod CIDR",
	Cause: "wrong pod CIDR of a node", Remedy: "geneve.nodes of rome: podCIDRs 10.0.1.0/24 for rome-node1",
	Symptom: FirstDeaf, files: editFirst("podCIDRs", []string{"10.0.3.0/24"}),
	Named: rome("no-route-node", "… packets to 10.0.1.5 dropped as no-route: no node has it"),
}, {
	Name:    "no-unknown-source",
	Does:    "node1's pods are in none of the gateway's pod CIDRs, and it drops unknown sources",
	Cause:   "pods are in no local pod CIDR",
	Remedy:  "network.local.podCIDRs of rome: 10.0.0.0/16, or no nat.unknownSource",
	Symptom: FirstCut, files: map[string]change{"rome/gateway": func(config lab.Object, _ node.Mode) {
		lab.NodesOf(config)[0]["podCIDRs"] = []string{}
		config["network"].(lab.Object)["local"].(lab.Object)["podCIDRs"] = []string{"10.0.2.0/24"}
		config["nat"] = lab.Object{"unknownSource": "off"}
	}},
	Named: rome("unknown-source", "… packets of rome-node1 dropped as unknown-source: 10.0.1.5 is no pod",
		"no-route-local"),
}, {
	Name: "wrong-gateway", Does: "node1's underlay address for its gateway is one that nobody has",
	Cause: "wrong underlay address of the gateway", Remedy: "gateway.underlay of node1: 172.18.0.9",
	Symptom: FirstCut, files: edit("rome/node1", "gateway.underlay", "172.18.0.99"),
	Named: rome("node-silent", "rome-node1 (172.18.0.2) has answered no ARP for … (… asked)"),
}, {
	Name: "wrong-gateway-address", Does: "node1 has another internal address for its gateway than the gateway has",
	Cause: "wrong internal address of the gateway", Remedy: "gateway.address of node1: 10.80.0.4",
	Symptom: FirstCut, files: edit("rome/node1", "gateway.address", "10.80.0.44"), not: node.TUN,
	Named: rome("node-gateway-address", "rome-node1 asks for the gateway by 10.80.0.44, which is 10.80.0.4"),
}, {
	Name: "wrong-port", Does: "node1 uses another UDP port than its gateway",
	Cause: "wrong port of a node", Remedy: "port of node1: the gateway's geneve.listenPort, 6091",
	Symptom: FirstCut, files: edit("rome/node1", "port", 6092),
	Named: rome("node-refused", "nothing listens on UDP 6091 of rome-node1 (172.18.0.2), says that machine"),
}, {
	Name: "missing-route", Does: "node1 has no route to milan's pods",
	Cause: "a node has no route to the remote pod CIDR", Remedy: "routes of node1: 10.61.0.0/16",
	Symptom: FirstCut, files: edit("rome/node1", "routes", []string{"10.71.0.0/16"}),
	Named: rome("node-one-way", "rome-node1 has sent no packet for …, and … were sent to it"),
}, {
	Name: "route-without-via", Does: "node1's route to milan's pods has no gateway, so it asks for the pods by ARP",
	Cause: "a node's route has no via", Remedy: "routes of node1: add 10.61.0.0/16, and remove the other route to it",
	Symptom: FirstCut, files: edit("rome/node1", "routes", []string{"10.71.0.0/16"}), kernel: withoutVia(),
	not:   node.TUN,
	Named: rome("node-route-via", "rome-node1 asks by ARP for 10.61.1.5, which is behind the gateway"),
}, {
	Name: "asymmetric-return", Does: "rome/pod1's packets leave by node2, answers arrive by node1",
	Cause:   "packets of a node's pods come from another node",
	Remedy:  "at node1: route 10.61.0.0/16 through culvert0 again, or set sourceCheck: cluster",
	Symptom: FirstCut, files: edit("rome/node1", "routes", []string{"10.71.0.0/16"}), kernel: byOtherNode(),
	Named: rome("bad-source-node",
		"… packets of rome-node2 dropped as bad-source: 10.0.1.5 is an address of rome-node1"),
}, {
	Name: "no-forwarding", Does: "node1 does not forward packets",
	Cause: "a node does not forward", Remedy: "at node1: sysctl net.ipv4.ip_forward=1",
	Symptom: FirstCut, kernel: noForwarding(),
	Named: rome("node-one-way", "rome-node1 has sent no packet for …, and … were sent to it"),
}, {
	Name: "node-off", Does: "culvert does not run on node1",
	Cause: "node is not running", Remedy: "start culvert node on node1",
	Symptom: FirstCut, off: "rome/node1",
	Named: rome("node-refused", "nothing listens on UDP 6091 of rome-node1 (172.18.0.2), says that machine"),
}, {
	Name: "underlay-down", Does: "node1's cable is unplugged",
	Cause: "a node's underlay is down", Remedy: "at the router: ip link set node1 up",
	Symptom: FirstCut, kernel: cableOut(),
	Named: &Named{"rome", "node-silent", "rome-node1 (172.18.0.2) has answered no ARP for … (… asked)", nil,
		rome("node-nobody", "nobody has the underlay address 172.18.0.2 of rome-node1")},
}, {
	Name: "pod-without-route", Does: "rome/pod1 has no default route",
	Cause: "a pod has no route", Remedy: "at rome/pod1: ip route add default via 10.0.1.1",
	Symptom: FirstCut, kernel: podWithoutRoute(),
	Named: rome("node-one-way", "rome-node1 has sent no packet for …, and … were sent to it"),
}}
