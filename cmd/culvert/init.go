package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/ipam"
)

// initAnswers are what only the user knows, as flags or answers.
type initAnswers struct {
	cluster, pods, gateway, nodes          string
	peer, peerPods, peerGateway, peerNodes string
	endpoint                               string
	here                                   bool
}

// question is one of them.
type question struct {
	flag, text string
	answer     *string
	here       string // the answer of --here
}

func (a *initAnswers) questions() []question {
	return []question{
		{"cluster", "name of the cluster whose gateway connects to the other", &a.cluster, "rome"},
		{"pods", "CIDR of its pods, or one of IPv4 and one of IPv6 with a comma between them", &a.pods, "10.0.0.0/16"},
		{"gateway", "address of its gateway, by which its nodes reach it", &a.gateway, "198.18.1.1"},
		{"nodes", "its nodes, as NAME=ADDRESS,PODCIDR, with as many CIDRs as its pods have, and blanks between them", &a.nodes, "rome-1=198.18.1.2,10.0.1.0/24"},
		{"peer", "name of the cluster whose gateway is connected to", &a.peer, "milan"},
		{"peer-pods", "CIDR of its pods, of the same families", &a.peerPods, "10.0.0.0/16"},
		{"peer-gateway", "address of its gateway, by which its nodes reach it", &a.peerGateway, "198.18.2.1"},
		{"peer-nodes", "its nodes, in the same way", &a.peerNodes, "milan-1=198.18.2.2,10.0.1.0/24"},
		{"endpoint", "address or name of its gateway, by which the first gateway reaches it, with :PORT unless 51840", &a.endpoint, "127.0.0.1"},
	}
}

func newInitCommand() *cobra.Command {
	var a initAnswers
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Write the files of two clusters: keys, gateways, nodes, and what to start",
		Long: "Write the files of two clusters into DIR: keys, both gateways' and all nodes' configurations, with\n" +
			"the ports to open and the commands to start in DIR/START.txt. What no flag says is asked for.\n" +
			"Remaps, external and internal addresses are chosen. An existing DIR is never changed.",
		Example: "  culvert init rome-milan --here\n" +
			"  culvert init rome-milan --cluster rome --pods 10.0.0.0/16 --gateway 172.18.0.9 --nodes rome-1=172.18.0.2,10.0.1.0/24 \\\n" +
			"    --peer milan --peer-pods 10.0.0.0/16 --peer-gateway 172.19.0.9 --peer-nodes milan-1=172.19.0.2,10.0.1.0/24 --endpoint 192.0.2.7",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.ask(cmd); err != nil {
				return err
			}
			p, err := a.plan()
			if err != nil {
				return err
			}
			return p.write(args[0], cmd.OutOrStdout())
		},
	}
	for _, q := range a.questions() {
		cmd.Flags().StringVar(q.answer, q.flag, "", q.text)
	}
	cmd.Flags().BoolVar(&a.here, "here", false, "two clusters on this machine: nodes and pods in two network namespaces, gateways beside them")
	cmd.Flags().SortFlags = false
	return cmd
}

// ask asks for what no flag says.
func (a *initAnswers) ask(cmd *cobra.Command) error {
	in := bufio.NewReader(cmd.InOrStdin())
	var errs []error
	for _, q := range a.questions() {
		switch {
		case a.here && cmd.Flags().Changed(q.flag):
			errs = append(errs, fmt.Errorf("--%s: --here answers it; leave one of them out", q.flag))
		case a.here:
			*q.answer = q.here
		case !cmd.Flags().Changed(q.flag):
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: ", q.text)
			line, err := in.ReadString('\n')
			if *q.answer = strings.TrimSpace(line); *q.answer == "" {
				errs = append(errs, fmt.Errorf("--%s: missing; %s", q.flag, q.text))
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr())
			}
		}
	}
	return errors.Join(errs...)
}

// initPlan is everything that the files say.
type initPlan struct {
	Client, Server *initSide
	Endpoint       string
	EndpointPort   string
	Here           bool
}

