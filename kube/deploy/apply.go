package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

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
	rights := append(rightsFor(all, "create", "patch"), rightsFor([]*unstructured.Unstructured{newPeering("any", nil, "")}, "get", "list", "create", "patch")...)
	for _, r := range []string{"nodes", "pods", "services"} {
		rights = append(rights, Right{"list", "", r, ""})
	}
	return append(rights, Right{"delete", "policy", "poddisruptionbudgets", peering.GatewayNamespace})
}

// Install creates or updates everything that runs for a Peering. Objects that are already right are not changed.
func (c *Cluster) Install(ctx context.Context, g *manifests.Gateway) error {
	all, err := Parts(g)
	if err != nil {
		return err
	}
	for _, u := range all {
		if err := c.apply(ctx, u); err != nil {
			return err
		}
	}
	if g.Replicas > 1 {
		return nil
	}
	err = c.client.Resource(budgets).Namespace(peering.GatewayNamespace).Delete(ctx, "culvert-"+g.Peering, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // it exists if there were several pods before
		return fmt.Errorf("delete PodDisruptionBudget culvert-%s: %w", g.Peering, err)
	}
	return nil
}

// applyPause is the wait before another attempt, after a kind or a namespace was created.
const applyPause = 200 * time.Millisecond

// apply creates or changes an object. A new kind takes some time to become usable.
func (c *Cluster) apply(ctx context.Context, u *unstructured.Unstructured) error {
	for {
		_, err := c.of(u).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return errInterrupted
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTooManyRequests(err) {
			return fmt.Errorf("apply %s: %w", nameOf(u), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply %s: %w", nameOf(u), err)
		case <-time.After(applyPause):
		}
	}
}

// newPeering returns a Peering; nonce is that of our invitation, if any.
func newPeering(name string, spec *peering.Spec, nonce string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": peering.Group + "/" + peering.Version, "kind": peering.KindPeering,
		"metadata": map[string]any{"name": name, "namespace": peering.GatewayNamespace},
	}}
	if nonce != "" {
		u.SetAnnotations(map[string]string{join.Annotation: nonce})
	}
	if spec != nil {
		if part, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec); err == nil {
			u.Object["spec"] = part
		}
	}
	return u
}

// ApplyPeering creates or changes a Peering.
func (c *Cluster) ApplyPeering(ctx context.Context, spec *peering.Spec, nonce string) error {
	return c.apply(ctx, newPeering(spec.Peer, spec, nonce))
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

// Trouble says, from the cluster's objects, why pods of a Peering's gateway or of agents do not
// run; "" if they do.
func (c *Cluster) Trouble(ctx context.Context, name string) string {
	why := ""
	for _, of := range []struct{ namespace, labels string }{
		{peering.GatewayNamespace, "app=culvert-gateway,culvert.io/peering=" + name}, {peering.NodeNamespace, "app=culvert-node"},
	} {
		none := true
		c.each(ctx, pods, of.namespace, of.labels, func(u *unstructured.Unstructured) {
			none = false
			if text := podTrouble(u); text != "" && why == "" {
				why = fmt.Sprintf("pod %s/%s: %s", of.namespace, u.GetName(), text)
			}
		})
		if none && why == "" {
			why = "there is no pod in " + of.namespace + " yet"
		}
	}
	return why
}

// podTrouble returns why a pod is not ready; "" if it is.
func podTrouble(u *unstructured.Unstructured) string {
	var s struct {
		Status struct {
			Phase      string
			Conditions []struct{ Type, Status, Reason, Message string }
			Containers []struct {
				State struct {
					Waiting *struct{ Reason, Message string }
				}
			} `json:"containerStatuses"`
		}
	}
	if read(u, &s) != nil {
		return ""
	}
	for _, c := range s.Status.Containers {
		if w := c.State.Waiting; w != nil {
			return sentence(w.Reason, w.Message)
		}
	}
	for _, c := range s.Status.Conditions {
		if c.Status != "True" && (c.Type == "PodScheduled" || c.Type == "Ready") && c.Message != "" {
			return sentence(c.Reason, c.Message)
		}
	}
	return ""
}

// read reads an object into a struct.
func read(u *unstructured.Unstructured, to any) error {
	text, err := json.Marshal(u.Object)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

func sentence(reason, message string) string {
	if message == "" {
		return reason
	}
	return reason + ": " + message
}
