package check

import (
	"errors"
	"os"
	"strings"
	"testing"

	"culvert/integration/need"
)

// Lines of logs, as the pods write them.
const (
	linkUp      = "time=\"2026-07-23T10:00:00Z\" level=info msg=\"link is up\" interface=liqo.abc mtu=1340 node=n1 remote=10.244.1.7 vni=3\n"
	linkGone    = "time=\"2026-07-23T10:00:00Z\" level=info msg=\"link is removed\" interface=liqo.abc node=n1\n"
	linkUnasked = "time=\"2026-07-23T10:00:00Z\" level=info msg=\"link is no longer wanted\" interface=liqo.abc node=n1\n"
	linkOther   = "time=\"2026-07-23T10:00:00Z\" level=info msg=\"link is up\" interface=liqo.abcd mtu=1340 node=n1 remote=10.244.1.7 vni=3\n"
	linkRefused = "time=\"2026-07-23T10:00:00Z\" level=warning msg=\"cannot apply a resource\" cause=\"interface: liqo.abc exists and is a veth link that culvert did not make; " +
		"remove it: ip link del liqo.abc\" node=n1 resource=InternalFabric/tenant/milan\n"
	forbidden = "time=\"2026-07-23T10:00:00Z\" level=warning msg=\"request to the API server failed; retrying\" error=\"internalnodes.networking.liqo.io is forbidden: " +
		"User \\\"system:serviceaccount:liqo:culvert-links\\\" cannot list resource\" node=n1 resource=internalnodes verb=list\n"
	allowed     = "time=\"2026-07-23T10:00:00Z\" level=info msg=\"the API server answers again\" node=n1 resource=internalnodes verb=list\n"
	agentMade   = "I0723 10:00:00.000000       1 genevetunnel_controller.go:150] Enforced interface liqo.abc for genevetunnel tenant/milan-n1\n"
	agentFailed = "E0723 10:00:00.000000       1 controller.go:474] \"Reconciler error\" err=\"ensuring the geneve interface presence: cannot create geneve link: operation not supported\" " +
		"controller=\"internalfabric-fabric\" GeneveTunnel=\"tenant/milan-n1\" namespace=\"tenant\" name=\"milan-n1\"\n"
)

// agentPanicked is what the agent logs while culvert has the link.
const agentPanicked = "E0723 10:00:00.000000       1 controller.go:474] \"Reconciler error\" err=\"panic: interface conversion: " +
	"netlink.Link is *netlink.Tuntap, not *netlink.Geneve [recovered]\" GeneveTunnel=\"tenant/milan-n1\" namespace=\"tenant\"\n"

