package check

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Nodes are the objects that say something about the links of nodes, as in JSON.
type Nodes struct {
	Nodes, Fabrics, Tunnels []map[string]any // InternalNodes, InternalFabrics, GeneveTunnels
	Agents, Ours            []Pod            // pods of Liqo's agent and of culvert node --liqo
}

// A Pod is a pod on a node, with its log.
type Pod struct {
	Namespace, Name, Node string
	Phase                 string
	Log                   string
	LogError              error // why Log could not be read
}

// PodOf reads a Pod, without its log.
func PodOf(o map[string]any) Pod {
	return Pod{Namespace: text(o, "metadata", "namespace"), Name: text(o, "metadata", "name"),
		Node: text(o, "spec", "nodeName"), Phase: text(o, "status", "phase")}
}

// Who makes a link.
const (
	Ours    = "culvert's"
	Liqos   = "Liqo's"
	NoLink  = "none"
	Unknown = "unknown"
)

// A NodeLink is what is known about the link that a node needs for a gateway.
type NodeLink struct {
	Node, Interface string
	Fabric          string // NAMESPACE/NAME of the InternalFabric
	Whose           string
	Remedy          string // why there is no link, or nothing is known about it, and what to do
}

// Wrong reports whether the link is missing.
func (l *NodeLink) Wrong() bool { return l.Whose == NoLink }

// Links says for each node and gateway who makes the link. That is known only from the logs of the
// node's pods.
func (c *Nodes) Links() (all []NodeLink) {
	for _, list := range [][]map[string]any{c.Nodes, c.Fabrics} {
		sort.Slice(list, func(i, j int) bool {
			a, b := text(list[i], "metadata", "namespace"), text(list[j], "metadata", "namespace")
			return a < b || a == b && text(list[i], "metadata", "name") < text(list[j], "metadata", "name")
		})
	}
	for _, n := range c.Nodes {
		for _, f := range c.Fabrics {
			l := NodeLink{Node: text(n, "metadata", "name"), Interface: text(f, "spec", "interface", "node", "name"),
				Fabric: text(f, "metadata", "namespace") + "/" + text(f, "metadata", "name")}
			l.Whose, l.Remedy = c.link(&l)
			all = append(all, l)
		}
	}
	return all
}

func (c *Nodes) link(l *NodeLink) (whose, remedy string) {
	tunnel := ""
	for _, t := range c.Tunnels {
		if text(t, "spec", "internalNodeRef", "name") == l.Node && text(t, "spec", "internalFabricRef", "namespace")+
			"/"+text(t, "spec", "internalFabricRef", "name") == l.Fabric {
			tunnel = text(t, "metadata", "namespace") + "/" + text(t, "metadata", "name")
		}
	}
	if tunnel == "" {
		return NoLink,
			"there is no GeneveTunnel for it; Liqo's controller makes one: see the log of liqo-controller-manager"
	}
	agent, ours := on(c.Agents, l.Node), on(c.Ours, l.Node)
	made, fault := ours.says(l.Interface, tunnel, l.Fabric)
	if made == Ours {
		return Ours, ""
	}
	agents, trouble := agent.says(l.Interface, tunnel, l.Fabric)
	switch {
	case agents == Liqos:
		return Liqos, ""
	case agent == nil:
		return NoLink,
			"Liqo's agent (liqo-fabric) does not run on this node; it makes the link or leads routes to culvert's"
	case ours != nil && ours.Phase != "Running":
		return NoLink, fmt.Sprintf("culvert's pod %s/%s is %s: kubectl describe pod -n %[1]s %[2]s", ours.Namespace,
			ours.Name, ours.Phase)
	case made == NoLink && fault != "":
		return NoLink, fault
	// The agent fails the second way while it still has the state of a link that culvert has just
	// removed.
	case ours == nil && (strings.Contains(trouble, "not supported") || strings.Contains(trouble,
		"*netlink.Tuntap, not *netlink.Geneve")):
		return NoLink, "its kernel has no Geneve: culvert liqo template --nodes --image IMAGE | kubectl apply -f -"
	case trouble != "":
		return NoLink, "Liqo's agent says: " + trouble
	}
	for _, p := range []*Pod{agent, ours} {
		if p != nil && p.LogError != nil {
			return Unknown, fmt.Sprintf("the log of pod %s/%s cannot be read: %v", p.Namespace, p.Name, p.LogError)
		}
	}
	return Unknown, fmt.Sprintf("no pod of this node says anything of it; look there: ip link show %s", l.Interface)
}

