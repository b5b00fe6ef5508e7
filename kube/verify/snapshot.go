package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube/objects"
	"culvert/kube/peering"
	"culvert/nat/rules"
)

// A Snapshot is what a cluster says about itself.
type Snapshot struct {
	Peerings    []*peering.Peering
	Nodes       []Node
	Tunnels     []Tunnel
	Deployments []Deployment // of gateways
	Gateways    []Pod
	Agents      []Pod
	Policies    []Policy // NetworkPolicies of the gateways' namespace
	Warnings    []Warning
	Imports     []Import // ServiceImports, if a Peering imports Services of its peer
	NoImports   string   // why there are none: noKind, or that the user may not list them
	Corefile    string   // of the cluster's DNS; "": not known
}

// An Import is a ServiceImport.
type Import struct {
	Namespace, Name string
	Headless        bool
	Addresses       string // with commas
	Clusters        []string
}

// noKind says that the cluster does not know ServiceImports.
const noKind = "the cluster has no kind ServiceImport"

func readImport(u *unstructured.Unstructured) (i Import, err error) {
	var x struct {
		Spec struct {
			Type string
			IPs  []string
		}
		Status struct{ Clusters []struct{ Cluster string } }
	}
	err = convert(u.Object, &x)
	slices.Sort(x.Spec.IPs)
	i = Import{Namespace: u.GetNamespace(), Name: u.GetName(), Headless: x.Spec.Type == "Headless",
		Addresses: strings.Join(x.Spec.IPs, ",")}
	for _, c := range x.Status.Clusters {
		i.Clusters = append(i.Clusters, c.Cluster)
	}
	return i, err
}

// A Node is a node of the cluster.
type Node struct {
	Name      string
	Ready     bool
	Addresses rules.Pair // the first InternalIP of each family
}

// A Tunnel is what a TunnelNode says.
type Tunnel struct {
	Node     string
	Local    string
	Remote   string
	Peerings []peering.NodePeering
}

// A Deployment is a gateway's Deployment.
type Deployment struct {
	Name       string
	Image      string
	PullPolicy string
	Replicas   int64
	Elects     bool // its pods elect the one that forwards
}

// A Pod is the state of a pod.
type Pod struct {
	Name      string
	Node      string
	Labels    map[string]string
	Phase     string
	Ready     bool
	Ending    bool
	Image     string
	Addresses rules.Pair
	Trouble   string // why it does not run; "" = no reason is given
	Message   string // the termination message of its container
}

// A Warning is an Event of type Warning.
type Warning struct {
	Kind, Name string // of the object
	Message    string
	At         time.Time
}

// errorOf returns the error of a fault; nil for none.
func errorOf(fault string) error {
	if fault == "" {
		return nil
	}
	return errors.New(fault)
}

// convert reads an object into a typed value.
func convert(from, to any) error {
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	return err
}

func readPeering(u *unstructured.Unstructured) (*peering.Peering, error) {
	return peering.PeeringOf(u), nil
}

func readNode(u *unstructured.Unstructured) (Node, error) {
	n, fault := objects.ReadNode(objects.Of("Node", u))
	node := Node{Name: u.GetName(), Ready: n.Conditions.True("Ready")}
	node.Addresses = firsts(n.AddressesOf("InternalIP"))
	return node, errorOf(fault)
}

// firsts returns the first address of each family.
func firsts(all []netip.Addr) (p rules.Pair) {
	for _, a := range slices.Backward(all) {
		p.Set(a)
	}
	return p
}

func readTunnel(u *unstructured.Unstructured) (Tunnel, error) {
	var x struct {
		Spec   peering.NodeSpec
		Status peering.NodeStatus
	}
	err := convert(u.Object, &x)
	return Tunnel{u.GetName(), x.Spec.Local, x.Spec.Remote, x.Status.Peerings}, err
}

