package verify

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/kube/peering"
)

// The names that manifests give to a gateway's ports, which NetworkPolicies may use.
const (
	wireguardPort = "wireguard"
	genevePort    = "geneve"
)

// Judge returns what is wrong between two clusters: first what they say themselves, then what only
// the pods have found. It marks the paths. It reports each cause once.
func Judge(a, b *Side, paths []Path) []Finding {
	j := &judge{blamed: map[string]bool{}}
	passes := map[*Side][]string{}
	for i := range paths {
		p := &paths[i]
		switch {
		case !p.shut():
			p.judge()
			j.paths = append(j.paths, *p)
		case p.Error == "":
			p.Faults = append(p.Faults, "passes, and is not exported")
			passes[p.to] = append(passes[p.to], p.name())
		default:
			p.Error = notAdmitted
		}
	}
	down, unsteady := false, false
	for _, s := range [][2]*Side{{a, b}, {b, a}} {
		j.accepted(s[0])
		down = j.gateway(s[0]) || down
		unsteady = j.displaced(s[0]) || unsteady
		j.agreed(s[0], s[1])
		j.admission(s[0], passes[s[0]])
	}
	if !down {
		j.between(a, b)
	}
	j.nodes(a)
	j.nodes(b)
	j.starting(a)
	j.starting(b)
	j.inside()
	j.answers(a, b)
	j.sources()
	j.services(a, b)
	j.names(a)
	j.names(b)
	if !unsteady { // then packets get lost, and the network is not to blame
		j.sizes(a, b)
		j.rest()
	}
	return j.all
}

type judge struct {
	all    []Finding
	paths  []Path          // without those that admission shuts
	apart  bool            // the clusters are not connected, whatever the nodes do
	blamed map[string]bool // cluster/node of nodes with a known fault
	silent map[string]bool // families in which no pod reaches one of the other cluster
}

func (j *judge) wrong(cluster, format string, args ...any) {
	j.all = append(j.all, Finding{cluster, true, fmt.Sprintf(format, args...)})
}

// says returns the text of a condition that is not True; "" = it is True, or has no text.
func (s *Side) says(kind string) string {
	if c := s.Peering.Status.Condition(kind); c != nil && c.Status != "True" {
		return cmp.Or(c.Message, c.Reason)
	}
	return ""
}

// kubectl is a command for this cluster.
func (s *Side) kubectl(format string, args ...any) string {
	context := ""
	if s.Context != "" {
		context = " --context " + s.Context
	}
	return "kubectl" + context + " " + fmt.Sprintf(format, args...)
}

func (j *judge) accepted(s *Side) {
	why := cmp.Or(s.Peering.Fault(), s.says(peering.Accepted))
	if why != "" {
		j.wrong(s.name(), "Peering %s is refused: %s", s.Peering.Metadata.Name, why)
	}
}

// gateway reports whether there is no gateway, and says why.
func (j *judge) gateway(s *Side) (down bool) {
	name := s.Peering.Metadata.Name
	pods := s.gateways(name)
	if slices.ContainsFunc(pods, func(p Pod) bool { return p.Ready }) {
		return false
	}
	j.apart = true
	of := "the gateway is down: Deployment culvert-" + name
	d := s.deployment(name)
	switch {
	case d == nil:
		j.wrong(s.name(), "%s is not there; install it: culvert kube template --peering %s", of, name)
	case d.Replicas == 0:
		j.wrong(s.name(), "%s has 0 replicas; start it: %s", of,
			s.kubectl("-n %s scale deployment culvert-%s --replicas 1", peering.GatewayNamespace, name))
	case len(pods) == 0:
		why := s.lastWarning("culvert-"+name, "Deployment", "ReplicaSet")
		j.wrong(s.name(), "%s has no pod%s; see %s", of, colon(why), s.kubectl("-n %s get events",
			peering.GatewayNamespace))
	default:
		p := pods[0]
		why := cmp.Or(p.Trouble, s.lastWarning(p.Name, "Pod"), "it is "+cmp.Or(p.Phase, "not ready"))
		if n := s.node(p.Node); n != nil && !n.Ready {
			why = "its node " + p.Node + " is not ready"
		}
		j.wrong(s.name(), "%s: pod %s is not ready%s; see %s", of, p.Name, colon(why),
			s.kubectl("-n %s describe pod %s", peering.GatewayNamespace, p.Name))
	}
	return true
}

