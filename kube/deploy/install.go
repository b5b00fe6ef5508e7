package deploy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"culvert/kube/join/terms"
	"culvert/kube/manifests"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// InstallRights returns the rights that Install and ApplyPeering need.
func InstallRights() []Right {
	all, err := Parts(anyGateway("any"))
	if err != nil {
		panic(err) // the manifests are our own
	}
	rights := append(rightsFor(all, "create", "patch"),
		rightsFor([]*unstructured.Unstructured{newPeering("any", nil, nil)}, "get", "list", "create", "update")...)
	for _, r := range []string{"nodes", "pods", "services"} {
		rights = append(rights, Right{"list", "", r, ""})
	}
	// its annotations
	return append(rights, Right{"get", "", "namespaces", ""},
		Right{"get", "", "configmaps", peering.GatewayNamespace}, Right{"get", "", "secrets", peering.GatewayNamespace},
		Right{"get", "apps", "deployments", peering.GatewayNamespace}, Right{"get", "apps", "daemonsets",
			peering.NodeNamespace})
}

// Parts returns the objects of one Peering's end, and those that every peering needs.
func Parts(g *manifests.Gateway) ([]*unstructured.Unstructured, error) {
	values := g.Values
	if g.Multicluster {
		values = values.WithMulticluster()
	}
	all, err := Objects(manifests.Common(g.Image, values) + "\n---\n" + g.YAML())
	if g.Values != nil {
		all = append(all, newValues(g.Values.Text()))
	}
	return all, err
}

// valuesField is the field of the ConfigMap culvert-values with the values by which culvert was
// installed. Who installs again without a file of values means the same ones.
const valuesField = "values.yaml"

func newValues(text string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "culvert-values", "namespace": peering.GatewayNamespace},
		"data":     map[string]any{valuesField: text}}}
}

// anyGateway has all objects that a gateway can have.
func anyGateway(name string) *manifests.Gateway {
	return &manifests.Gateway{Peering: name, Image: manifests.Image, Expose: "NodePort", Replicas: 2}
}

// A Plan is what Install does in a cluster.
type Plan struct {
	// who else installs culvert there, such as Helm: nothing of theirs is changed, and nothing is
	// added; "" = nobody
	Owner   string
	Kept    []terms.Line // what others have made or set, which stays
	all     []*unstructured.Unstructured
	surplus []*unstructured.Unstructured // what earlier values have switched on, and these have not
	// of surplus, culvert multicluster, which goes once no Peering needs it
	unshared []*unstructured.Unstructured
	g        *manifests.Gateway
}

// lacksKind reports whether the cluster does not know the kind of an object that others bring.
func (c *Cluster) lacksKind(ctx context.Context, u *unstructured.Unstructured) bool {
	if u.GroupVersionKind().Group != "monitoring.coreos.com" {
		return false // ours is installed first
	}
	_, err := c.of(u).List(ctx, metav1.ListOptions{Limit: 1})
	return apierrors.IsNotFound(err)
}

// surplus returns the objects that values can switch on and these do not, as far as Install has
// made them. What the user may not see, Install has not made.
func (c *Cluster) surplus(ctx context.Context, g *manifests.Gateway, wanted []*unstructured.Unstructured) (
	left []*unstructured.Unstructured) {
	full := *g
	full.Values = manifests.Everything()
	all, err := Parts(&full)
	if err != nil {
		panic(err) // the manifests are our own
	}
	for _, u := range all {
		same := func(w *unstructured.Unstructured) bool { return nameOf(w) == nameOf(u) }
		if slices.ContainsFunc(wanted, same) || same(newValues("")) {
			continue
		}
		stored, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
		if err == nil && applied(stored) {
			left = append(left, u)
		}
	}
	return left
}

