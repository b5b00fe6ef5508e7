package config

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/gaissmai/bart"

	"culvert/gateway/configfile"
)

// warn reports what is valid but probably not meant. Some of it depends on this machine, and may
// differ on the gateway's.
func (c *Config) warn(e *configfile.Errors) {
	c.warnNodes(e)
	c.warnCovered(e)
	c.warnNAT(e)
	c.warnUnderlay(e)
}

func (c *Config) warnNodes(e *configfile.Errors) {
	underlays := map[netip.Addr]int{}
	var pods places
	for i, n := range c.Geneve.Nodes {
		at := fmt.Sprintf("geneve.nodes[%d].", i)
		if j, ok := underlays[n.Underlay]; ok {
			e.Warn(at+"underlay",
				"%s is geneve.nodes[%d].underlay too; give each node its own, unless both are on one machine",
				n.Underlay, j)
		} else {
			underlays[n.Underlay] = i
		}
		if len(n.PodCIDRs) == 0 {
			e.Warn(at+"podCIDRs", "no pods are behind this node; name its part of network.local.podCIDRs")
		}
		for k, p := range n.PodCIDRs {
			path := fmt.Sprintf("%spodCIDRs[%d]", at, k)
			if other, q, overlaps := pods.overlap(p); overlaps {
				e.Warn(path, "%s overlaps %s (%s); the longer prefix wins, give each node pods of its own", p, other, q)
			}
			pods.table.Insert(p, path)
		}
	}
}

// warnCovered finds pod CIDRs and remaps that hide the tunnels' underlay.
func (c *Config) warnCovered(e *configfile.Errors) {
	covers := func(path string, p netip.Prefix) {
		const remedy = "choose a CIDR without it, or traffic to it goes into the tunnel instead of below it"
		for i, n := range c.Geneve.Nodes {
			if p.Contains(n.Underlay) {
				e.Warn(path, "%s contains geneve.nodes[%d].underlay %s; %s", p, i, n.Underlay, remedy)
				break
			}
		}
		if a, err := netip.ParseAddrPort(c.WireGuard.Endpoint); err == nil && p.Contains(a.Addr()) {
			e.Warn(path, "%s contains wireguard.endpoint %s; %s", p, a.Addr(), remedy)
		}
	}
	for i, p := range c.Local.PodCIDRs {
		covers(fmt.Sprintf("network.local.podCIDRs[%d]", i), p)
	}
	for i, p := range c.Local.ExternalCIDRs {
		covers(fmt.Sprintf("network.local.externalCIDRs[%d]", i), p)
	}
	for i, path := range c.remotePaths() {
		r := c.Remote[i]
		if r.Remapped == r.Real {
			covers(path+".cidr", r.Real)
		} else {
			covers(path+".remap", r.Remapped)
		}
	}
}

func (c *Config) warnNAT(e *configfile.Errors) {
	var pods, remapped bart.Lite
	for _, p := range c.Local.PodCIDRs {
		pods.Insert(p)
	}
	for _, r := range c.Remote {
		if r.Remapped.IsValid() && r.Remapped != r.Real {
			remapped.Insert(r.Remapped)
		}
	}
	for i, s := range c.Services {
		for k, b := range s.Backends {
			if b.Via == "" && !pods.Contains(b.Address) {
				e.Warn(fmt.Sprintf("nat.services[%d].backends[%d].address", i, k),
					"%s is in no CIDR of network.local.podCIDRs; name the node that leads to it in via, or the first node is used", b.Address)
			}
		}
	}
	if len(c.Exports) > 0 && c.Admit == AdmitAll {
		e.Warn("nat.exports", "they change nothing without nat.admit: exports; add it, or leave them out")
	}
	for i, r := range c.Rules {
		for name, list := range map[string][]netip.Prefix{"src": r.Source, "dst": r.Destination} {
			for k, p := range list {
				if remapped.LookupPrefix(p) {
					e.Warn(fmt.Sprintf("rules[%d].%s[%d]", i, name, k),
						"%s is a remapped CIDR, which rules never see; write the CIDR that the peer itself uses", p)
				}
			}
		}
	}
	for a := range c.Geneve.GatewayAddress.All() {
		if c.externalOf(a).IsValid() {
			continue
		}
		which, such := "no CIDR", "10.70.0.0/16"
		if a.Is6() {
			which, such = "no IPv6 CIDR", "fd00:70::/48"
		} else if c.Geneve.GatewayAddress.V6.IsValid() {
			which = "no IPv4 CIDR"
		}
		e.Warn("network.local.externalCIDRs",
			"%s, so packets from nodes and everything else that is not a pod are dropped; choose an unused one such as %s", which, such)
	}
}