// displaced reports whether there are gateways of which each takes the place of the other, and says
// so.
func (j *judge) displaced(s *Side) bool {
	d := s.deployment(s.Peering.Metadata.Name)
	why := s.says(peering.OneGateway)
	if d != nil && d.Replicas > 1 && !d.Elects {
		why = fmt.Sprintf("Deployment %s has %d pods, which do not elect the one that forwards: each takes the place of the other; %s", d.Name, d.Replicas, peering.ElectRemedy)
	}
	if why != "" {
		j.wrong(s.name(), "%s", why)
		j.apart = true
	}
	return why != ""
}

// starting reports pods that do not start, of gateways and nodes where others run.
func (j *judge) starting(s *Side) {
	of := func(what, namespace string, pods []Pod, runs func(*Pod) bool) {
		var all []string
		for _, p := range pods {
			if !p.Ready && !p.Ending && p.Trouble != "" && runs(&p) {
				all = append(all, fmt.Sprintf("%s on node %s: %s; see %s", p.Name, cmp.Or(p.Node, "?"), p.Trouble,
					s.kubectl("-n %s describe pod %s", namespace, p.Name)))
			}
		}
		if len(all) > 0 {
			j.wrong(s.name(), "a pod of %s does not start, and another one still does its work: %s", what, firstOf(all))
		}
	}
	name := s.Peering.Metadata.Name
	gateways := s.gateways(name)
	of("Deployment culvert-"+name, peering.GatewayNamespace, gateways, func(*Pod) bool {
		return slices.ContainsFunc(gateways, func(p Pod) bool { return p.Ready })
	})
	of("DaemonSet culvert-node", peering.NodeNamespace, s.Agents, func(p *Pod) bool {
		a := s.agent(p.Node)
		return a != nil && a.Ready
	})
}

