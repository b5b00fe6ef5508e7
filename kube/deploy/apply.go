package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"culvert/kube/join"
	"culvert/kube/manifests"
	"culvert/kube/peering"
)

// Survey reads what a cluster's objects say about its addresses.
func (c *Cluster) Survey(ctx context.Context) (*join.Survey, error) {
	s := &join.Survey{}
	if err := c.each(ctx, nodes, "", "", s.Node); err != nil {
		return nil, err
	}
	if err := c.each(ctx, pods, "", "", s.Pod); err != nil {
		return nil, err
	}
	if err := c.each(ctx, services, "", "", s.Service); err != nil {
		return nil, err
	}
	if err := c.each(ctx, cidrs, "", "", s.ServiceCIDR); err != nil {
		return nil, err
	}
	if err := c.each(ctx, pools, "", "", s.IPPool); err != nil {
		return nil, err
	}
	if err := c.each(ctx, peerings, peering.GatewayNamespace, "", s.Peering); err != nil {
		return nil, err
	}
	return s, nil
}

// Installed returns what is installed in a cluster: the image of its agents ("" if there are none), and about a Peering's gateway the type of its
// Service, its number of pods (0 if there is no gateway), and whether it has rights in imports, the namespace for the peer's exports.
func (c *Cluster) Installed(ctx context.Context, name, imports string) (*manifests.Gateway, error) {
	i := &manifests.Gateway{Peering: name}
	u, err := c.client.Resource(daemonSets).Namespace(peering.NodeNamespace).Get(ctx, "culvert-node", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get DaemonSet culvert-node: %w", err)
	}
	if err == nil {
		if all, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers"); len(all) > 0 {
			first, _ := all[0].(map[string]any)
			i.Image, _ = first["image"].(string)
		}
	}
	s, err := c.client.Resource(services).Namespace(peering.GatewayNamespace).Get(ctx, "culvert-"+name, metav1.GetOptions{})
	if err == nil {
		i.Expose, _, _ = unstructured.NestedString(s.Object, "spec", "type")
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Service culvert-%s: %w", name, err)
	}
	d, err := c.client.Resource(deployments).Namespace(peering.GatewayNamespace).Get(ctx, "culvert-"+name, metav1.GetOptions{})
	if err == nil {
		n, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas")
		i.Replicas = int(n)
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Deployment culvert-%s: %w", name, err)
	}
	if imports == "" {
		return i, nil
	}
	if _, err = c.client.Resource(roles).Namespace(imports).Get(ctx, peering.ImportRole(name), metav1.GetOptions{}); err == nil {
		i.Imports = imports
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Role %s in %s: %w", peering.ImportRole(name), imports, err)
	}
	return i, nil
}

// CanImport returns why a gateway cannot get rights in the namespace for its peer's exports.
func (c *Cluster) CanImport(ctx context.Context, g *manifests.Gateway) error {
	all, err := Parts(g)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(u *unstructured.Unstructured) bool { return u.GetNamespace() != g.Imports })
	if err := c.Allowed(ctx, rightsFor(all, "create", "patch")); err != nil {
		return err
	}
	if _, err := c.client.Resource(namespaces).Get(ctx, g.Imports, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return fmt.Errorf("--imports: there is no namespace %s; make it: kubectl create namespace %[1]s", g.Imports)
	} else if err != nil {
		return fmt.Errorf("get Namespace %s: %w", g.Imports, err)
	}
	return nil
}

// Parts returns the objects of one Peering's end, and those that every peering needs.
func Parts(g *manifests.Gateway) ([]*unstructured.Unstructured, error) {
	return Objects(manifests.Common(g.Image) + "\n---\n" + g.YAML())
}

// anyGateway has all objects that a gateway can have.
func anyGateway(name string) *manifests.Gateway {
	return &manifests.Gateway{Peering: name, Image: manifests.Image, Expose: "NodePort", Replicas: 2}
}

// InstallRights returns the rights that Install and ApplyPeering need.
func InstallRights() []Right {
	all, err := Parts(anyGateway("any"))
	if err != nil {
		panic(err) // the manifests are our own
	}
	rights := append(rightsFor(all, "create", "patch"), rightsFor([]*unstructured.Unstructured{newPeering("any", nil, nil)}, "get", "list", "create", "update")...)
	for _, r := range []string{"nodes", "pods", "services"} {
		rights = append(rights, Right{"list", "", r, ""})
	}
	return append(rights, Right{"get", "", "namespaces", ""}, Right{"get", "", "secrets", peering.GatewayNamespace}, // its annotations
		Right{"get", "apps", "deployments", peering.GatewayNamespace}, Right{"get", "apps", "daemonsets", peering.NodeNamespace})
}

