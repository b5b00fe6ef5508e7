// Package check predicts what would happen if a Liqo gateway were switched to culvert. It judges
// objects that others have read from a cluster, and contacts none itself.
package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"culvert/kube/liqo"
	"culvert/kube/objects"
	"culvert/kube/template"
	"culvert/nat/rules"
)

// Cluster has the objects that were read, as in JSON; nil if missing.
type Cluster struct {
	Gateway    map[string]any   // the GatewayServer or GatewayClient
	Namespace  map[string]any   // of the gateway
	Template   map[string]any   // culvert's
	Stock      map[string]any   // Liqo's own template; read only if the gateway has culvert's
	Deployment map[string]any   // the running one
	Pods       []map[string]any // of the gateway
	Policies   []map[string]any // NetworkPolicies of the namespace
	// Controllers are the pods of liqo-controller-manager.
	Controllers []map[string]any
	Resources   []*objects.Object // resources for gateways, of the whole cluster
	// TemplateNamespace is the namespace of culvert's template.
	TemplateNamespace string
}

// A Finding is one thing to know before the switch.
type Finding struct {
	Wrong bool // the gateway would not work
	Text  string
}

// A Report is the result of a check.
type Report struct {
	Gateway  string // which one
	Findings []Finding
	Commands []Command
}

// A Command is a shell command.
type Command struct{ Purpose, Line string }

// Works reports whether nothing is wrong.
func (r *Report) Works() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Wrong })
}

// Labels and names used by Liqo.
const (
	labelRemote = "liqo.io/remote-cluster-id"
	serverKind  = "GatewayServer"
	group       = "networking.liqo.io"
)

// An end has the names that differ between the two ends of a tunnel.
type end struct{ plural, reference, stock, kind, ours string }

var (
	serverEnd = end{"gatewayservers", "serverTemplateRef", "wireguard-server", template.ServerKind, template.ServerName}
	clientEnd = end{"gatewayclients", "clientTemplateRef", "wireguard-client", template.ClientKind, template.ClientName}
)

// A checker collects its findings.
type checker struct {
	*Cluster
	Report
	end  end
	self liqo.Self
	ours bool           // the gateway has culvert's template already
	made map[string]any // what Liqo's operator would make of the template
}

// Check judges the objects. An error means that too few were read.
func Check(c *Cluster) (*Report, error) {
	k := &checker{Cluster: c, end: clientEnd}
	g, err := k.gateway()
	if err != nil {
		return nil, err
	}
	k.commands()
	k.render(g)
	k.deployment()
	k.running()
	k.podSecurity(g)
	k.networkPolicies()
	k.links(g)
	k.standby()
	k.resources()
	return &k.Report, nil
}

func (k *checker) wrong(format string, args ...any) {
	k.Findings = append(k.Findings, Finding{true, fmt.Sprintf(format, args...)})
}

func (k *checker) remark(format string, args ...any) {
	k.Findings = append(k.Findings, Finding{false, fmt.Sprintf(format, args...)})
}

func text(o any, path ...string) string {
	s, _ := template.Field(o, path...).(string)
	return s
}

