package setup

import (
	"embed"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

//go:embed templates
var templates embed.FS

// fill returns a template with its placeholders in angle brackets replaced by words. It repeats a
// line that begins with "each| " for every node, and one that begins with "back| " from the last
// node to the first. It does not use text/template, because that makes the linker keep every method
// of every type: a quarter of the binary.
func fill(name string, nodes []nodeSpec, words []string) (string, error) {
	text, err := templates.ReadFile("templates/" + name)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	replace := strings.NewReplacer(words...)
	for line := range strings.Lines(string(text)) {
		rest, each := strings.CutPrefix(line, "each| ")
		rest, back := strings.CutPrefix(rest, "back| ")
		if !each && !back {
			replace.WriteString(&out, line)
			continue
		}
		for i := range nodes {
			n := &nodes[i]
			if back {
				n = &nodes[len(nodes)-1-i]
			}
			strings.NewReplacer(slices.Concat(n.words(), words)...).WriteString(&out, rest)
		}
	}
	return out.String(), nil
}

// words returns the replacements for the files of a gateway.
func (s *cluster) words() []string {
	role := fmt.Sprintf("  role: client\n  endpoint: %q", s.Plan.Endpoint)
	if s == s.Plan.Server {
		role = "  role: server\n  listenPort: " + s.Plan.EndpointPort
	}
	var pods, external, remote, remoteExternal []string
	interfaceLine := ""
	if s.Interface != "" {
		interfaceLine = "interface: " + s.Interface + " # others are of other peerings\n"
	}
	var internal []netip.Addr
	var routes [2]string // to the peer's pods, then to its other hosts
	seen := ""
	for k, f := range s.Families {
		peer := s.Peer.Families[k]
		pods, external, internal = append(pods, inYAML(f.Pods)), append(external, inYAML(f.External)),
			append(internal, f.Internal)
		remote, remoteExternal = append(remote, remapped(peer.Pods, peer.Seen)),
			append(remoteExternal, remapped(peer.External, peer.ExternalSeen))
		routes[0] += "\n  - " + inYAML(peer.Seen)
		routes[1] += "\n  - " + inYAML(peer.ExternalSeen)
		seen += fmt.Sprintf("    %s of %s is %s in %s\n", peer.Pods, s.Peer.Cluster, peer.Seen, s.Cluster)
	}
	return []string{
		"<cluster>", s.Cluster, "<peer>", s.Peer.Cluster, "<role>", role, "<gateway>", inYAML(s.Underlay),
		"<pods>", strings.Join(pods, ", "), "<external>", strings.Join(external, ", "), "<internal>",
		oneOrTwo(internal), "<port>", fmt.Sprint(s.Port),
		"<remote>", strings.Join(remote, ", "), "<remote-external>", strings.Join(remoteExternal, ", "), "<routes>",
		routes[0] + routes[1],
		"<metrics>", s.Metrics, "<seen>\n", seen, "<interface>\n", interfaceLine,
	}
}

// remapped returns a CIDR of the peer in the format of gateway.yaml.
func remapped(real, seen netip.Prefix) string {
	if seen == real {
		return "{cidr: " + inYAML(real) + "}"
	}
	return "{cidr: " + inYAML(real) + ", remap: " + inYAML(seen) + "}"
}

// inYAML returns an address or prefix as a value in YAML, where the colons of IPv6 need quotes.
func inYAML(v fmt.Stringer) string {
	if s := v.String(); strings.Contains(s, ":") {
		return `"` + s + `"`
	}
	return v.String()
}

// oneOrTwo returns the value of a field that takes one address, or a list of one for each family.
func oneOrTwo(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, inYAML(a))
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// forwarding returns the settings with which a node forwards packets.
func forwarding(families []family) string {
	var settings []string
	for _, f := range families {
		if f.Pods.Addr().Is4() {
			settings = append(settings, "net.ipv4.ip_forward=1")
		} else {
			settings = append(settings, "net.ipv6.conf.all.forwarding=1")
		}
	}
	return strings.Join(settings, " ")
}

// said returns addresses as part of a sentence.
func said(all []netip.Addr) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(all), "[]"), " ", " or ")
}

// words returns the replacements for the files of a node, and for lines about one.
func (n *nodeSpec) words() []string {
	var pods []string
	for _, p := range n.Pods {
		pods = append(pods, inYAML(p))
	}
	peerPod := ""
	if len(n.Side.Peer.Nodes) > 0 { // unknown if only one side is made
		peerPod = said(n.Side.Peer.Nodes[0].PodOf())
	}
	return append([]string{
		"<name>", n.Name, "<vni>", fmt.Sprint(n.VNI), "<underlay>", inYAML(n.Underlay), "<address>",
		oneOrTwo(n.Address), "<node-pods>", strings.Join(pods, ", "),
		"<pod>", said(n.PodOf()), "<pod-seen>", said(n.SeenPod()), "<peer-pod>", peerPod,
	}, n.Side.words()...)
}

// words returns the replacements for texts about both clusters.
func (p *Plan) words(dir, program string) []string {
	beside := ""
	for _, s := range p.made() {
		beside += s.besideText()
	}
	return []string{
		"<beside>\n", beside, "<dir>", dir, "<program>", program, "<endpoint>", p.Endpoint, "<endpoint-port>",
		p.EndpointPort,
		"<client>", p.Client.Cluster, "<client-port>", fmt.Sprint(p.Client.Port), "<client-gateway>",
		p.Client.Underlay.String(),
		"<forward>", forwarding(p.Client.Families), "<server>", p.Server.Cluster, "<server-port>",
		fmt.Sprint(p.Server.Port), "<server-gateway>", p.Server.Underlay.String(),
	}
}