// initSide is one cluster.
type initSide struct {
	Cluster  string
	Underlay netip.Addr // of the gateway
	Families []initFamily
	Nodes    []initNode
	Peer     *initSide
	Plan     *initPlan

	Port    int // of Geneve and VXLAN
	Metrics string
}

// initFamily is the addresses of one family inside a cluster; of two, IPv4 comes first.
type initFamily struct {
	Pods     netip.Prefix
	External netip.Prefix // for what is no pod
	Seen     netip.Prefix // as what the peer sees the pods
	Internal netip.Addr   // of the gateway
}

type initNode struct {
	Name     string
	VNI      int
	Underlay netip.Addr
	Pods     []netip.Prefix // of each family of the side
	Address  []netip.Addr   // likewise
	Side     *initSide
}

// plan checks the answers and chooses the rest.
func (a *initAnswers) plan() (*initPlan, error) {
	e := new(configfile.Errors)
	p := &initPlan{Here: a.here}
	// cidrs reads one CIDR of each family, IPv4 first.
	cidrs := func(flag, text string) (all []netip.Prefix) {
		for _, one := range strings.Split(text, ",") {
			if p := e.Prefix(flag, configfile.Scalar(one)); p.IsValid() {
				all = append(all, p)
			}
		}
		slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
		if len(all) > 2 || len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4() {
			e.Add(flag, "%q has more than one CIDR of a family; give one of each, and add the others to the files", text)
		}
		return all
	}
	side := func(prefix, name, pods, gatewayAddress, nodes string) *initSide {
		s := &initSide{Cluster: name, Plan: p, Port: config.DefaultGenevePort, Metrics: config.DefaultMetrics}
		for _, pods := range cidrs("--"+prefix+"pods", pods) {
			s.Families = append(s.Families, initFamily{Pods: pods})
		}
		s.Underlay = e.Underlay("--"+prefix+"gateway", configfile.Scalar(gatewayAddress))
		for i, text := range strings.Fields(nodes) {
			flag := "--" + prefix + "nodes"
			name, rest, _ := strings.Cut(text, "=")
			underlay, pods, ok := strings.Cut(rest, ",")
			if !ok {
				e.Add(flag, "%q is not NAME=ADDRESS,PODCIDR such as %s-1=172.18.0.2,10.0.1.0/24", text, s.Cluster)
				continue
			}
			e.Name(flag, name, configfile.MaxDomain)
			n := initNode{Name: name, VNI: i + 1, Side: s, Underlay: e.Underlay(flag, configfile.Scalar(underlay)), Pods: cidrs(flag, pods)}
			if e.Err() == nil && !slices.EqualFunc(n.Pods, s.Families, sameFamily) {
				e.Add(flag, "%q has other families than --%spods; give the node a CIDR of each", text, prefix)
			}
			s.Nodes = append(s.Nodes, n)
		}
		return s
	}
	p.Client = side("", a.cluster, a.pods, a.gateway, a.nodes)
	p.Server = side("peer-", a.peer, a.peerPods, a.peerGateway, a.peerNodes)
	p.Client.Peer, p.Server.Peer = p.Server, p.Client
	e.Name("--cluster", a.cluster, configfile.MaxLabel)
	e.Name("--peer", a.peer, configfile.MaxLabel)
	if a.cluster == a.peer {
		e.Add("--peer", "%q is --cluster too; the clusters need two names", a.peer)
	}
	p.Endpoint = a.endpoint
	if _, _, err := net.SplitHostPort(a.endpoint); err != nil {
		p.Endpoint = net.JoinHostPort(strings.Trim(a.endpoint, "[]"), fmt.Sprint(config.DefaultWireGuardPort))
	}
	host, port, err := net.SplitHostPort(p.Endpoint)
	if _, notAddress := netip.ParseAddr(host); err != nil || notAddress != nil && !configfile.IsHostName(host) {
		e.Add("--endpoint", "%q is neither an address nor a host name", a.endpoint)
	}
	p.EndpointPort = port
	if e.Err() == nil && !slices.EqualFunc(p.Client.Families, p.Server.Families, func(a, b initFamily) bool { return sameFamily(a.Pods, b) }) {
		e.Add("--peer-pods", "%q has other families than --pods %q; nothing translates between them, give both clusters the same", a.peerPods, a.pods)
	}
	if a.here { // both gateways share this machine's ports
		p.Server.Port, p.Server.Metrics = p.Server.Port+1, "127.0.0.1:8083"
	}
	if e.Err() == nil {
		p.choose(e)
	}
	return p, e.Err()
}

