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
	metricsAddress = "127.0.0.1:8082" // in each gateway's namespace
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
		l.publicKey[i] = base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())
		text := base64.StdEncoding.EncodeToString(key.Bytes()) + "\n"
		if err := l.write(plan.V4[i].Name, "private.key", []byte(text)); err != nil {
			return err
		}
	}
	for host, config := range l.configs() {
		cluster, name, _ := strings.Cut(host, "/")
		if err := l.WriteYAML(cluster, name+".yaml", config); err != nil {
			return err
		}
	}
	return nil
}

// configs returns the configurations of all gateways and nodes, by host.
func (l *Lab) configs() map[string]Object {
	all := make(map[string]Object)
	for i := range plan.V4 {
		c := &plan.V4[i]
		all[c.Name+"/gateway"] = l.gatewayConfig(i)
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
	return l.write(cluster, file, text)
}

// gatewayConfig returns the configuration of the gateway of clusters[i].
func (l *Lab) gatewayConfig(i int) Object {
	c, peer, peerKey := &plan.V4[i], &plan.V4[1-i], l.publicKey[1-i]
	wireguard := Object{"role": c.Role, "privateKeyFile": l.Path(c.Name, "private.key"), "peerPublicKey": peerKey,
		"listenPort": 51840}
	if c.Role == "client" {
		wireguard["endpoint"] = netip.AddrPortFrom(l.outer()[1-i].Peering.Addr(), 51840).String()
	}
	var nodes []Object
	for j, n := range c.Nodes {
		var address []netip.Addr
		var pods []netip.Prefix
		for _, p := range l.Plans() {
			address, pods = append(address, p[i].Nodes[j].Internal), append(pods, p[i].Nodes[j].PodCIDR.Masked())
		}
		nodes = append(nodes, Object{"name": c.Name + "-" + n.Name, "vni": n.VNI,
			"underlay": l.outer()[i].Nodes[j].Underlay, "address": oneOrBoth(address), "podCIDRs": pods})
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
		"geneve":    Object{"gatewayAddress": oneOrBoth(own), "nodes": nodes},
		"network": Object{
			"local":  Object{"podCIDRs": pods, "externalCIDRs": externals},
			"remote": Object{"podCIDRs": remotePods, "externalCIDRs": remoteExternals},
		},
		// Two pools of one block each per family: the first choice uses the first.
		"ipam":     Object{"pools": pools},
		"state":    l.Path(c.Name, "state"),
		"mssClamp": options.MSSClamp,
		"metrics":  metricsAddress,
	}
	if l.Options.Outside {
		config["nat"] = natConfig(both...)
	}
	return config
}

// nodeConfig returns the configuration of a node of clusters[i].
func (l *Lab) nodeConfig(i, j int) Object {
	c, n, outer := &plan.V4[i], &plan.V4[i].Nodes[j], &l.outer()[i]
	var address, gateway []netip.Addr
	var routes []netip.Prefix
	// nodeReady waits for the last route, which must be of the first family
	for _, p := range slices.Backward(l.Plans()) {
		address, gateway = append(address, p[i].Nodes[j].Internal), append(gateway, p[i].Internal)
		routes = append(routes, p[1-i].SeenPods, p[1-i].SeenExt)
	}
	return Object{
		"name": c.Name + "-" + n.Name, "underlay": outer.Nodes[j].Underlay,
		"gateway": Object{"underlay": outer.Gateway, "address": oneOrBoth(gateway)},
		"vni":     n.VNI, "address": oneOrBoth(address), "mtu": l.Options.of(c).NodeMTU, "mode": l.Options.Mode,
		"routes": routes, "interface": TunnelLink,
	}
}

// oneOrBoth returns addresses as in a configuration file.
func oneOrBoth(families []netip.Addr) any {
	if len(families) == 1 {
		return families[0]
	}
	return families
}