// A Plan is what Install does in a cluster.
type Plan struct {
	Owner string   // who else installs culvert there, such as Helm: nothing of theirs is changed, and nothing is added; "" = nobody
	Kept  []string // labels of others, which stay
	all   []*unstructured.Unstructured
	g     *manifests.Gateway
}

// Rehearse plans what Install and ApplyPeering are to do, and has the API server check all of it, without any change. Objects in a namespace that is
// not there yet, and of a kind that is not there yet, are checked only here.
func (c *Cluster) Rehearse(ctx context.Context, g *manifests.Gateway, spec *peering.Spec, notes map[string]string) (*Plan, error) {
	all, err := Parts(g)
	if err != nil {
		return nil, err
	}
	p := &Plan{g: g, all: all}
	dry := []string{metav1.DryRunAll}
	for _, u := range all {
		if u.GetKind() == "Namespace" {
			if err := c.keepLevel(ctx, u, p); err != nil {
				return nil, err
			}
		}
		stored, err := c.of(u).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true, DryRun: dry})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("apply %s: %w", nameOf(u), err)
		}
		if err == nil {
			p.Owner = cmp.Or(p.Owner, ownerOf(stored))
		}
	}
	if p.Owner != "" {
		p.all = nil
	}
	wants := *spec
	if wants.Role == "Client" && wants.Endpoint == "" {
		wants.Endpoint = "192.0.2.1:51840" // the Server does not have one yet
	}
	u := newPeering(spec.Peer, &wants, notes)
	if fault := peering.PeeringOf(u).Fault(); fault != "" {
		return nil, fmt.Errorf("%s: %s", nameOf(u), fault)
	}
	if err := c.replace(ctx, u, dry); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("apply %s: %w", nameOf(u), err)
	}
	return p, nil
}

// levelLabel is the label of a namespace that says which pods its Pod Security lets in.
const levelLabel = "pod-security.kubernetes.io/enforce"

// keepLevel leaves out the Pod Security level of a namespace that has another one, if our pods fit in.
func (c *Cluster) keepLevel(ctx context.Context, u *unstructured.Unstructured, p *Plan) error {
	stored, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", nameOf(u), err)
	}
	have, want := stored.GetLabels()[levelLabel], u.GetLabels()[levelLabel]
	switch {
	case have == "" || have == want:
	case want == "privileged":
		return fmt.Errorf("namespace %s has the label %s=%s, which keeps out the agents, and somebody else has set it; if they may run there: kubectl label --overwrite namespace %[1]s %[2]s=%s",
			u.GetName(), levelLabel, have, want)
	default:
		p.Kept = append(p.Kept, fmt.Sprintf("%s=%s of namespace %s", levelLabel, have, u.GetName()))
		u.SetLabels(nil)
	}
	return nil
}

// Install creates or updates everything that runs for a Peering. Objects that are already right are not changed.
func (c *Cluster) Install(ctx context.Context, p *Plan) error {
	for _, u := range p.all {
		if u.GetKind() == "Deployment" {
			if err := c.elected(ctx, u); err != nil {
				return err
			}
		}
		if err := c.apply(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

// elected prepares for a gateway's Deployment one of an older version, whose pods do not elect the one that forwards: beside one of them, a pod that
// elects would take turns with it. So the old ones end first.
func (c *Cluster) elected(ctx context.Context, next *unstructured.Unstructured) error {
	of := c.of(next)
	old, err := of.Get(ctx, next.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", nameOf(next), err)
	}
	if elects(old) {
		return nil
	}
	if _, err := of.Patch(ctx, next.GetName(), types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{FieldManager: manager}); err != nil {
		return fmt.Errorf("scale %s to 0, because its pods do not elect: %w", nameOf(next), err)
	}
	labels := gatewayLabels(strings.TrimPrefix(next.GetName(), "culvert-"))
	return Await(ctx, func(string) {}, func(ctx context.Context) (missing string, err error) {
		err = c.each(ctx, pods, next.GetNamespace(), labels, func(u *unstructured.Unstructured) { missing = nameOf(u) + ", of an older version, is ending" })
		return missing, err
	})
}

func elects(d *unstructured.Unstructured) bool {
	all, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
	return slices.ContainsFunc(all, func(one any) bool {
		container, _ := one.(map[string]any)
		args, _ := container["args"].([]any)
		return slices.Contains(args, any("--leader-election"))
	})
}

// applyPause is the wait before another attempt, after a kind or a namespace was created.
const applyPause = 200 * time.Millisecond

// apply creates or changes an object.
func (c *Cluster) apply(ctx context.Context, u *unstructured.Unstructured) error {
	return c.again(ctx, u, func() error {
		_, err := c.of(u).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
		return err
	})
}

// again calls f for an object until that succeeds. A new kind takes some time to become usable, and somebody else may write an object meanwhile.
func (c *Cluster) again(ctx context.Context, u *unstructured.Unstructured, f func() error) error {
	for {
		err := f()
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return errInterrupted
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("apply %s: %w", nameOf(u), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply %s: %w", nameOf(u), err)
		case <-time.After(applyPause):
		}
	}
}

// newPeering returns a Peering with annotations.
func newPeering(name string, spec *peering.Spec, notes map[string]string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": peering.Group + "/" + peering.Version, "kind": peering.KindPeering,
		"metadata": map[string]any{"name": name, "namespace": peering.GatewayNamespace},
	}}
	if len(notes) > 0 {
		u.SetAnnotations(notes)
	}
	if spec != nil {
		if part, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec); err == nil {
			u.Object["spec"] = part
		}
	}
	return u
}

