package main

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/ipam"
)

// initPlan has everything that goes into the files.
type initPlan struct {
	Client, Server *initSide
	Own            *initSide // the side to be made if it is only one, else the client
	Side           string    // value of --side
	Endpoint       string
	EndpointPort   string
	Here           bool
	Dir            string

	answers map[string]string // by flag
}

// initSide is one cluster.
type initSide struct {
	Cluster  string
	Underlay netip.Addr // of the gateway
	Families []initFamily
	Nodes    []initNode
	Key      wgkey.Key // public
	Peer     *initSide
	Plan     *initPlan

	Port      int // of Geneve and VXLAN
	Metrics   string
	Interface string // of nodes; "": the default
	There     *initThere
}

// initFamily is the addresses of one family inside a cluster; of two, IPv4 comes first.
type initFamily struct {
	Pods         netip.Prefix
	External     netip.Prefix // for hosts that are not pods
	Seen         netip.Prefix // how the peer sees Pods
	ExternalSeen netip.Prefix // how the peer sees External
	Internal     netip.Addr   // of the gateway
}

type initNode struct {
	Name     string
	VNI      int
	Underlay netip.Addr
	Pods     []netip.Prefix // of each family of the side
	Address  []netip.Addr   // likewise
	Side     *initSide
}

func newInitPlan(dir, side string, here bool) *initPlan {
	p := &initPlan{Dir: dir, Side: side, Here: here, answers: make(map[string]string)}
	newSide := func() *initSide {
		return &initSide{Plan: p, Port: config.DefaultGenevePort, Metrics: config.DefaultMetrics, There: new(initThere)}
	}
	p.Client, p.Server = newSide(), newSide()
	p.Client.Peer, p.Server.Peer, p.Own = p.Server, p.Client, p.Client
	if side == sideServer {
		p.Own = p.Server
	}
	if here { // both gateways share this machine's ports
		p.Server.Port, p.Server.Metrics = p.Server.Port+1, "127.0.0.1:8083"
	}
	return p
}

// made returns the sides whose files are written.
func (p *initPlan) made() []*initSide {
	if p.Side != "" {
		return []*initSide{p.Own}
	}
	return []*initSide{p.Client, p.Server}
}

func (s *initSide) readName(e *asked, text string) {
	if e.Name(e.flag, text, configfile.MaxLabel); text != "" && text == s.Peer.Cluster {
		e.add("%q is the other cluster's name too; the clusters need two names", text)
	}
	s.Cluster = text
	if s.Plan.Here || e.Err() != nil || !slices.Contains(s.Plan.made(), s) {
		return
	}
	t, err := readThere(s.Plan.Dir, text)
	if err != nil {
		e.add("%v", err)
		return
	}
	s.beside(t)
}