// TestLinksOfNodes: what the pods of a node say last tells whose link it has, and what to do where
// it has none.
func TestLinksOfNodes(t *testing.T) {
	node := object(t, "metadata: {name: n1}")
	fabric := object(t, "{metadata: {namespace: tenant, name: milan}, spec: {interface: {node: {name: liqo.abc}}}}")
	tunnel := object(t,
		"{metadata: {namespace: tenant, name: milan-n1}, spec: {internalNodeRef: {name: n1}, internalFabricRef: {namespace: tenant, name: milan}}}")
	agent := func(log string) Pod {
		return Pod{Namespace: "liqo", Name: "agent", Node: "n1", Phase: "Running", Log: log}
	}
	ours := func(log string) Pod {
		return Pod{Namespace: "liqo", Name: "links", Node: "n1", Phase: "Running", Log: log}
	}
	for name, x := range map[string]struct {
		agents, ours []Pod
		tunnels      []map[string]any
		whose, says  string
	}{
		"Liqo's": {[]Pod{agent(agentFailed + agentMade)}, nil, []map[string]any{tunnel}, Liqos, ""},
		"no Geneve, no culvert": {[]Pod{agent(agentMade + agentFailed)}, nil, []map[string]any{tunnel}, NoLink,
			"culvert liqo template --nodes"},
		"culvert was removed": {[]Pod{agent(agentPanicked)}, nil, []map[string]any{tunnel}, NoLink,
			"culvert liqo template --nodes"},
		"culvert's": {[]Pod{agent(agentFailed)}, []Pod{ours(linkGone + linkUp)},
			[]map[string]any{tunnel}, Ours, ""},
		"culvert's, with warning": {[]Pod{agent(agentFailed)}, []Pod{ours(linkUp + linkRefused)},
			[]map[string]any{tunnel}, Ours, ""},
		"removed": {[]Pod{agent(agentFailed)}, []Pod{ours(linkUp + linkGone)},
			[]map[string]any{tunnel}, NoLink, "its link was removed"},
		"no longer asked for": {[]Pod{agent(agentFailed)}, []Pod{ours(linkUp + linkUnasked)},
			[]map[string]any{tunnel}, NoLink, "its link was removed"},
		"refused": {[]Pod{agent(agentFailed)}, []Pod{ours(linkRefused)}, []map[string]any{tunnel},
			NoLink,
			"interface: liqo.abc exists and is a veth link that culvert did not make; remove it: ip link del liqo.abc"},
		"a longer name": {[]Pod{agent("")}, []Pod{ours(linkOther)}, []map[string]any{tunnel}, Unknown,
			"ip link show liqo.abc"},
		"pending": {[]Pod{agent(agentFailed)}, []Pod{{Namespace: "liqo", Name: "links", Node: "n1",
			Phase: "Pending"}}, []map[string]any{tunnel}, NoLink, "liqo/links is Pending"},
		"no right": {[]Pod{agent(agentPanicked)}, []Pod{ours(forbidden)}, []map[string]any{tunnel},
			NoLink, "culvert's pod liqo/links may not list internalnodes: apply the manifest again"},
		"a right again": {[]Pod{agent(agentFailed)}, []Pod{ours(forbidden + allowed)},
			[]map[string]any{tunnel}, NoLink, "Liqo's agent says"},
		"a right too few for more": {[]Pod{agent(agentPanicked)}, []Pod{ours(linkUp + forbidden)},
			[]map[string]any{tunnel}, Ours, ""},
		"a pod that cannot start": {[]Pod{agent(agentPanicked)}, []Pod{{Namespace: "liqo", Name: "next", Node: "n1",
			Phase: "Pending"}, ours(linkUp)}, []map[string]any{tunnel}, Ours, ""},
		"on another node": {[]Pod{agent(agentFailed)}, []Pod{{Node: "n2", Phase: "Running", Log: linkUp}},
			[]map[string]any{tunnel}, NoLink, "no Geneve"},
		"the kernel has Geneve": {[]Pod{agent(agentMade)}, []Pod{ours("")}, []map[string]any{tunnel}, Liqos, ""},
		"no agent": {nil, nil, []map[string]any{tunnel}, NoLink,
			"Liqo's agent (liqo-fabric) does not run"},
		"no tunnel": {[]Pod{agent(agentMade)}, nil, nil, NoLink, "no GeneveTunnel"},
		"a log that is not for us": {[]Pod{{Node: "n1", Phase: "Running", LogError: errors.New("403 Forbidden")}}, nil,
			[]map[string]any{tunnel}, Unknown, "403 Forbidden"},
	} {
		all := (&Nodes{Nodes: []map[string]any{node}, Fabrics: []map[string]any{fabric}, Tunnels: x.tunnels,
			Agents: x.agents, Ours: x.ours}).Links()
		if len(all) != 1 || all[0].Whose != x.whose || !strings.Contains(all[0].Remedy, x.says) ||
			(x.says == "") != (all[0].Remedy == "") {
			t.Errorf("%s: %+v, want %s: %s", name, all, x.whose, x.says)
		}
	}
	// The messages are those that docs/logs.md has, which is compared with the code.
	doc, err := os.ReadFile("../../docs/logs.md")
	need.NoError(t, err)
	for _, message := range []string{"link is up", "link is removed", "link is no longer wanted",
		"device was removed by somebody else", "request to the API server failed; retrying",
		"the API server answers again", "cannot apply a resource"} {
		if !strings.Contains(string(doc), "`"+message+"`") {
			t.Errorf("nobody logs %q", message)
		}
	}
}
