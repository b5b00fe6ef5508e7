package setup

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
)

// A Question asks for something that only the user knows. A flag or an answer gives it.
type Question struct {
	Flag    string
	Text    string // {own}, {peer}, {client} and {server} stand for names of clusters
	Example string
	Here    string                               // the answer of --here
	read    func(p *Plan, e *asked, text string) // reads the answer into the plan, and faults into e
}

// Questions about the user's own cluster, and about the other one. AskExternal need not be
// answered.
var (
	askCluster = Question{"cluster", "name of the cluster whose gateway connects to the other", "rome", "rome",
		func(p *Plan, e *asked, text string) { p.Own.readName(e, text) }}
	askPods = Question{"pods", "CIDR of {own}'s pods, or one of IPv4 and one of IPv6 with a comma between",
		"10.0.0.0/16", "10.0.0.0/16",
		func(p *Plan, e *asked, text string) { p.Own.readPods(e, text) }}
	askGateway = Question{"gateway", "address of {own}'s gateway, by which its nodes reach it", "172.18.0.9",
		"198.18.1.1",
		func(p *Plan, e *asked, text string) { p.Own.Underlay = e.Underlay(e.flag, configfile.Scalar(text)) }}
	askNodes = Question{"nodes",
		"{own}'s nodes, as NAME=ADDRESS,PODCIDR with blanks between nodes, and a PODCIDR of each family of pods",
		"{own}-1=172.18.0.2,10.0.1.0/24 {own}-2=172.18.0.3,10.0.2.0/24", "rome-1=198.18.1.2,10.0.1.0/24",
		func(p *Plan, e *asked, text string) { p.Own.readNodes(e, text) }}
	askPeer = Question{"peer", "name of the other cluster, which is connected to", "milan", "milan",
		func(p *Plan, e *asked, text string) { p.Own.Peer.readName(e, text) }}
	askPeerPods = Question{"peer-pods", "CIDR of {peer}'s pods, of the same families as {own}'s", "10.0.0.0/16",
		"10.0.0.0/16",
		func(p *Plan, e *asked, text string) { p.Own.Peer.readPods(e, text) }}
	askPeerGateway = Question{"peer-gateway", "address of {peer}'s gateway, by which its nodes reach it", "172.19.0.9",
		"198.18.2.1",
		func(p *Plan, e *asked, text string) {
			p.Own.Peer.Underlay = e.Underlay(e.flag, configfile.Scalar(text))
		}}
	askPeerNodes = Question{"peer-nodes", "{peer}'s nodes, in the same way", "{peer}-1=172.19.0.2,10.0.1.0/24",
		"milan-1=198.18.2.2,10.0.1.0/24",
		func(p *Plan, e *asked, text string) { p.Own.Peer.readNodes(e, text) }}
	AskEndpoint = Question{"endpoint",
		"address or name of {server}'s gateway, by which {client}'s reaches it, with :PORT unless 51840",
		"192.0.2.7", "127.0.0.1",
		(*Plan).readEndpoint}
	askPeerExternal = Question{Flag: "peer-external",
		Text: "with --side, the CIDR by which {peer} wants what is no pod there to be seen",
		read: func(p *Plan, e *asked, text string) { p.Own.Peer.readExternal(e, text) }}
	askPeerKey = Question{Flag: "peer-key", Text: "with --side, the public key of {peer}'s gateway",
		read: func(p *Plan, e *asked, text string) { p.Own.Peer.readKey(e, text) }}
	AskExternal = Question{Flag: "external",
		Text: "with --side, the CIDR by which {peer} sees what is no pod here; chosen without it",
		read: func(p *Plan, e *asked, text string) { p.Own.readExternal(e, text) }}
)

// All returns every question.
func All() []Question {
	return []Question{askCluster, askPods, askGateway, askNodes, askPeer, askPeerPods, askPeerGateway, askPeerNodes,
		AskEndpoint, AskExternal, askPeerExternal, askPeerKey}
}