// cidrs reads one CIDR of each family, IPv4 first.
func (e *asked) cidrs(text string) (all []netip.Prefix) {
	for one := range strings.SplitSeq(text, ",") {
		if p := e.Prefix(e.flag, configfile.Scalar(one)); p.IsValid() {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	if len(all) > 2 || len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4() {
		e.add("%q has more than one CIDR of a family; give one of each, and add the others to the files", text)
	}
	return all
}

func sameFamily(p netip.Prefix, f initFamily) bool { return p.Addr().Is4() == f.Pods.Addr().Is4() }

func (s *initSide) readPods(e *asked, text string) {
	s.Families = nil
	all := e.cidrs(text)
	if peer := s.Peer.Families; e.Err() == nil && len(peer) > 0 && !slices.EqualFunc(all, peer, sameFamily) {
		e.add("%q has other families than %s's pods; nothing translates between them, give both clusters the same",
			text, s.Peer.Cluster)
	}
	for _, pods := range all {
		s.Families = append(s.Families, initFamily{Pods: pods})
	}
}

func (s *initSide) readExternal(e *asked, text string) {
	all := e.cidrs(text)
	if e.Err() == nil && !slices.EqualFunc(all, s.Families, sameFamily) {
		e.add("%q has other families than %s's pods; give a CIDR of each", text, s.Cluster)
	}
	for k := range s.Families {
		if e.Err() == nil {
			s.Families[k].External = all[k]
		}
	}
}

func (s *initSide) readKey(e *asked, text string) {
	key, err := wgkey.Parse(text)
	switch {
	case err != nil:
		e.add("%v", err)
	case key == s.Peer.Key:
		e.add("it is the key of this side; give the line of the other one")
	}
	s.Key = key
}

func (s *initSide) readNodes(e *asked, text string) {
	s.Nodes = nil
	for i, text := range strings.Fields(text) {
		name, rest, _ := strings.Cut(text, "=")
		underlay, pods, ok := strings.Cut(rest, ",")
		if !ok {
			e.add("%q is not NAME=ADDRESS,PODCIDR such as %s-1=172.18.0.2,10.0.1.0/24", text, s.Cluster)
			continue
		}
		e.Name(e.flag, name, configfile.MaxDomain)
		n := initNode{Name: name, VNI: i + 1, Side: s, Underlay: e.Underlay(e.flag, configfile.Scalar(underlay)),
			Pods: e.cidrs(pods)}
		if e.Err() == nil {
			n.check(e, text)
		}
		s.Nodes = append(s.Nodes, n)
	}
}

// check reports contradictions between a node and its cluster.
func (n *initNode) check(e *asked, text string) {
	s := n.Side
	if s.Underlay.IsValid() && n.Underlay.Is4() != s.Underlay.Is4() {
		e.add("%q: the address is of another family than %s's gateway, %s", text, s.Cluster, s.Underlay)
	}
	if n.Underlay == s.Underlay {
		e.add("%q: %s is the address of %s's gateway", text, n.Underlay, s.Cluster)
	}
	for _, other := range s.Nodes {
		if n.Name == other.Name || n.Underlay == other.Underlay {
			e.add("%q has the name or the address of %s; each node needs its own", text, other.Name)
		}
	}
	if len(s.Families) == 0 {
		return // already reported
	}
	if !slices.EqualFunc(n.Pods, s.Families, sameFamily) {
		e.add("%q has other families than %s's pods; give the node a CIDR of each", text, s.Cluster)
		return
	}
	for k, p := range n.Pods {
		if all := s.Families[k].Pods; p.Bits() < all.Bits() || !all.Contains(p.Addr()) {
			e.add("%q: %s is outside %s's pods, %s", text, p, s.Cluster, all)
		}
	}
}

func (p *initPlan) readEndpoint(e *asked, text string) {
	p.Endpoint = text
	if _, _, err := net.SplitHostPort(text); err != nil {
		p.Endpoint = net.JoinHostPort(strings.Trim(text, "[]"), fmt.Sprint(config.DefaultWireGuardPort))
	}
	host, port, err := net.SplitHostPort(p.Endpoint)
	if _, notAddress := netip.ParseAddr(host); err != nil || notAddress != nil && !configfile.IsHostName(host) {
		e.add("%q is neither an address nor a host name", text)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		e.add("%q is not a port", port)
	}
	p.EndpointPort = port
	p.freeEndpoint(e, p.Endpoint == text)
}

// Where choose looks first, for the client and for the server. IPv6 choices are unique local
// addresses.
var (
	initInternal  = [2]string{"10.80.0.0/16", "fd80::/64"} // IPv4, IPv6
	initExternals = [2][2]string{{"10.70.0.0/16", "10.71.0.0/16"}, {"fd00:70::/48", "fd00:71::/48"}}
	initSeen      = [2][2]string{{"10.62.0.0", "10.61.0.0"}, {"fd00:62::", "fd00:61::"}} // as long as the pods' CIDRs
)

// place returns the indexes of a family and a side in these tables.
func (s *initSide) place(k int) (family, side int) {
	if s.Families[k].Pods.Addr().Is6() {
		family = 1
	}
	if s == s.Plan.Server {
		side = 1
	}
	return family, side
}

// chooser chooses networks that overlap nothing taken.
type chooser struct {
	taken []netip.Prefix
	e     configfile.Errors
}

func newChooser(taken ...netip.Prefix) *chooser {
	return &chooser{taken: append(taken, netip.MustParsePrefix("169.254.18.0/24"))} // the tunnel's own
}

// take returns p, which nothing else may overlap from now on.
func (c *chooser) take(p netip.Prefix) netip.Prefix {
	c.taken = append(c.taken, p)
	return p
}

// pick takes want, or another network of the same length.
func (c *chooser) pick(owner *initSide, want netip.Prefix) netip.Prefix {
	var taken []ipam.Taken
	for _, p := range c.taken {
		taken = append(taken, ipam.Taken{Prefix: p})
	}
	plan, err := ipam.NewPlan(nil, taken)
	var found netip.Prefix
	if err == nil {
		found, err = new(ipam.Ledger).Network(plan, ipam.Owner{Peer: owner.Cluster, Kind: ipam.Pod,
			Real: want.String()}, want, time.Time{})
	}
	if err != nil {
		flag := askPods.flag
		if owner != owner.Plan.Own {
			flag = askPeerPods.flag
		}
		c.e.Add("--"+flag, "no private /%d is free to remap it to; choose smaller CIDRs", want.Bits())
		return want
	}
	return c.take(found)
}

// unlessTaken takes p if it overlaps nothing, otherwise a network of the same length, preferably at
// want.
func (c *chooser) unlessTaken(owner *initSide, p netip.Prefix, want netip.Addr) netip.Prefix {
	if slices.ContainsFunc(c.taken, p.Overlaps) {
		return c.pick(owner, netip.PrefixFrom(want, p.Bits()).Masked())
	}
	return c.take(p)
}

// hosts returns the addresses of all named machines.
func (s *initSide) hosts() (all []netip.Prefix) {
	host := func(a netip.Addr) {
		if a.IsValid() {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	host(s.Underlay)
	for _, n := range s.Nodes {
		host(n.Underlay)
	}
	if a, err := netip.ParseAddrPort(s.Plan.Endpoint); err == nil {
		host(a.Addr().Unmap().WithZone(""))
	}
	return all
}

// number gives the gateway and the nodes their addresses in the tunnels' network of a family.
func (s *initSide) number(k int, internal netip.Prefix) {
	address := internal.Addr().Next()
	s.Families[k].Internal = address
	for i := range s.Nodes {
		address = address.Next()
		s.Nodes[i].Address = append(s.Nodes[i].Address, address)
	}
}

// choose chooses everything that the user was not asked for.
func (p *initPlan) choose() error {
	if p.Side != "" {
		return p.chooseSeen()
	}
	taken := append(p.Client.hosts(), p.Server.hosts()...)
	for k := range p.Client.Families {
		taken = append(taken, p.Client.Families[k].Pods, p.Server.Families[k].Pods)
	}
	taken = append(append(taken, p.Client.There.taken...), p.Server.There.taken...)
	c := newChooser(taken...)
	for k := range p.Client.Families {
		family, _ := p.Client.place(k)
		internal := c.pick(p.Client, netip.MustParsePrefix(initInternal[family]))
		for i, s := range p.made() {
			f := &s.Families[k]
			f.External = c.pick(s, netip.MustParsePrefix(initExternals[family][i]))
			f.Seen, f.ExternalSeen = f.Pods, f.External
			if f.Pods.Overlaps(s.Peer.Families[k].Pods) || s.Peer.There.overlaps(f.Pods) {
				f.Seen = c.pick(s, netip.PrefixFrom(netip.MustParseAddr(initSeen[family][i]), f.Pods.Bits()).Masked())
			}
			s.number(k, internal)
		}
	}
	return c.e.Err()
}

// chooseOwn chooses the values of this side that the other side has to know.
func (p *initPlan) chooseOwn() error {
	var taken []netip.Prefix
	var externals []string
	for _, f := range p.Own.Families {
		taken = append(taken, f.Pods)
	}
	c := newChooser(slices.Concat(taken, p.Own.hosts(), p.Own.There.taken)...)
	for k := range p.Own.Families {
		family, side := p.Own.place(k)
		if f := &p.Own.Families[k]; !f.External.IsValid() {
			f.External = c.pick(p.Own, netip.MustParsePrefix(initExternals[family][side]))
		}
		externals = append(externals, p.Own.Families[k].External.String())
	}
	p.answers[askExternal.flag] = strings.Join(externals, ",")
	return c.e.Err()
}

// chooseSeen chooses the rest of one side, including the CIDRs under which it sees the other.
func (p *initPlan) chooseSeen() error {
	taken := append(p.Own.hosts(), p.Own.There.taken...)
	for _, f := range p.Own.Families {
		taken = append(taken, f.Pods, f.External)
	}
	c, peer := newChooser(taken...), p.Own.Peer
	for k := range p.Own.Families {
		family, side := peer.place(k)
		f := &peer.Families[k]
		p.Own.number(k, c.pick(p.Own, netip.MustParsePrefix(initInternal[family])))
		f.Seen = c.unlessTaken(peer, f.Pods, netip.MustParseAddr(initSeen[family][side]))
		f.ExternalSeen = c.unlessTaken(peer, f.External, netip.MustParsePrefix(initExternals[family][side]).Addr())
	}
	return c.e.Err()
}

// PodOf returns addresses that a pod of a node may have, one of each family.
func (n *initNode) PodOf() (pods []netip.Addr) {
	for _, p := range n.Pods {
		pod := p.Addr()
		for range 5 {
			if p.Contains(pod.Next()) {
				pod = pod.Next()
			}
		}
		pods = append(pods, pod)
	}
	return pods
}

// SeenPod returns n.PodOf as the peer sees it: a remap keeps the bits after the prefix.
func (n *initNode) SeenPod() (seen []netip.Addr) {
	for k, pod := range n.PodOf() {
		bits, prefix := pod.AsSlice(), n.Side.Families[k].Seen
		for i, b := range prefix.Addr().AsSlice() {
			mask := ^byte(0xff >> min(max(prefix.Bits()-8*i, 0), 8))
			bits[i] = bits[i]&^mask | b&mask
		}
		a, _ := netip.AddrFromSlice(bits)
		seen = append(seen, a)
	}
	return seen
}
