package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
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
		{"pods", "CIDR of its pods", &a.pods, "10.0.0.0/16"},
		{"gateway", "address of its gateway, by which its nodes reach it", &a.gateway, "198.18.1.1"},
		{"nodes", "its nodes, as NAME=ADDRESS,PODCIDR and blanks between them", &a.nodes, "rome-1=198.18.1.2,10.0.1.0/24"},
		{"peer", "name of the cluster whose gateway is connected to", &a.peer, "milan"},
		{"peer-pods", "CIDR of its pods", &a.peerPods, "10.0.0.0/16"},
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
	Pods     netip.Prefix
	Underlay netip.Addr // of the gateway
	Nodes    []initNode
	Peer     *initSide
	Plan     *initPlan

	External netip.Prefix // for what is no pod
	Seen     netip.Prefix // as what the peer sees the pods
	Internal netip.Addr   // of the gateway
	Port     int          // of Geneve and VXLAN
	Metrics  string
}

type initNode struct {
	Name              string
	VNI               int
	Underlay, Address netip.Addr
	Pods              netip.Prefix
	Side              *initSide
}

// plan checks the answers and chooses the rest.
func (a *initAnswers) plan() (*initPlan, error) {
	e := new(configfile.Errors)
	p := &initPlan{Here: a.here}
	cidr := func(flag, text string) netip.Prefix {
		p := e.Prefix(flag, configfile.Scalar(text))
		if p.Addr().Is6() {
			e.Add(flag, "%s is of IPv6, which init does not write; give the IPv4 CIDR, and add the IPv6 ones to the files", p)
		}
		return p
	}
	side := func(prefix, name, pods, gatewayAddress, nodes string) *initSide {
		s := &initSide{Cluster: name, Plan: p, Port: config.DefaultGenevePort, Metrics: config.DefaultMetrics}
		s.Pods = cidr("--"+prefix+"pods", pods)
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
			s.Nodes = append(s.Nodes, initNode{
				Name: name, VNI: i + 1, Side: s,
				Underlay: e.Underlay(flag, configfile.Scalar(underlay)),
				Pods:     cidr(flag, pods),
			})
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
	if a.here { // both gateways share this machine's ports
		p.Server.Port, p.Server.Metrics = p.Server.Port+1, "127.0.0.1:8083"
	}
	if e.Err() == nil {
		p.choose(e)
	}
	return p, e.Err()
}

// choose chooses networks that overlap nothing the user named.
func (p *initPlan) choose(e *configfile.Errors) {
	taken := []ipam.Taken{{Name: "the tunnel addresses", Prefix: netip.MustParsePrefix("169.254.18.0/24")},
		{Name: "--pods", Prefix: p.Client.Pods}, {Name: "--peer-pods", Prefix: p.Server.Pods}}
	host := func(a netip.Addr) {
		taken = append(taken, ipam.Taken{Name: "the underlay", Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	for _, s := range []*initSide{p.Client, p.Server} {
		host(s.Underlay)
		for _, n := range s.Nodes {
			host(n.Underlay)
		}
	}
	if a, err := netip.ParseAddrPort(p.Endpoint); err == nil {
		host(a.Addr().Unmap())
	}
	plan, err := ipam.NewPlan(nil, taken)
	if err != nil {
		e.Add("--pods", "%v", err)
		return
	}
	chosen := new(ipam.Ledger)
	pick := func(flag, owner string, kind ipam.Kind, first string, bits int) netip.Prefix {
		want := netip.PrefixFrom(netip.MustParseAddr(first), bits).Masked()
		found, err := chosen.Network(plan, ipam.Owner{Peer: owner, Kind: kind, Real: want.String()}, want, time.Time{})
		if err != nil {
			e.Add(flag, "no private /%d is left to see it as; choose smaller CIDRs", bits)
		}
		return found
	}
	internal := pick("--pods", p.Client.Cluster, ipam.External, "10.80.0.0", 16)
	for i, s := range []*initSide{p.Client, p.Server} {
		flag := []string{"--pods", "--peer-pods"}[i]
		s.External = pick(flag, s.Cluster, ipam.External, []string{"10.70.0.0", "10.71.0.0"}[i], 16)
		s.Seen = s.Pods
		if s.Pods.Overlaps(s.Peer.Pods) {
			s.Seen = pick(flag, s.Cluster, ipam.Pod, []string{"10.62.0.0", "10.61.0.0"}[i], s.Pods.Bits())
		}
		s.Internal = internal.Addr().Next()
		address := s.Internal
		for i := range s.Nodes {
			address = address.Next()
			s.Nodes[i].Address = address
		}
	}
}

// PodOf is an address that a pod of a node may have, and as what the peer sees it.
func (n initNode) PodOf() netip.Addr {
	pod := n.Pods.Addr()
	for range 5 {
		if n.Pods.Contains(pod.Next()) {
			pod = pod.Next()
		}
	}
	return pod
}

// SeenPod is n.PodOf as the peer sees it: a remap keeps the bits behind the prefix.
func (n initNode) SeenPod() netip.Addr {
	pod, seen := n.PodOf().As4(), n.Side.Seen.Addr().As4()
	for i := range 32 {
		if i < n.Side.Seen.Bits() {
			bit := byte(0x80) >> (i % 8)
			pod[i/8] = pod[i/8]&^bit | seen[i/8]&bit
		}
	}
	return netip.AddrFrom4(pod)
}

// exists refuses to write into what is there.
func exists(dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%s exists and is not changed; choose another folder", dir)
	}
	return nil
}
