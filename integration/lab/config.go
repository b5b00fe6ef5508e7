package lab

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"culvert/integration/lab/plan"
)

const (
	MetricsAddress = "127.0.0.1:8082" // in each gateway's namespace
	TunnelLink     = "culvert0"       // in each node's namespace
)

// Object is a part of a configuration.
type Object = map[string]any

// WriteConfigs writes a configuration for every gateway and node, and keys.
func (l *Lab) WriteConfigs() error {
	for i := range plan.V4 {
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		l.PublicKey[i] = base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())
		text := base64.StdEncoding.EncodeToString(key.Bytes()) + "\n"
		if err := l.Write(plan.V4[i].Name, "private.key", []byte(text)); err != nil {
			return err
		}
	}
	for host, config := range l.Configs() {
		cluster, name, _ := strings.Cut(host, "/")
		if err := l.WriteYAML(cluster, name+".yaml", config); err != nil {
			return err
		}
	}
	return nil
}

// Configs returns the configurations of all gateways and nodes, by host.
func (l *Lab) Configs() map[string]Object {
	all := make(map[string]Object)
	for i := range plan.V4 {
		c := &plan.V4[i]
		all[c.Name+"/gateway"] = l.GatewayConfig(i)
		for j := range c.Nodes {
			all[c.Name+"/"+c.Nodes[j].Name] = l.nodeConfig(i, j)
		}
	}
	return all
}

// WriteYAML writes a configuration to a file of a cluster.
func (l *Lab) WriteYAML(cluster, file string, o Object) error {
	text, err := yaml.Marshal(o)
	if err != nil {
		return err
	}
	return l.Write(cluster, file, text)
}

// GatewayConfig returns the configuration of the gateway of clusters[i].
func (l *Lab) GatewayConfig(i int) Object {
	c, peer, peerKey := &plan.V4[i], &plan.V4[1-i], l.PublicKey[1-i]
	wireguard := Object{"role": c.Role, "privateKeyFile": l.Path(c.Name, "private.key"), "peerPublicKey": peerKey,
		"listenPort": 51840}
	if c.Role == "client" {
		wireguard["endpoint"] = netip.AddrPortFrom(l.Outer()[1-i].Peering.Addr(), 51840).String()
	}
	var nodes []Object
	for j, n := range c.Nodes {
		var address []netip.Addr
		var pods []netip.Prefix
		for _, p := range l.Plans() {
			address, pods = append(address, p[i].Nodes[j].Internal), append(pods, p[i].Nodes[j].PodCIDR.Masked())
		}
		nodes = append(nodes, Object{"name": c.Name + "-" + n.Name, "vni": n.VNI,
			"underlay": l.Outer()[i].Nodes[j].Underlay, "address": OneOrBoth(address), "podCIDRs": pods})
	}
	var own []netip.Addr
	var both []*plan.Cluster
	var pods, externals, pools []netip.Prefix
	var remotePods, remoteExternals []Object
	for _, p := range l.Plans() {
		c, peer := &p[i], &p[1-i]
		own, both = append(own, c.Internal), append(both, c)
		pods, externals, pools = append(pods, c.PodCIDR), append(externals, c.External), append(pools, peer.SeenPods,
			peer.SeenExt)
		remotePods = append(remotePods, Object{"cidr": peer.PodCIDR, "remap": "auto"})
		remoteExternals = append(remoteExternals, Object{"cidr": peer.External, "remap": "auto"})
	}
	options := l.Options.of(c)
	config := Object{
		"cluster": c.Name, "peer": peer.Name, "mtu": options.MTU,
		"wireguard": wireguard,
		"geneve":    Object{"gatewayAddress": OneOrBoth(own), "nodes": nodes},
		"network": Object{
			"local":  Object{"podCIDRs": pods, "externalCIDRs": externals},
			"remote": Object{"podCIDRs": remotePods, "externalCIDRs": remoteExternals},
		},
		// Two pools of one block each per family: the first choice uses the first.
		"ipam":     Object{"pools": pools},
		"state":    l.Path(c.Name, "state"),
		"mssClamp": options.MSSClamp,
		"metrics":  MetricsAddress,
	}
	if l.Options.Outside {
		config["nat"] = natConfig(both...)
	}
	return config
}

// nodeConfig returns the configuration of a node of clusters[i].
func (l *Lab) nodeConfig(i, j int) Object {
	c, n, outer := &plan.V4[i], &plan.V4[i].Nodes[j], &l.Outer()[i]
	var address, gateway []netip.Addr
	var routes []netip.Prefix
	// nodeReady waits for the last route, which must be of the first family
	for _, p := range slices.Backward(l.Plans()) {
		address, gateway = append(address, p[i].Nodes[j].Internal), append(gateway, p[i].Internal)
		routes = append(routes, p[1-i].SeenPods, p[1-i].SeenExt)
	}
	return Object{
		"name": c.Name + "-" + n.Name, "underlay": outer.Nodes[j].Underlay,
		"gateway": Object{"underlay": outer.Gateway, "address": OneOrBoth(gateway)},
		"vni":     n.VNI, "address": OneOrBoth(address), "mtu": l.Options.of(c).NodeMTU, "mode": l.Options.Mode,
		"routes": routes, "interface": TunnelLink,
	}
}

// OneOrBoth returns addresses as in a configuration file.
func OneOrBoth(families []netip.Addr) any {
	if len(families) == 1 {
		return families[0]
	}
	return families
}

// Set changes a field of a configuration by its path, such as nat.maxConnections; nil removes it.
func Set(config Object, path string, value any) {
	names := strings.Split(path, ".")
	last := len(names) - 1
	for _, name := range names[:last] {
		config = config[name].(Object)
	}
	if value == nil {
		delete(config, names[last])
	} else {
		config[names[last]] = value
	}
}

func NodesOf(gateway Object) []Object { return gateway["geneve"].(Object)["nodes"].([]Object) }
