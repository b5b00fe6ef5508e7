package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed init_templates
var initTemplates embed.FS

// fill returns a template with words in the place of those in angle brackets. A line that begins with "each| " is there for every one of
// the nodes, and one with "back| " too, from the last to the first. This is no text/template because that makes the linker keep every
// method of every type: a quarter of the binary.
func fill(name string, nodes []initNode, words []string) (string, error) {
	text, err := initTemplates.ReadFile("init_templates/" + name)
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

// words are what the files of a gateway say.
func (s *initSide) words() []string {
	role := fmt.Sprintf("  role: client\n  endpoint: %q", s.Plan.Endpoint)
	if s == s.Plan.Server {
		role = "  role: server\n  listenPort: " + s.Plan.EndpointPort
	}
	remap := ""
	if s.Peer.Seen != s.Peer.Pods {
		remap = ", remap: " + s.Peer.Seen.String()
	}
	return []string{
		"<cluster>", s.Cluster, "<peer>", s.Peer.Cluster, "<role>", role, "<remap>", remap, "<gateway>", s.Underlay.String(),
		"<pods>", s.Pods.String(), "<external>", s.External.String(), "<internal>", s.Internal.String(), "<port>", fmt.Sprint(s.Port),
		"<peer-pods>", s.Peer.Pods.String(), "<peer-seen>", s.Peer.Seen.String(), "<peer-external>", s.Peer.External.String(), "<metrics>", s.Metrics,
	}
}

// words are what the files of a node say, and lines about one.
func (n *initNode) words() []string {
	return append([]string{
		"<name>", n.Name, "<vni>", fmt.Sprint(n.VNI), "<underlay>", n.Underlay.String(), "<address>", n.Address.String(), "<node-pods>", n.Pods.String(),
		"<pod>", n.PodOf().String(), "<pod-seen>", n.SeenPod().String(), "<peer-pod>", n.Side.Peer.Nodes[0].PodOf().String(),
	}, n.Side.words()...)
}

// words are what is said about both clusters.
func (p *initPlan) words(dir, program string) []string {
	return []string{
		"<dir>", dir, "<program>", program, "<endpoint>", p.Endpoint, "<endpoint-port>", p.EndpointPort,
		"<client>", p.Client.Cluster, "<client-port>", fmt.Sprint(p.Client.Port), "<client-gateway>", p.Client.Underlay.String(),
		"<server>", p.Server.Cluster, "<server-port>", fmt.Sprint(p.Server.Port), "<server-gateway>", p.Server.Underlay.String(),
	}
}