// warnUnderlay compares the addresses of the underlay with this machine's.
func (c *Config) warnUnderlay(e *configfile.Errors) {
	devices := make(deviceCache)
	for i, n := range c.Geneve.Nodes[:min(len(c.Geneve.Nodes), 16)] { // a few are enough to show a mistake
		need := c.MTU.GeneveWireMTU(n.Underlay.Is6())
		if d := devices.to(n.Underlay); d != nil && WireMTU(d.MTU) < need {
			e.Warn("mtu",
				"%d needs %d bytes on the way to geneve.nodes[%d].underlay %s, where %s carries %d; write at most %d, here and at nodes",
				c.MTU, need, i, n.Underlay, d.Name, d.MTU, d.MTU-int(need)+int(c.MTU))
			break
		}
	}
	at, err := netip.ParseAddrPort(c.WireGuard.Endpoint)
	if err != nil {
		return
	}
	peer := at.Addr().Unmap()
	if addresses, err := net.InterfaceAddrs(); err == nil && !peer.IsLoopback() {
		for _, a := range addresses {
			if own, ok := a.(*net.IPNet); ok && own.IP.Equal(peer.AsSlice()) {
				e.Warn("wireguard.endpoint", "%s is an address of this machine; give the peer's", peer)
			}
		}
	}
	need := c.MTU.WireGuardWireMTU(peer.Is6())
	if d := devices.to(peer); d != nil && WireMTU(d.MTU) < need {
		e.Warn("mtu",
			"%d needs %d bytes on the way to wireguard.endpoint %s, where %s carries %d; write at most %d, here and at the peer",
			c.MTU, need, peer, d.Name, d.MTU, d.MTU-int(need)+int(c.MTU))
	}
}

// deviceCache finds devices by address, and caches the results, because that is slow with many
// devices.
type deviceCache map[netip.Addr]*net.Interface

// to returns the device through which this machine sends to a, nil if there is none.
func (devices deviceCache) to(a netip.Addr) *net.Interface {
	// Connecting a UDP socket looks up the route, and sends nothing.
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
	if err != nil {
		return nil
	}
	defer conn.Close()
	own := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	if d, known := devices[own]; known {
		return d
	}
	devices[own] = nil
	all, _ := net.Interfaces()
	for i := range all {
		addresses, _ := all[i].Addrs()
		for _, x := range addresses {
			if n, ok := x.(*net.IPNet); ok && n.IP.Equal(own.AsSlice()) {
				devices[own] = &all[i]
				return &all[i]
			}
		}
	}
	return nil
}

// warn reports secrets that others can read.
func (f *fileWireGuard) warn(e *configfile.Errors, dir string) {
	for _, key := range []struct {
		path string
		file scalar
	}{{"wireguard.privateKeyFile", f.PrivateKeyFile}, {"wireguard.presharedKeyFile", f.PresharedKeyFile}} {
		name := keyPath(dir, string(key.file))
		if info, err := os.Stat(name); key.file != "" && err == nil && info.Mode().Perm()&0o007 != 0 {
			e.Warn(key.path, "%q is open to every user of this machine (mode %04o); chmod 600 it, or make a new key",
				name, info.Mode().Perm())
		}
	}
}
