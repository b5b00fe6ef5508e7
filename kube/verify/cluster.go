package verify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"culvert/kube"
	"culvert/kube/mcs"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// A Cluster is a cluster that Run reads and in which it runs its pods.
type Cluster interface {
	// Missing returns the rights that the user needs and lacks, if the pods run in namespace.
	Missing(ctx context.Context, namespace string) ([]string, error)
	// Read returns what the cluster says about itself.
	Read(ctx context.Context) (*Snapshot, error)
	// Begin creates the namespace of the pods, and removes the namespaces that killed runs left
	// behind.
	Begin(ctx context.Context, namespace string) (removed []string, err error)
	// Create creates objects in the namespace, and returns them as the API server has stored them.
	Create(ctx context.Context, namespace string, objects ...map[string]any) ([]map[string]any, error)
	// Pods returns the pods of the namespace.
	Pods(ctx context.Context, namespace string) ([]Pod, error)
	// ClusterIP returns the address of a Service; invalid: there is no such Service.
	ClusterIP(ctx context.Context, namespace, name string) (netip.Addr, error)
	// Forget removes an imported Service whose endpoints have gone. gone: there is none, or none
	// any more.
	Forget(ctx context.Context, namespace, name string) (gone bool, err error)
	// End removes the namespace with all its content, and returns when it is gone.
	End(ctx context.Context, namespace string) error
}

const (
	// maxRun is the maximum duration of a run. An older namespace was left behind by another run.
	maxRun = 10 * time.Minute
	// maxEnd is the maximum duration of the removal.
	maxEnd = time.Minute
	// look is how often Run checks what it waits for.
	look = 200 * time.Millisecond
	// runLabel is the label of each namespace that a run creates.
	runLabel = "culvert.io/verify"
)

// A right is a permission that the user needs.
type right struct{ group, resource, verb, namespace string }

// own stands for the namespace of the pods.
const own = "*"

var rights = []right{
	{"", "nodes", "list", ""},
	{"", "namespaces", "list", ""}, {"", "namespaces", "create", ""}, {"", "namespaces", "delete", ""},
	{peering.Group, "peerings", "list", peering.GatewayNamespace},
	{"apps", "deployments", "list", peering.GatewayNamespace},
	{"", "pods", "list", peering.GatewayNamespace},
	{"networking.k8s.io", "networkpolicies", "list", peering.GatewayNamespace},
	{"", "events", "list", peering.GatewayNamespace},
	{peering.Group, "tunnelnodes", "list", peering.NodeNamespace},
	{"", "pods", "list", peering.NodeNamespace},
	{"", "events", "list", peering.NodeNamespace},
	{"", "pods", "list", own}, {"", "pods", "create", own},
	{"", "services", "create", own},
	{"discovery.k8s.io", "endpointslices", "create", own},
}

// api is a Cluster reached by its API server.
type api struct{ client dynamic.Interface }

// NewCluster returns the Cluster of a client.
func NewCluster(client dynamic.Interface) Cluster { return api{client} }

func (c api) Missing(ctx context.Context, namespace string) (all []string, err error) {
	for _, r := range rights {
		if r.namespace == own {
			r.namespace = namespace
		}
		review, err := c.client.Resource(objects.Reviews).Create(ctx,
			&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
				"spec": map[string]any{"resourceAttributes": map[string]any{"group": r.group, "resource": r.resource,
					"verb": r.verb, "namespace": r.namespace}},
			}}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask for your rights: %w", err)
		}
		if may, _, _ := unstructured.NestedBool(review.Object, "status", "allowed"); !may {
			all = append(all, r.text(namespace))
		}
	}
	return all, nil
}

func (r right) text(own string) string {
	resource := r.resource
	if r.group != "" {
		resource += "." + r.group
	}
	switch r.namespace {
	case "":
		return r.verb + " " + resource
	case own:
		return fmt.Sprintf("%s %s in namespaces that it makes", r.verb, resource)
	}
	return fmt.Sprintf("%s %s in namespace %s", r.verb, resource, r.namespace)
}

// list calls each with the objects of a resource. One that the cluster lacks has no objects.
func (c api) list(ctx context.Context, r schema.GroupVersionResource, namespace string, o metav1.ListOptions,
	each func(*unstructured.Unstructured) error) error {
	err := kube.Each(ctx, c.client.Resource(r).Namespace(namespace), o,
		func(u *unstructured.Unstructured) error {
			if err := each(u); err != nil {
				return fmt.Errorf("%s: %w", u.GetName(), err)
			}
			return nil
		})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("list %s: %w", r.Resource, err)
	}
	return nil
}

// into returns a function that reads objects and appends them to a list.
func into[V any](all *[]V, read func(*unstructured.Unstructured) (V, error)) func(*unstructured.Unstructured) error {
	return func(u *unstructured.Unstructured) error {
		v, err := read(u)
		*all = append(*all, v)
		return err
	}
}