// decode decodes a part of an object.
func decode(part, to any) error {
	b, err := json.Marshal(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// gateway decodes the GatewayServer or GatewayClient.
func (k *checker) gateway() (g template.Gateway, err error) {
	k.self.Server = k.Cluster.Gateway["kind"] == serverKind
	if k.self.Server {
		k.end = serverEnd
	}
	o := k.Cluster.Gateway
	g = template.Gateway{
		Name: text(o, "metadata", "name"), Namespace: text(o, "metadata", "namespace"),
		GatewayUID: text(o, "metadata", "uid"),
		ClusterID:  text(o, "metadata", "labels", labelRemote),
	}
	if g.ClusterID == "" {
		return g, fmt.Errorf("%v %s/%s: no label %s: Liqo makes no gateway of it", o["kind"], g.Namespace,
			g.Name, labelRemote)
	}
	if err := decode(o["spec"], &g.Spec); err != nil {
		return g, fmt.Errorf("%v %s/%s: spec: %w", o["kind"], g.Namespace, g.Name, err)
	}
	g.SecretName = g.Spec.SecretRef.Name
	k.self.Name, k.self.Namespace, k.self.Remote, k.self.MTU = g.Name, g.Namespace, g.ClusterID, g.Spec.MTU
	k.self.Node = text(o, "status", "internalEndpoint", "node")
	k.Report.Gateway = fmt.Sprintf("%v %s/%s towards %s", o["kind"], g.Namespace, g.Name, g.ClusterID)
	return g, nil
}

func (k *checker) command(purpose, format string, args ...any) {
	k.Commands = append(k.Commands, Command{purpose, fmt.Sprintf(format, args...)})
}

// commands switch and revert by one patch each: only the reference differs.
func (k *checker) commands() {
	name, namespace := text(k.Cluster.Gateway, "spec", k.end.reference, "name"), text(k.Cluster.Gateway, "spec",
		k.end.reference, "namespace")
	patch := func(purpose, name, namespace string) {
		k.command(purpose,
			`kubectl patch %s.%s -n %s %s --type merge -p '{"spec":{"%s":{"name":"%s","namespace":"%s"}}}'`,
			k.end.plural, group, k.self.Namespace, k.self.Name, k.end.reference, name, namespace)
	}
	if k.ours = name == k.end.ours && namespace == k.TemplateNamespace; k.ours {
		k.remark("it has culvert's template already; the way back is to %s, as Liqo's chart calls its own", k.end.stock)
		name = k.end.stock
		k.command("To apply a changed template", `kubectl annotate %s.%s -n %s %s --overwrite touched="$(date +%%s)"`,
			k.end.plural, group, k.self.Namespace, k.self.Name)
	} else {
		patch("To switch", k.end.ours, k.TemplateNamespace)
	}
	patch("To go back", name, namespace)
}

// makeTemplate is the command that creates culvert's templates.
const makeTemplate = "culvert liqo template --image NAME | kubectl apply -f -"

func (k *checker) render(g template.Gateway) {
	if k.Template == nil {
		k.wrong("%s %s: not in namespace %s; make it: %s", k.end.kind, k.end.ours, k.TemplateNamespace, makeTemplate)
		return
	}
	made, err := template.Render(k.Template, g)
	if err != nil {
		k.wrong("%s %s: %v; make it anew: %s", k.end.kind, k.end.ours, err, makeTemplate)
		return
	}
	k.made = made
	for _, c := range containers(k.pod()) {
		if image, _ := c["image"].(string); !strings.Contains(image, "/") {
			k.remark("image %s names no registry, so that each node must have it already; make the template anew: %s",
				image, makeTemplate)
		}
	}
}

// pod returns the pod after the switch.
func (k *checker) pod() map[string]any {
	return podOf(template.Field(k.made, "spec", "deployment"))
}

func podOf(deployment any) map[string]any {
	pod, _ := template.Field(deployment, "spec", "template", "spec").(map[string]any)
	return pod
}

func containers(pod map[string]any) (all []map[string]any) {
	for _, name := range []string{"initContainers", "containers"} {
		list, _ := pod[name].([]any)
		for _, c := range list {
			if c, ok := c.(map[string]any); ok {
				all = append(all, c)
			}
		}
	}
	return all
}

// flag returns the value of a flag of any container.
func flag(pod map[string]any, names ...string) string {
	for _, c := range containers(pod) {
		for _, f := range template.Flags(c) {
			if slices.Contains(names, f.Name) {
				return f.Value
			}
		}
	}
	return ""
}

// deployment compares the running Deployment with the new one. The selector of a Deployment is
// immutable: Liqo's controller would fail forever.
func (k *checker) deployment() {
	if k.Deployment == nil {
		k.remark("no Deployment gw-%s runs; there is nothing to compare with", k.self.Name)
		return
	}
	if k.made == nil {
		return
	}
	wants := fmt.Sprint(template.Field(k.made, "spec", "deployment", "spec", "replicas"))
	if n := fmt.Sprint(template.Field(k.Deployment, "spec", "replicas")); n != wants && n != "<nil>" {
		k.remark("replicas: %s instead of %s", wants, n)
	}
	was, _ := template.Field(k.Deployment, "spec", "selector", "matchLabels").(map[string]any)
	is, _ := template.Field(k.made, "spec", "deployment", "spec", "selector", "matchLabels").(map[string]any)
	labels := template.Field(k.made, "spec", "deployment", "spec", "template", "metadata", "labels")
	names := maps.Clone(was)
	maps.Copy(names, is)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if was[name] != is[name] {
			k.wrong(
				"selector of Deployment gw-%s: label %s is %v there and would be %v, and no selector can be changed; "+
					"make the template anew from the cluster's own: %s", k.self.Name, name, shown(was[name]),
				shown(is[name]), makeTemplate)
		} else if label := template.Field(labels, name); label != is[name] {
			k.wrong("label %s of the pod: %v, and the selector wants %v", name, shown(label), is[name])
		}
	}
	was6091, is6091 := cmp.Or(flag(podOf(k.Deployment), "geneve-port"), genevePort), k.geneve()
	if was6091 != is6091 {
		k.wrong("--geneve-port: nodes send to %s, and the gateway would listen at %s; make the template anew from the cluster's own: %s", was6091, is6091, makeTemplate)
	}
}

func shown(v any) any {
	if v == nil {
		return "missing"
	}
	return v
}

const (
	genevePort    = "6091"
	wireguardPort = "51840"
	replicaPort   = "51841" // of TCP, gateway.ReplicaPort
)

func (k *checker) geneve() string { return cmp.Or(flag(k.pod(), "geneve-port"), genevePort) }

// links reports what culvert does not support with several links.
func (k *checker) links(g template.Gateway) {
	if all := g.Spec.Endpoint.Ports; len(all) > 1 {
		k.remark("spec.endpoint.ports: of %v culvert uses the first: one tunnel carries all", all)
	}
}

// resources tries all resources for gateways. Invalid ones are left out as a whole.
func (k *checker) resources() {
	s := liqo.NewState(k.self)
	for _, o := range k.Resources {
		s.Put(o)
	}
	s.Changes() // checks them in combination
	faults := s.Faults()
	k.nodes()
	for _, key := range slices.SortedFunc(maps.Keys(faults),
		func(a, b rules.Key) int { return strings.Compare(a.String(), b.String()) }) {
		// A gateway without a key waits for one.
		k.Findings = append(k.Findings, Finding{key.Kind != liqo.KindPublicKey, fmt.Sprintf("%s would be left out: %s",
			key, faults[key])})
	}
}

// nodes reports nodes of which a pod of the gateway knows no address. A standby takes no connection
// of such a node.
func (k *checker) nodes() {
	for _, p := range k.Pods {
		self := k.self
		if self.Node = text(p, "spec", "nodeName"); !k.ours || text(p, "status", "phase") != "Running" {
			continue
		}
		s := liqo.NewState(self)
		for _, o := range k.Resources {
			s.Put(o)
		}
		if c := s.Changes(); c.Site == nil || !c.Site.GatewayAddress.IsValid() {
			continue // it waits for more than nodes
		}
		for _, w := range s.Waiting() {
			if strings.Contains(w, liqo.KindNode+" ") {
				k.Findings = append(k.Findings, Finding{!strings.Contains(w, liqo.Meanwhile),
					fmt.Sprintf("pod %s waits for %s", text(p, "metadata", "name"), w)})
			}
		}
	}
}

// standby says what a gateway with several pods depends on besides them.
func (k *checker) standby() {
	if n := fmt.Sprint(template.Field(k.made, "spec", "deployment", "spec", "replicas")); k.made == nil || n == "0" ||
		n == "1" || n == "<nil>" {
		return
	}
	var at []string
	for _, p := range k.Controllers {
		if text(p, "status", "phase") == "Running" {
			at = append(at, text(p, "spec", "nodeName"))
		}
	}
	slices.Sort(at)
	at = slices.Compact(at)
	const needs = "a node with Liqo's own link follows a gateway that moves only while liqo-controller-manager runs; one with culvert's does not need it"
	const remedy = "set controllerManager.replicas=2 in Liqo's chart"
	switch {
	case len(at) == 0:
		k.remark("%s. No pod of it runs: start it", needs)
	case len(at) > 1:
		k.remark("%s. It runs on the nodes %s", needs, strings.Join(at, ", "))
	case at[0] == k.self.Node:
		k.remark("%s. It runs on node %s alone, like the active gateway: if that node fails, the standby gets no packets until Kubernetes has moved the controller, "+
			"after five minutes by default; %s", needs, at[0], remedy)
	default:
		k.remark("%s. It runs on node %s alone; %s", needs, at[0], remedy)
	}
}
