package setup

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/ipam"
)

// A Plan has everything that goes into the files.
type Plan struct {
	Client, Server *cluster
	Own            *cluster // the side to be made if it is only one, else the client
	Side           string   // value of --side
	Endpoint       string
	EndpointPort   string
	Here           bool
	Dir            string

	answers map[string]string // by flag
}

// A cluster is one side of a peering.
type cluster struct {
	Cluster  string
	Underlay netip.Addr // of the gateway
	Families []family
	Nodes    []nodeSpec
	Key      wgkey.Key // public
	Peer     *cluster
	Plan     *Plan

	Port      int // of Geneve and VXLAN
	Metrics   string
	Interface string // of nodes; "": the default
	There     *there
}

// family is the addresses of one family inside a cluster; of two, IPv4 comes first.
type family struct {
	Pods         netip.Prefix
	External     netip.Prefix // for hosts that are not pods
	Seen         netip.Prefix // how the peer sees Pods
	ExternalSeen netip.Prefix // how the peer sees External
	Internal     netip.Addr   // of the gateway
}

type nodeSpec struct {
	Name     string
	VNI      int
	Underlay netip.Addr
	Pods     []netip.Prefix // of each family of the side
	Address  []netip.Addr   // likewise
	Side     *cluster
}

// New returns a plan for the files in dir without answers: of both sides if side is empty, and for
// this machine alone if here is set.
func New(dir, side string, here bool) *Plan {
	p := &Plan{Dir: dir, Side: side, Here: here, answers: make(map[string]string)}
	newSide := func() *cluster {
		return &cluster{Plan: p, Port: config.DefaultGenevePort, Metrics: config.DefaultMetrics, There: new(there)}
	}
	p.Client, p.Server = newSide(), newSide()
	p.Client.Peer, p.Server.Peer, p.Own = p.Server, p.Client, p.Client
	if side == Server {
		p.Own = p.Server
	}
	if here { // both gateways share this machine's ports
		p.Server.Port, p.Server.Metrics = p.Server.Port+1, "127.0.0.1:8083"
	}
	return p
}

// made returns the sides whose files are written.
func (p *Plan) made() []*cluster {
	if p.Side != "" {
		return []*cluster{p.Own}
	}
	return []*cluster{p.Client, p.Server}
}

// Where choose looks first, for the client and for the server. IPv6 choices are unique local
// addresses.
var (
	firstInternal = [2]string{"10.80.0.0/16", "fd80::/64"} // IPv4, IPv6
	firstExternal = [2][2]string{{"10.70.0.0/16", "10.71.0.0/16"}, {"fd00:70::/48", "fd00:71::/48"}}
	firstSeen     = [2][2]string{{"10.62.0.0", "10.61.0.0"}, {"fd00:62::", "fd00:61::"}} // as long as the pods' CIDRs
)

// place returns the indexes of a family and a side in these tables.
func (s *cluster) place(k int) (family, side int) {
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
func (c *chooser) pick(owner *cluster, want netip.Prefix) netip.Prefix {
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
		flag := askPods.Flag
		if owner != owner.Plan.Own {
			flag = askPeerPods.Flag
		}
		c.e.Add("--"+flag, "no private /%d is free to remap it to; choose smaller CIDRs", want.Bits())
		return want
	}
	return c.take(found)
}

// unlessTaken takes p if it overlaps nothing, otherwise a network of the same length, preferably at
// want.
func (c *chooser) unlessTaken(owner *cluster, p netip.Prefix, want netip.Addr) netip.Prefix {
	if slices.ContainsFunc(c.taken, p.Overlaps) {
		return c.pick(owner, netip.PrefixFrom(want, p.Bits()).Masked())
	}
	return c.take(p)
}

// hosts returns the addresses of all named machines.
func (s *cluster) hosts() (all []netip.Prefix) {
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
func (s *cluster) number(k int, internal netip.Prefix) {
	address := internal.Addr().Next()
	s.Families[k].Internal = address
	for i := range s.Nodes {
		address = address.Next()
		s.Nodes[i].Address = append(s.Nodes[i].Address, address)
	}
}

// choose chooses everything that the user was not asked for.
func (p *Plan) choose() error {
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
		internal := c.pick(p.Client, netip.MustParsePrefix(firstInternal[family]))
		for i, s := range p.made() {
			f := &s.Families[k]
			f.External = c.pick(s, netip.MustParsePrefix(firstExternal[family][i]))
			f.Seen, f.ExternalSeen = f.Pods, f.External
			if f.Pods.Overlaps(s.Peer.Families[k].Pods) || s.Peer.There.overlaps(f.Pods) {
				f.Seen = c.pick(s, netip.PrefixFrom(netip.MustParseAddr(firstSeen[family][i]), f.Pods.Bits()).Masked())
			}
			s.number(k, internal)
		}
	}
	return c.e.Err()
}

// chooseOwn chooses the values of this side that the other side has to know.
func (p *Plan) chooseOwn() error {
	var taken []netip.Prefix
	var chosen []string
	for _, f := range p.Own.Families {
		taken = append(taken, f.Pods)
	}
	c := newChooser(slices.Concat(taken, p.Own.hosts(), p.Own.There.taken)...)
	for k := range p.Own.Families {
		family, side := p.Own.place(k)
		if f := &p.Own.Families[k]; !f.External.IsValid() {
			f.External = c.pick(p.Own, netip.MustParsePrefix(firstExternal[family][side]))
		}
		chosen = append(chosen, p.Own.Families[k].External.String())
	}
	p.answers[AskExternal.Flag] = strings.Join(chosen, ",")
	return c.e.Err()
}

// chooseSeen chooses the rest of one side, including the CIDRs under which it sees the other.
func (p *Plan) chooseSeen() error {
	taken := append(p.Own.hosts(), p.Own.There.taken...)
	for _, f := range p.Own.Families {
		taken = append(taken, f.Pods, f.External)
	}
	c, peer := newChooser(taken...), p.Own.Peer
	for k := range p.Own.Families {
		family, side := peer.place(k)
		f := &peer.Families[k]
		p.Own.number(k, c.pick(p.Own, netip.MustParsePrefix(firstInternal[family])))
		f.Seen = c.unlessTaken(peer, f.Pods, netip.MustParseAddr(firstSeen[family][side]))
		f.ExternalSeen = c.unlessTaken(peer, f.External, netip.MustParsePrefix(firstExternal[family][side]).Addr())
	}
	return c.e.Err()
}

// PodOf returns addresses that a pod of a node may have, one of each family.
func (n *nodeSpec) PodOf() (pods []netip.Addr) {
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
func (n *nodeSpec) SeenPod() (seen []netip.Addr) {
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