func (c api) Read(ctx context.Context) (*Snapshot, error) {
	s := &Snapshot{}
	gateways, nodes := peering.GatewayNamespace, peering.NodeNamespace
	everything, warnings := metav1.ListOptions{}, metav1.ListOptions{FieldSelector: "type=Warning"}
	return s, errors.Join(
		c.list(ctx, objects.Peerings, gateways, everything, into(&s.Peerings, readPeering)),
		c.readImports(ctx, s),
		c.list(ctx, objects.Nodes, "", everything, into(&s.Nodes, readNode)),
		c.list(ctx, objects.TunnelNodes, nodes, everything, into(&s.Tunnels, readTunnel)),
		c.list(ctx, objects.Deployments, gateways, everything, into(&s.Deployments, readDeployment)),
		c.list(ctx, objects.Pods, gateways, metav1.ListOptions{LabelSelector: peeringLabel},
			into(&s.Gateways, readPod)),
		c.list(ctx, objects.Pods, nodes, metav1.ListOptions{LabelSelector: "app=culvert-node"},
			into(&s.Agents, readPod)),
		c.list(ctx, objects.NetworkPolicies, gateways, everything, into(&s.Policies, readPolicy)),
		c.list(ctx, objects.Events, gateways, warnings, into(&s.Warnings, readWarning)),
		c.list(ctx, objects.Events, nodes, warnings, into(&s.Warnings, readWarning)),
	)
}

// readImports reads what verify needs to judge names, if a Peering imports Services. Who lacks the
// rights is told, and can verify all else.
func (c api) readImports(ctx context.Context, s *Snapshot) error {
	if !slices.ContainsFunc(s.Peerings, func(p *peering.Peering) bool { return len(p.Services.Import) > 0 }) {
		return nil
	}
	if u, err := c.client.Resource(objects.ConfigMaps).Namespace("kube-system").Get(ctx, "coredns",
		metav1.GetOptions{}); err == nil {
		s.Corefile, _, _ = unstructured.NestedString(u.Object, "data", "Corefile")
	}
	err := kube.Each(ctx, c.client.Resource(objects.ServiceImports),
		metav1.ListOptions{LabelSelector: mcs.LabelManaged}, into(&s.Imports, readImport))
	switch {
	case apierrors.IsNotFound(err):
		s.NoImports = noKind
	case apierrors.IsForbidden(err):
		s.NoImports = "you may not list serviceimports." + objects.ServiceImports.Group
	case err != nil:
		return fmt.Errorf("list %s: %w", objects.ServiceImports.Resource, err)
	}
	return nil
}

// runs selects the namespaces of all runs.
var runs = metav1.ListOptions{LabelSelector: runLabel}

func (c api) Begin(ctx context.Context, namespace string) (removed []string, err error) {
	spaces := c.client.Resource(objects.Namespaces)
	made, err := spaces.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": namespace, "labels": map[string]any{runLabel: "run",
			"pod-security.kubernetes.io/enforce": "restricted"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	now := made.GetCreationTimestamp().Time // by the API server's clock, like the other namespaces' times
	err = c.list(ctx, objects.Namespaces, "", runs, func(u *unstructured.Unstructured) error {
		if u.GetName() == namespace || u.GetDeletionTimestamp() != nil ||
			now.Sub(u.GetCreationTimestamp().Time) < maxRun {
			return nil
		}
		removed = append(removed, u.GetName())
		err := spaces.Delete(ctx, u.GetName(), metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return removed, err
}

func (c api) Create(ctx context.Context, namespace string, list ...map[string]any) (all []map[string]any,
	err error) {
	for _, o := range list {
		of := unstructured.Unstructured{Object: o}
		client := c.client.Resource(objects.Resource(of.GetAPIVersion(), of.GetKind())).Namespace(namespace)
		for {
			u, err := client.Create(ctx, &of, metav1.CreateOptions{})
			if err == nil {
				all = append(all, u.Object)
				break
			}
			// The namespace's ServiceAccount is created some time after the namespace.
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "serviceaccount") {
				return all, err
			}
			select {
			case <-ctx.Done():
				return all, err
			case <-time.After(look):
			}
		}
	}
	return all, nil
}

func (c api) Pods(ctx context.Context, namespace string) (all []Pod, err error) {
	return all, c.list(ctx, objects.Pods, namespace, metav1.ListOptions{}, into(&all, readPod))
}

func (c api) ClusterIP(ctx context.Context, namespace, name string) (netip.Addr, error) {
	u, err := c.client.Resource(objects.Services).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return netip.Addr{}, nil
	}
	if err != nil {
		return netip.Addr{}, err
	}
	read, fault := objects.ReadService(objects.Of("Service", u))
	a, _ := netip.ParseAddr(read.Spec.ClusterIP)
	return a, errorOf(fault)
}

func (c api) Forget(ctx context.Context, namespace, name string) (gone bool, err error) {
	var left int
	err = c.list(ctx, objects.EndpointSlices, namespace,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + name},
		func(*unstructured.Unstructured) error {
			left++
			return nil
		})
	if err != nil || left > 0 {
		return false, err
	}
	err = c.client.Resource(objects.Services).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return err == nil, err
}

func (c api) End(ctx context.Context, namespace string) error {
	err := c.client.Resource(objects.Namespaces).Delete(ctx, namespace, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	for err == nil {
		var left []string
		err = c.list(ctx, objects.Namespaces, "", runs, func(u *unstructured.Unstructured) error {
			left = append(left, u.GetName())
			return nil
		})
		if err == nil && !slices.Contains(left, namespace) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("namespace %s is still being removed", namespace)
		case <-time.After(look):
		}
	}
	return err
}