// ApplyPeering creates a Peering, or makes its spec exactly this one. Server-side apply would leave fields that another manager has set, such as a
// remap beside another CIDR.
func (c *Cluster) ApplyPeering(ctx context.Context, spec *peering.Spec, notes map[string]string) error {
	u := newPeering(spec.Peer, spec, notes)
	return c.again(ctx, u, func() error { return c.replace(ctx, u, nil) })
}

// replace creates an object, or replaces the spec of the one that is there and adds the annotations.
func (c *Cluster) replace(ctx context.Context, u *unstructured.Unstructured, dryRun []string) error {
	old, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.of(u).Create(ctx, u, metav1.CreateOptions{FieldManager: manager, DryRun: dryRun})
		return err
	}
	if err != nil {
		return err
	}
	if owner := ownerOf(old); owner != "" {
		var have, want struct{ Spec peering.Spec }
		if err := errors.Join(read(old, &have), read(u, &want)); err != nil || reflect.DeepEqual(have, want) {
			return err
		}
		text, err := json.Marshal(want.Spec)
		return cmp.Or(err, fmt.Errorf("%s has made it, and would undo a change; change its spec there to %s", owner, text))
	}
	next := old.DeepCopy()
	next.Object["spec"] = u.Object["spec"]
	notes := maps.Clone(old.GetAnnotations())
	if notes == nil {
		notes = map[string]string{}
	}
	maps.Copy(notes, u.GetAnnotations())
	next.SetAnnotations(notes)
	_, err = c.of(u).Update(ctx, next, metav1.UpdateOptions{FieldManager: manager, DryRun: dryRun})
	return err
}

// Status returns the status of a Peering. Conditions of an earlier spec are left out, because they say nothing about this one.
func (c *Cluster) Status(ctx context.Context, name string) (*peering.Status, error) {
	u, err := c.client.Resource(peerings).Namespace(peering.GatewayNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get Peering %s: %w", name, err)
	}
	p := peering.PeeringOf(u)
	for _, c := range p.Status.Conditions {
		if c.Observed != p.Generation && (c.Type == peering.Accepted || c.Type == peering.NodesReady || c.Type == peering.Connected) {
			p.Status.Conditions, p.Status.Message = nil, "the gateway has not read the Peering as it is now"
			break
		}
	}
	return &p.Status, nil
}

// Endpoint returns the address of a Peering's gateway: that of its Service's load balancer, or a
// node's address and the node port. Until there is one, missing says what it waits for.
func (c *Cluster) Endpoint(ctx context.Context, name string, node netip.Addr) (endpoint, missing string, err error) {
	u, err := c.client.Resource(services).Namespace(peering.GatewayNamespace).Get(ctx, "culvert-"+name, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("get Service culvert-%s: %w", name, err)
	}
	var s struct {
		Spec struct {
			Type  string
			Ports []struct{ Port, NodePort int }
		}
		Status struct {
			LoadBalancer struct {
				Ingress []struct{ IP, Hostname string }
			}
		}
	}
	if err := read(u, &s); err != nil {
		return "", "", fmt.Errorf("read Service culvert-%s: %w", name, err)
	}
	if len(s.Spec.Ports) == 0 {
		return "", "a port of Service culvert-" + name, nil
	}
	port := s.Spec.Ports[0]
	switch {
	case s.Spec.Type == "LoadBalancer" && len(s.Status.LoadBalancer.Ingress) > 0:
		in := s.Status.LoadBalancer.Ingress[0]
		return net.JoinHostPort(cmp.Or(in.IP, in.Hostname), fmt.Sprint(port.Port)), "", nil
	case s.Spec.Type == "LoadBalancer":
		return "", fmt.Sprintf("a load balancer's address for Service culvert-%s; or give --expose NodePort", name), nil
	case s.Spec.Type == "NodePort" && port.NodePort != 0 && node.IsValid():
		return net.JoinHostPort(node.String(), fmt.Sprint(port.NodePort)), "", nil
	case s.Spec.Type == "NodePort":
		return "", "a node port of Service culvert-" + name + ", or a Node with an address", nil
	}
	return "", fmt.Sprintf("an address: Service culvert-%s is a %s; give --endpoint", name, s.Spec.Type), nil
}