// on returns the pod on a node; nil if there is none. During an update there may be two, of which
// one waits, or cannot start.
func on(pods []Pod, node string) *Pod {
	i := slices.IndexFunc(pods, func(p Pod) bool { return p.Node == node && p.Phase == "Running" })
	if i < 0 {
		i = slices.IndexFunc(pods, func(p Pod) bool { return p.Node == node })
	}
	if i < 0 {
		return nil
	}
	return &pods[i]
}

// says evaluates the last line of the pod's log about a link. It returns who makes the link, and
// what is wrong with it.
func (p *Pod) says(link, tunnel, fabric string) (whose, trouble string) {
	if p == nil || p.Phase != "Running" {
		return Unknown, ""
	}
	whose = Unknown
	for line := range strings.Lines(p.Log) {
		about := func(key, value string) bool {
			return strings.Contains(line+" ", key+value+" ") || strings.HasSuffix(strings.TrimSpace(line), key+value)
		}
		switch {
		// culvert's messages: docs/logs.md.
		case strings.Contains(line, `msg="link is up"`) && about("interface=", link):
			whose, trouble = Ours, ""
		case (strings.Contains(line, `msg="link is removed"`) ||
			strings.Contains(line, `msg="link is no longer wanted"`) ||
			strings.Contains(line, `msg="device was removed`)) && about("interface=", link):
			whose, trouble = NoLink, "its link was removed; culvert's pod makes it anew if the resources ask for it"
		case strings.Contains(line, `msg="request to the API server failed; retrying"`) && strings.Contains(line,
			"forbidden"):
			if whose != Ours {
				whose, trouble = NoLink,
					fmt.Sprintf("culvert's pod %s/%s may not %s %s: apply the manifest again: culvert liqo template --nodes --image IMAGE | kubectl apply -f -",
						p.Namespace, p.Name, word(line, "verb"), word(line, "resource"))
			}
		case strings.Contains(line, `msg="the API server answers again"`) && strings.Contains(trouble,
			" may not "+word(line, "verb")+" "+word(line, "resource")+":"):
			whose, trouble = Unknown, ""
		case strings.Contains(line, `msg="cannot apply a resource"`) && (about("resource=", "InternalFabric/"+fabric) ||
			about("resource=", "GeneveTunnel/"+tunnel)):
			if whose != Ours { // otherwise it is a warning about an existing link
				_, cause, _ := strings.Cut(line, "cause=")
				cause, _, _ = strings.Cut(strings.TrimPrefix(cause, `"`), `" `)
				whose, trouble = NoLink, strings.TrimSpace(cause)
			}
		// Liqo's messages, v1.2.0.
		case strings.Contains(line, "Enforced interface "+link+" "):
			whose, trouble = Liqos, ""
		case strings.Contains(line, `"Reconciler error"`) && strings.Contains(line, `"`+tunnel+`"`):
			_, text, _ := strings.Cut(line, `err="`)
			text, _, _ = strings.Cut(text, `" `)
			whose, trouble = NoLink, text
		}
	}
	return whose, trouble
}

// word returns the value of a key of culvert's log that has no spaces.
func word(line, key string) string {
	_, value, _ := strings.Cut(line, " "+key+"=")
	value, _, _ = strings.Cut(value, " ")
	return strings.TrimSpace(value)
}
