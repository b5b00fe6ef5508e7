package setup

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"culvert/gateway/config"
	"culvert/gateway/node"
)

// there is what a cluster already uses for other peers, according to the folders beside DIR.
type there struct {
	folders    []string
	taken      []netip.Prefix    // addresses of tunnels, external CIDRs, and CIDRs under which peers are seen
	ports      map[uint16]string // UDP ports, with the file that uses each
	metrics    map[string]bool
	interfaces map[string]bool
}

// readThere reads the folders beside dir that are about a cluster.
func readThere(dir, cluster string) (*there, error) {
	t := &there{ports: map[uint16]string{}, metrics: map[string]bool{}, interfaces: map[string]bool{}}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	parent := filepath.Dir(dir)
	folders, err := os.ReadDir(parent)
	if os.IsNotExist(err) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		folder := filepath.Join(parent, f.Name())
		file := filepath.Join(folder, cluster, "gateway.yaml")
		if _, err := os.Stat(file); err != nil || folder == dir {
			continue
		}
		if err := t.read(file); err != nil {
			return nil, fmt.Errorf(
				"%s is another peering of %s, and cannot be read: %w; fix it, or choose a folder elsewhere", file,
				cluster, err)
		}
		t.folders = append(t.folders, f.Name())
	}
	return t, nil
}

// read reads a gateway's file, and those of its nodes.
func (t *there) read(file string) error {
	c, err := config.Load(file)
	if err != nil {
		return err
	}
	host := func(a netip.Addr) { t.taken = append(t.taken, netip.PrefixFrom(a, a.BitLen())) }
	t.taken = append(t.taken, c.Local.ExternalCIDRs...)
	for _, r := range c.Remote {
		t.taken = append(t.taken, r.Remapped)
	}
	for a := range c.Geneve.GatewayAddress.All() {
		host(a)
	}
	for _, n := range c.Geneve.Nodes {
		for a := range n.Address.All() {
			host(a)
		}
	}
	t.ports[c.Geneve.ListenPort], t.ports[c.WireGuard.ListenPort] = file, file
	t.metrics[c.Metrics] = true
	nodes, err := filepath.Glob(filepath.Join(filepath.Dir(file), "nodes", "*.yaml"))
	if err != nil {
		return err
	}
	for _, name := range nodes {
		n, err := node.LoadConfig(name)
		if err != nil {
			return err
		}
		t.ports[n.Port] = name
		t.interfaces[n.Interface] = true
	}
	return nil
}

// overlaps reports whether the cluster already uses a part of p.
func (t *there) overlaps(p netip.Prefix) bool { return slices.ContainsFunc(t.taken, p.Overlaps) }

// port returns the first port at or above from that no other peering of the cluster uses.
func (t *there) port(from int) int {
	for t.ports[uint16(from)] != "" {
		from++
	}
	return from
}

// beside gives a side ports, an interface and an address for metrics that its other peerings do not
// use.
func (s *cluster) beside(t *there) {
	s.There, s.Port = t, t.port(s.Port)
	for t.metrics[s.Metrics] {
		at := netip.MustParseAddrPort(s.Metrics) // a default, or the one after it
		s.Metrics = netip.AddrPortFrom(at.Addr(), at.Port()+1).String()
	}
	stem := strings.TrimRight(node.DefaultInterface, "0")
	for i := 0; t.interfaces[stem+strconv.Itoa(i)]; i++ {
		s.Interface = stem + strconv.Itoa(i+1)
	}
}

// besideText returns a text about the side's other peerings; "" if it has none.
func (s *cluster) besideText() string {
	if len(s.There.folders) == 0 {
		return ""
	}
	return fmt.Sprintf("%s has other peerings here (%s). This one has ports, addresses and interfaces of its own.\n\n",
		s.Cluster, strings.Join(s.There.folders, ", "))
}

// freeEndpoint gives the server's gateway a port that no other peering of its cluster uses. A port
// that the user has chosen stays.
func (p *Plan) freeEndpoint(e *asked, chosen bool) {
	host, port, err := net.SplitHostPort(p.Endpoint)
	n, notNumber := strconv.ParseUint(port, 10, 16)
	if err != nil || notNumber != nil {
		return // said already
	}
	t := p.Server.There
	if file := t.ports[uint16(n)]; file != "" && chosen {
		e.add("port %d is of %s already; choose another, such as %d", n, file, t.port(int(n)))
		return
	}
	p.EndpointPort = strconv.Itoa(t.port(int(n)))
	p.Endpoint = net.JoinHostPort(host, p.EndpointPort)
}