func colon(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// agreed compares what a Peering says about the other cluster with what that cluster says about
// itself.
func (j *judge) agreed(s, o *Side) {
	p, q := s.Peering, o.Peering
	of := fmt.Sprintf("Peering %s", p.Metadata.Name)
	switch theirs := q.Status.PublicKey; {
	case theirs == "":
	case p.PublicKey == (wgkey.Key{}):
		j.wrong(s.name(), "%s: spec.publicKey: missing; give it %s's, %s", of, o.name(), theirs)
		j.apart = true
	case p.PublicKey.Base64() != theirs:
		j.wrong(s.name(), "%s: spec.publicKey: %s's gateway has another key; give it %s", of, o.name(), theirs)
		j.apart = true
	}
	if p.Role == q.Role {
		j.wrong(s.name(), "%s: spec.role: both sides are %ss; one has to be the Server, the other the Client", of,
			p.Role)
		j.apart = true
	}
	has := func(c netip.Prefix, external bool) bool {
		for _, r := range p.Remote {
			if r.Real == c && r.External == external {
				return true
			}
		}
		return false
	}
	for _, c := range q.Pods {
		if !has(c, false) {
			j.wrong(s.name(), "%s: spec.remote.podCIDRs: %s is missing, which %s has in spec.local.podCIDRs",
				of, c, o.name())
		}
	}
	for _, c := range q.External {
		if !has(c, true) {
			j.wrong(s.name(), "%s: spec.remote.externalCIDR: is not %s, which %s has in spec.local.externalCIDR", of, c,
				o.name())
		}
	}
}

// between judges the tunnel between the gateways.
func (j *judge) between(a, b *Side) {
	says := map[*Side]string{a: a.says(peering.Connected), b: b.says(peering.Connected)}
	if says[a] == "" && says[b] == "" {
		return
	}
	if j.apart { // and the cause is known
		return
	}
	j.apart = true
	named := false
	for _, s := range []*Side{a, b} {
		inbound, endpoint := true, netip.Addr{}
		if s.Peering.Role == config.Client {
			inbound = false
			if at, err := netip.ParseAddrPort(s.Peering.Endpoint); err == nil {
				endpoint = at.Addr()
			}
		}
		for _, pod := range s.gateways(s.Peering.Metadata.Name) {
			names := refusing(s.Policies, pod.Labels, inbound, config.DefaultWireGuardPort, wireguardPort, endpoint)
			if len(names) > 0 {
				j.policy(s, names, inbound, config.DefaultWireGuardPort, "the gateway of "+s.Peering.Peer)
				named = true
				break
			}
		}
	}
	if named {
		return
	}
	server, client := a, b
	if a.Peering.Role == config.Client {
		server, client = b, a
	}
	j.wrong("",
		"nothing passes between the gateways. Both run, so look at UDP on the way from %s's gateway to %s, which has to lead to UDP %d of %s's: "+
			"a firewall, a load balancer that does not carry UDP, or the wrong endpoint closes it. %s",
		client.name(), cmp.Or(client.Peering.Endpoint, "its endpoint"), config.DefaultWireGuardPort, server.name(),
		quoted(client, server, says))
}

// quoted returns what the sides say themselves.
func quoted(a, b *Side, says map[*Side]string) string {
	var all []string
	for _, s := range []*Side{a, b} {
		if says[s] != "" {
			all = append(all, fmt.Sprintf("%s says: %s", s.name(), says[s]))
		}
	}
	return strings.Join(all, ". ")
}

func (j *judge) policy(s *Side, names []string, inbound bool, port int, other string) {
	way, preposition := "ingress", "from"
	if !inbound {
		way, preposition = "egress", "to"
	}
	j.wrong(s.name(),
		"NetworkPolicy %s in %s keeps UDP %d %s %s away from the gateway; let it pass: %s with an ipBlock, or without any peer",
		strings.Join(names, " and "), peering.GatewayNamespace, port, preposition, other, way)
}

// nodes judges what agents and the gateway say about nodes.
func (j *judge) nodes(s *Side) {
	name := s.Peering.Metadata.Name
	for _, a := range s.Peering.Status.Nodes {
		n := s.node(a.Name)
		if n != nil && !n.Ready {
			j.all = append(j.all,
				Finding{s.name(), false, fmt.Sprintf("node %s is not ready, and was not asked", a.Name)})
			j.blamed[s.of(a.Name)] = true
			continue
		}
		t, p := s.tunnel(a.Name, name)
		switch agent := s.agent(a.Name); {
		case agent == nil || !agent.Ready:
			why, where := "there is no pod of it", "DaemonSet culvert-node"
			if agent != nil {
				why, where = cmp.Or(agent.Trouble, s.lastWarning(agent.Name, "Pod"), "it is not ready"),
					"pod "+agent.Name
			}
			j.wrong(s.name(), "the agent of node %s does not run: %s; see %s", a.Name, why,
				s.kubectl("-n %s describe %s", peering.NodeNamespace, strings.ToLower(where)))
		case t == nil:
			j.wrong(s.name(), "the agent of node %s has not told its address; see %s", a.Name,
				s.kubectl("-n %s logs %s", peering.NodeNamespace, agent.Name))
		case p != nil && !p.Ready:
			j.wrong(s.name(), "node %s: %s", a.Name, p.Message)
		default:
			continue
		}
		j.blamed[s.of(a.Name)] = true
	}
	if why := s.says(peering.NodesReady); why != "" && !j.apart {
		of, _, found := strings.Cut(strings.TrimPrefix(why, "node "), ":") // the first node is named
		if !found || !j.blamed[s.of(of)] {
			j.wrong(s.name(), "%s", why)
			j.blamed[s.of(of)] = found
		}
	}
}

// agent returns the pod of a node's agent; of several, one that is ready.
func (s *Side) agent(node string) (agent *Pod) {
	for i := range s.Agents {
		if p := &s.Agents[i]; p.Node == node && (agent == nil || p.Ready) {
			agent = p
		}
	}
	return agent
}
