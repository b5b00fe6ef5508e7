package lab

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	metricsAddress = "127.0.0.1:8082" // in each gateway's namespace
	tunnelLink     = "culvert0"       // in each node's namespace
)

type object = map[string]any

// writeConfigs writes a configuration for every gateway and node, and keys.
func (l *Lab) writeConfigs() error {
	for i := range clusters {
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		l.publicKey[i] = base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())
		text := base64.StdEncoding.EncodeToString(key.Bytes()) + "\n"
		if err := l.write(clusters[i].Name, "private.key", []byte(text)); err != nil {
			return err
		}
	}
	for host, config := range l.configs() {
		cluster, name, _ := strings.Cut(host, "/")
		if err := l.writeYAML(cluster, name+".yaml", config); err != nil {
			return err
		}
	}
	return nil
}

// configs returns the configurations of all gateways and nodes, by host.
func (l *Lab) configs() map[string]object {
	all := make(map[string]object)
	for i := range clusters {
		c, peer := &clusters[i], &clusters[1-i]
		all[c.Name+"/gateway"] = l.gatewayConfig(i)
		for j := range c.Nodes {
			n := &c.Nodes[j]
			all[c.Name+"/"+n.Name] = l.nodeConfig(c, peer, n)
		}
	}
	return all
}

func (l *Lab) writeYAML(cluster, file string, o object) error {
	text, err := yaml.Marshal(o)
	if err != nil {
		return err
	}
	return l.write(cluster, file, text)
}

// gatewayConfig returns the configuration of the gateway of clusters[i].
func (l *Lab) gatewayConfig(i int) object {
	c, peer, peerKey := &clusters[i], &clusters[1-i], l.publicKey[1-i]
	wireguard := object{"role": c.Role, "privateKeyFile": l.path(c.Name, "private.key"), "peerPublicKey": peerKey, "listenPort": 51840}
	if c.Role == "client" {
		wireguard["endpoint"] = fmt.Sprintf("%s:51840", peer.Peering.Addr())
	}
	var nodes []object
	for _, n := range c.Nodes {
		nodes = append(nodes, object{"name": c.Name + "-" + n.Name, "vni": n.VNI, "underlay": n.Underlay, "address": n.Internal,
			"podCIDRs": []netip.Prefix{n.PodCIDR.Masked()}})
	}
	options := l.options.of(c)
	config := object{
		"cluster": c.Name, "peer": peer.Name, "mtu": options.MTU,
		"wireguard": wireguard,
		"geneve":    object{"gatewayAddress": c.Internal, "nodes": nodes},
		"network": object{
			"local": object{"podCIDRs": []netip.Prefix{c.PodCIDR}, "externalCIDRs": []netip.Prefix{c.External}},
			"remote": object{
				"podCIDRs":      []object{{"cidr": peer.PodCIDR, "remap": "auto"}},
				"externalCIDRs": []object{{"cidr": peer.External, "remap": "auto"}},
			},
		},
		// Two pools of one block each: the first choice falls into the first.
		"ipam":     object{"pools": []netip.Prefix{peer.SeenPods, peer.SeenExt}},
		"state":    l.path(c.Name, "state"),
		"mssClamp": options.MSSClamp,
		"metrics":  metricsAddress,
	}
	if l.options.Outside {
		config["nat"] = c.natConfig()
	}
	return config
}

func (l *Lab) nodeConfig(c, peer *Cluster, n *ClusterNode) object {
	return object{
		"name": c.Name + "-" + n.Name, "underlay": n.Underlay,
		"gateway": object{"underlay": c.Gateway, "address": c.Internal},
		"vni":     n.VNI, "address": n.Internal, "mtu": l.options.of(c).NodeMTU, "mode": l.options.Mode,
		"routes": []netip.Prefix{peer.SeenPods, peer.SeenExt}, "interface": tunnelLink,
	}
}