// Rehearse plans what Install and ApplyPeering are to do, and has the API server check all of it,
// without any change. Objects in a namespace that is not there yet, and of a kind that is not there
// yet, are checked only here.
func (c *Cluster) Rehearse(ctx context.Context, g *manifests.Gateway, spec *peering.Spec, notes map[string]string) (
	*Plan, error) {
	all, err := Parts(g)
	if err != nil {
		return nil, err
	}
	p := &Plan{g: g}
	if g.Multicluster {
		if p.all, err = c.serviceKinds(ctx, p); err != nil {
			return nil, err
		}
	}
	kinds := len(p.all)
	p.all = append(p.all, all...)
	dry := []string{metav1.DryRunAll}
	for _, u := range p.all {
		if u.GetKind() == "Namespace" {
			if err := c.keepLevel(ctx, u, p); err != nil {
				return nil, err
			}
		}
		stored, err := c.once("dry run", u, func() (*unstructured.Unstructured, error) {
			return c.of(u).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true,
				DryRun: dry})
		})
		if apierrors.IsNotFound(err) && c.lacksKind(ctx, u) {
			return nil, fmt.Errorf("--values: the cluster has no kind %s; install the operator that brings it, or "+
				"leave %s out", u.GetKind(), nameOf(u))
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, refused(u, err)
		}
		if err == nil {
			p.Owner = cmp.Or(p.Owner, ownerOf(stored))
		}
	}
	if p.Owner != "" {
		if kinds > 0 {
			p.Kept = append(p.Kept, terms.Line{What: "missing", Value: "ServiceExport and ServiceImport",
				Source: "make these kinds: culvert multicluster crds | kubectl apply -f -"})
		}
		p.all = nil
	} else {
		for _, u := range c.surplus(ctx, g, all) {
			if u.GetName() == multicluster {
				p.unshared = append(p.unshared, u)
			} else {
				p.surplus = append(p.surplus, u)
			}
		}
	}
	wants := *spec
	if wants.Role == "Client" && wants.Endpoint == "" {
		wants.Endpoint = "192.0.2.1:51840" // the Server does not have one yet
	}
	u := newPeering(spec.Peer, &wants, notes)
	if fault := peering.PeeringOf(u).Fault(); fault != "" {
		return nil, fmt.Errorf("%s: %s", nameOf(u), fault)
	}
	// the gateway writes the status of a Peering that is there
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { return c.replace(ctx, u, dry) })
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("apply %s: %w", nameOf(u), err)
	}
	return p, nil
}

// refused is the error for an object that the API server does not take.
func refused(u *unstructured.Unstructured, err error) error {
	if apierrors.IsForbidden(err) && u.GetName() == multicluster {
		return fmt.Errorf("--services: culvert multicluster needs rights that you have not and so may not give; ask an "+
			"administrator of the cluster: apply %s: %w", nameOf(u), err)
	}
	return fmt.Errorf("apply %s: %w", nameOf(u), err)
}

// levelLabel is the label of a namespace that says which pods its Pod Security lets in.
const levelLabel = "pod-security.kubernetes.io/enforce"

// keepLevel leaves out the Pod Security level of a namespace that has another one, if our pods fit
// in.
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
		p.Kept = append(p.Kept, terms.Line{What: "stays", Value: fmt.Sprintf("%s=%s of namespace %s", levelLabel, have,
			u.GetName()), Source: "somebody else has set it, and gateways fit in"})
		u.SetLabels(nil)
	}
	return nil
}

// Install creates or updates everything that runs for a Peering. Objects that are already right are
// not changed.
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
	return c.remove(ctx, p.surplus, func(string) {})
}

// elected prepares for a gateway's Deployment one of an older version, whose pods do not elect the
// one that forwards: beside one of them, a pod that elects would take turns with it. So the old
// ones end first.
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
	if err := c.scaleTo0(ctx, next); err != nil {
		return err
	}
	labels := gatewayLabels(strings.TrimPrefix(next.GetName(), "culvert-"))
	return Await(ctx, func(string) {}, func(ctx context.Context) (missing string, err error) {
		err = c.each(ctx, objects.Pods, next.GetNamespace(), labels, func(u *unstructured.Unstructured) {
			missing = nameOf(u) + ", of an older version, is ending"
		})
		return missing, err
	})
}

// scaleTo0 lets the pods of a Deployment end.
func (c *Cluster) scaleTo0(ctx context.Context, u *unstructured.Unstructured) error {
	if _, err := c.of(u).Patch(ctx, u.GetName(), types.MergePatchType, []byte(`{"spec":{"replicas":0}}`),
		metav1.PatchOptions{FieldManager: manager}); err != nil {
		return fmt.Errorf("scale %s to 0: %w", nameOf(u), err)
	}
	return nil
}

func elects(d *unstructured.Unstructured) bool {
	return slices.ContainsFunc(objects.ReadContainers(objects.Of(d.GetKind(), d)), func(c objects.Container) bool {
		return slices.Contains(c.Args, "--leader-election")
	})
}