func sameFamily(pods netip.Prefix, f initFamily) bool {
	return pods.Addr().Is4() == f.Pods.Addr().Is4()
}

// Where choose looks first, for the client and for the server. What is chosen of IPv6 are unique local addresses.
var (
	initPools     = []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
	initInternal  = [2]string{"10.80.0.0/16", "fd80::/64"} // IPv4, IPv6
	initExternals = [2][2]string{{"10.70.0.0/16", "10.71.0.0/16"}, {"fd00:70::/48", "fd00:71::/48"}}
	initSeen      = [2][2]string{{"10.62.0.0", "10.61.0.0"}, {"fd00:62::", "fd00:61::"}} // as long as the pods' CIDRs
)

// choose chooses networks that overlap nothing the user named.
func (p *initPlan) choose(e *configfile.Errors) {
	taken := []ipam.Taken{{Name: "the tunnel addresses", Prefix: netip.MustParsePrefix("169.254.18.0/24")}}
	host := func(a netip.Addr) {
		taken = append(taken, ipam.Taken{Name: "the underlay", Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	for i, s := range []*initSide{p.Client, p.Server} {
		for _, f := range s.Families {
			taken = append(taken, ipam.Taken{Name: []string{"--pods", "--peer-pods"}[i], Prefix: f.Pods})
		}
		host(s.Underlay)
		for _, n := range s.Nodes {
			host(n.Underlay)
		}
	}
	if a, err := netip.ParseAddrPort(p.Endpoint); err == nil {
		host(a.Addr().Unmap().WithZone(""))
	}
	plan, err := ipam.NewPlan(initPools, taken)
	if err != nil {
		e.Add("--pods", "%v", err)
		return
	}
	chosen := new(ipam.Ledger)
	pick := func(flag, owner string, kind ipam.Kind, want netip.Prefix) netip.Prefix {
		found, err := chosen.Network(plan, ipam.Owner{Peer: owner, Kind: kind, Real: want.String()}, want, time.Time{})
		if err != nil {
			e.Add(flag, "no private /%d is left to see it as; choose smaller CIDRs", want.Bits())
		}
		return found
	}
	for k, f := range p.Client.Families {
		family := 0
		if f.Pods.Addr().Is6() {
			family = 1
		}
		internal := pick("--pods", p.Client.Cluster, ipam.External, netip.MustParsePrefix(initInternal[family]))
		for i, s := range []*initSide{p.Client, p.Server} {
			flag, f := []string{"--pods", "--peer-pods"}[i], &s.Families[k]
			f.External = pick(flag, s.Cluster, ipam.External, netip.MustParsePrefix(initExternals[family][i]))
			f.Seen = f.Pods
			if f.Pods.Overlaps(s.Peer.Families[k].Pods) {
				f.Seen = pick(flag, s.Cluster, ipam.Pod, netip.PrefixFrom(netip.MustParseAddr(initSeen[family][i]), f.Pods.Bits()).Masked())
			}
			f.Internal = internal.Addr().Next()
			address := f.Internal
			for i := range s.Nodes {
				address = address.Next()
				s.Nodes[i].Address = append(s.Nodes[i].Address, address)
			}
		}
	}
}

// PodOf is the addresses that a pod of a node may have, one of each family.
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

// SeenPod is n.PodOf as the peer sees it: a remap keeps the bits behind the prefix.
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

// exists refuses to write into what is there.
func exists(dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%s exists and is not changed; choose another folder", dir)
	}
	return nil
}