func readDeployment(u *unstructured.Unstructured) (d Deployment, err error) {
	var spec struct{ Replicas *int64 }
	o := objects.Of("Deployment", u)
	if err := errorOf(objects.ReadPart("spec", o.Spec, &spec)); err != nil {
		return d, err
	}
	d.Name, d.Replicas = u.GetName(), 1
	if spec.Replicas != nil {
		d.Replicas = *spec.Replicas
	}
	if all := objects.ReadContainers(o); len(all) > 0 {
		d.Image, d.PullPolicy = all[0].Image, all[0].ImagePullPolicy
		d.Elects = slices.Contains(all[0].Args, "--leader-election")
	}
	return d, nil
}

func readPod(u *unstructured.Unstructured) (p Pod, err error) {
	o := objects.Of("Pod", u)
	x, fault := objects.ReadPod(o)
	if fault != "" {
		return p, errors.New(fault)
	}
	p = Pod{Name: u.GetName(), Node: x.Spec.NodeName, Labels: u.GetLabels(), Phase: x.Status.Phase, Ending: o.Deleting,
		Ready: x.Status.Conditions.True("Ready") && !o.Deleting}
	if all := objects.ReadContainers(o); len(all) > 0 {
		p.Image = all[0].Image
	}
	for _, c := range x.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" {
			p.Trouble = objects.Sentence(c.Reason, c.Message)
		}
	}
	p.Addresses = firsts(x.Addresses())
	if x.Status.Reason != "" {
		p.Trouble = objects.Sentence(x.Status.Reason, x.Status.Message)
	}
	for _, c := range x.Status.Containers {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			p.Trouble = objects.Sentence(w.Reason, w.Message)
		}
		if e := c.State.Terminated; e != nil {
			if p.Message = e.Message; e.ExitCode != 0 {
				p.Trouble = objects.Sentence(fmt.Sprintf("%s, exit status %d", e.Reason, e.ExitCode), e.Message)
			}
		}
	}
	return p, nil
}

func readWarning(u *unstructured.Unstructured) (w Warning, err error) {
	var x struct {
		InvolvedObject struct{ Kind, Name string }
		Message        string
		LastTimestamp  *time.Time
		EventTime      *time.Time
	}
	if err := convert(u.Object, &x); err != nil {
		return w, err
	}
	w = Warning{x.InvolvedObject.Kind, x.InvolvedObject.Name, x.Message, u.GetCreationTimestamp().Time}
	for _, at := range []*time.Time{x.EventTime, x.LastTimestamp} {
		if at != nil && at.After(w.At) {
			w.At = *at
		}
	}
	return w, nil
}

// gateways returns the pods of the gateway of a Peering.
func (s *Snapshot) gateways(of string) (all []Pod) {
	for _, p := range s.Gateways {
		if p.Labels[peeringLabel] == of {
			all = append(all, p)
		}
	}
	return all
}

// peeringLabel is a label of a gateway's pods.
const peeringLabel = "culvert.io/peering"

func (s *Snapshot) deployment(of string) *Deployment {
	i := slices.IndexFunc(s.Deployments, func(d Deployment) bool { return d.Name == "culvert-"+of })
	if i < 0 {
		return nil
	}
	return &s.Deployments[i]
}

func (s *Snapshot) node(name string) *Node {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Nodes[i]
}

// tunnel returns the content of a node's TunnelNode, and its part about one Peering.
func (s *Snapshot) tunnel(node, of string) (t *Tunnel, p *peering.NodePeering) {
	i := slices.IndexFunc(s.Tunnels, func(t Tunnel) bool { return t.Node == node })
	if i < 0 {
		return nil, nil
	}
	t = &s.Tunnels[i]
	if i = slices.IndexFunc(t.Peerings, func(p peering.NodePeering) bool { return p.Name == of }); i < 0 {
		return t, nil
	}
	return t, &t.Peerings[i]
}

// lastWarning returns the latest warning about objects whose names begin with a text; "" = none.
func (s *Snapshot) lastWarning(beginning string, kinds ...string) string {
	var last Warning
	for _, w := range s.Warnings {
		if slices.Contains(kinds, w.Kind) && len(w.Name) >= len(beginning) && w.Name[:len(beginning)] == beginning &&
			!w.At.Before(last.At) {
			last = w
		}
	}
	return last.Message
}