// Questions returns the questions about the sides to be made, and those that the other side
// answers.
func (p *Plan) Questions() (own, others []Question) {
	own, others = []Question{askCluster, askPods, askGateway, askNodes}, []Question{askPeer, askPeerPods,
		askPeerExternal, askPeerKey}
	if p.Side != "" {
		own[0].Text = "name of this cluster"
	}
	switch p.Side {
	case Server:
		return append(own, AskEndpoint), others
	case Client:
		return own, append(others, AskEndpoint)
	}
	return append(own, askPeer, askPeerPods, askPeerGateway, askPeerNodes, AskEndpoint), nil
}

// Values of --side.
const (
	Client = "client"
	Server = "server"
)

// asked collects the faults of the answer to one question.
type asked struct {
	configfile.Errors
	flag string // with its dashes
}

func (e *asked) add(format string, args ...any) { e.Add(e.flag, format, args...) }

// Answer checks an answer and puts it into the plan. The error names the flag of the question.
func (p *Plan) Answer(q Question, text string) error {
	e := &asked{flag: "--" + q.Flag}
	if q.read(p, e, text); e.Err() == nil {
		p.answers[q.Flag] = text
	}
	return e.Err()
}

// Answers returns the answers so far: a flag and its value in each line.
func (p *Plan) Answers() string {
	var b strings.Builder
	if p.Side != "" {
		fmt.Fprintf(&b, "--side %s\n", p.Side)
	}
	own, others := p.Questions()
	for _, q := range slices.Concat(own, []Question{AskExternal}, others) {
		if text := p.answers[q.Flag]; text != "" {
			fmt.Fprintf(&b, "--%s %s\n", q.Flag, text)
		}
	}
	return b.String()
}

// Say puts the known names of clusters into the text of a question.
func (p *Plan) Say(text string) string {
	name := func(s *cluster, unknown string) string {
		if s.Cluster != "" {
			return s.Cluster
		}
		return unknown
	}
	return strings.NewReplacer("{own}", name(p.Own, "this cluster"), "{peer}", name(p.Own.Peer, "the peer"),
		"{client}", name(p.Client, "the peer"), "{server}", name(p.Server, "the peer")).Replace(text)
}

func (s *cluster) readName(e *asked, text string) {
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

func sameFamily(p netip.Prefix, f family) bool { return p.Addr().Is4() == f.Pods.Addr().Is4() }

func (s *cluster) readPods(e *asked, text string) {
	s.Families = nil
	all := e.cidrs(text)
	if peer := s.Peer.Families; e.Err() == nil && len(peer) > 0 && !slices.EqualFunc(all, peer, sameFamily) {
		e.add("%q has other families than %s's pods; nothing translates between them, give both clusters the same",
			text, s.Peer.Cluster)
	}
	for _, pods := range all {
		s.Families = append(s.Families, family{Pods: pods})
	}
}

func (s *cluster) readExternal(e *asked, text string) {
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

func (s *cluster) readKey(e *asked, text string) {
	key, err := wgkey.Parse(text)
	switch {
	case err != nil:
		e.add("%v", err)
	case key == s.Peer.Key:
		e.add("it is the key of this side; give the line of the other one")
	}
	s.Key = key
}

func (s *cluster) readNodes(e *asked, text string) {
	s.Nodes = nil
	for i, text := range strings.Fields(text) {
		name, rest, _ := strings.Cut(text, "=")
		underlay, pods, ok := strings.Cut(rest, ",")
		if !ok {
			e.add("%q is not NAME=ADDRESS,PODCIDR such as %s-1=172.18.0.2,10.0.1.0/24", text, s.Cluster)
			continue
		}
		e.Name(e.flag, name, configfile.MaxDomain)
		n := nodeSpec{Name: name, VNI: i + 1, Side: s, Underlay: e.Underlay(e.flag, configfile.Scalar(underlay)),
			Pods: e.cidrs(pods)}
		if e.Err() == nil {
			n.check(e, text)
		}
		s.Nodes = append(s.Nodes, n)
	}
}

// check reports contradictions between a node and its cluster.
func (n *nodeSpec) check(e *asked, text string) {
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

func (p *Plan) readEndpoint(e *asked, text string) {
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
