package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"culvert/kube/manifests"
	"culvert/kube/mcs"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// LeaveRights returns the rights that Leave and LeaveAll need.
func LeaveRights() []Right {
	all, err := Parts(anyGateway("any"))
	if err != nil {
		panic(err) // the manifests are our own
	}
	rights := rightsFor(append(all, newPeering("any", nil, nil), newLease("any")), "get", "delete")
	for _, verb := range []string{"get", "delete"} {
		r := objects.NetworkPolicies // which values may have switched on
		rights = append(rights, Right{verb, r.Group, r.Resource, peering.GatewayNamespace})
	}
	// of imports, in any namespace
	for _, r := range []schema.GroupVersionResource{objects.Services, objects.EndpointSlices, objects.Roles,
		objects.RoleBindings} {
		for _, verb := range []string{"list", "get", "delete"} {
			rights = append(rights, Right{verb, r.Group, r.Resource, ""})
		}
	}
	return append(rights, Right{"list", "", "nodes", ""}, Right{"list", peering.Group, "peerings",
		peering.GatewayNamespace}, Right{"list", peering.Group, "tunnelnodes", peering.NodeNamespace},
		Right{"list", "", "pods", peering.NodeNamespace}, Right{"list", "", "pods", peering.GatewayNamespace},
		Right{"list", "rbac.authorization.k8s.io", "clusterrolebindings", ""})
}

// Leave removes a Peering, waits until no node has any remains of it, and removes its gateway.
func (c *Cluster) Leave(ctx context.Context, name string, say func(string)) error {
	var imports []string // the namespace that the Peering names; an interrupted removal has left no Peering
	if err := c.each(ctx, objects.Peerings, peering.GatewayNamespace, "", func(u *unstructured.Unstructured) {
		if to, _, _ := unstructured.NestedString(u.Object, "spec", "imports"); u.GetName() == name {
			imports = append(imports, to)
		}
	}); err != nil {
		return err
	}
	c.owner = ""
	had, err := c.uncleaned(ctx, name, nil)
	if err == nil {
		err = c.checkAgents(ctx)
	}
	if err == nil {
		err = c.remove(ctx, []*unstructured.Unstructured{newPeering(name, nil, nil)}, say)
	}
	if err == nil && c.owner != "" {
		err = fmt.Errorf("%s has made Peering %s, and would make it again; remove it there first", c.owner, name)
	}
	if err != nil {
		return err
	}
	if err := c.awaitClean(ctx, name, had, say); err != nil {
		return err
	}
	g := anyGateway(name)
	g.Values = manifests.Everything()
	all, err := Objects(g.YAML())
	if err != nil {
		return err
	}
	// The gateway goes first, because it uses its rights until it ends.
	gateway := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool { return u.GetKind() == "Deployment" })
	if err := c.remove(ctx, all[gateway:gateway+1], say); err != nil {
		return err
	}
	if c.owner == "" {
		if err := c.awaitEnd(ctx, name, say); err != nil {
			return err
		}
	}
	// The binding goes last: Peerings uses it to find what an interrupted removal has left.
	binding := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool {
		return u.GetKind() == "ClusterRoleBinding"
	})
	rest := slices.Delete(slices.Clone(all), binding, binding+1)
	if err := c.remove(ctx, append(rest, newLease(name)), say); err != nil {
		return err
	}
	if err := c.removeImports(ctx, name, imports, say); err != nil {
		return err
	}
	return c.remove(ctx, all[binding:binding+1], say)
}

// awaitEnd waits until the pods of a Peering's gateway have ended, or should have: nobody ends
// those of a lost node.
func (c *Cluster) awaitEnd(ctx context.Context, name string, say func(string)) error {
	return Await(ctx, say, func(ctx context.Context) (missing string, err error) {
		labels := gatewayLabels(name)
		err = c.each(ctx, objects.Pods, peering.GatewayNamespace, labels, func(u *unstructured.Unstructured) {
			if late := u.GetDeletionTimestamp(); late == nil || time.Now().Before(late.Time) {
				missing = nameOf(u) + " is ending"
			}
		})
		return missing, err
	})
}

// awaitClean waits until nothing of a Peering is left on nodes. had are those that had something of
// it.
func (c *Cluster) awaitClean(ctx context.Context, name string, had []string, say func(string)) (err error) {
	var alone error // nobody is there who can clean
	err = Await(ctx, say, func(ctx context.Context) (string, error) {
		left, err := c.uncleaned(ctx, name, had)
		if len(left) == 0 || err != nil {
			return "", err
		}
		if there, err := c.hasAgents(ctx); there || err != nil {
			return fmt.Sprintf("the agent of node %s has not removed link, routes and exception yet; if the node is gone for good, delete its Node", left[0]), err
		}
		alone = errAlone(left)
		return "", nil
	})
	return errors.Join(err, alone)
}

// newLease returns the Lease that a gateway with several pods creates.
func newLease(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": "culvert-" + name, "namespace": peering.GatewayNamespace},
	}}
}

// removeImports removes the objects that stand for a peer's Services, and the rights to write them;
// "" means all peers. A running gateway has already removed the objects when its Peering went, and
// one without the rights creates no more. Whoever may write in a namespace can make objects that
// look like these. So nothing is waited for but what is in the namespaces that Peerings name, and
// no refusal elsewhere is in the way.
func (c *Cluster) removeImports(ctx context.Context, name string, named []string, say func(string)) error {
	right := peering.ImportRole(name)
	var of []*unstructured.Unstructured // the rights
	for _, r := range []schema.GroupVersionResource{objects.Roles, objects.RoleBindings} {
		if err := c.each(ctx, r, "", "", func(u *unstructured.Unstructured) {
			if u.GetName() == right || name == "" && strings.HasPrefix(u.GetName(), right) {
				of = append(of, u)
			}
		}); err != nil {
			return err
		}
	}
	all := slices.Clone(of) // what is removed last comes first
	for _, role := range of {
		if role.GetKind() != "Role" {
			continue
		}
		of := strings.TrimPrefix(role.GetName(), peering.ImportRole(""))
		for _, r := range []schema.GroupVersionResource{objects.Services, objects.EndpointSlices} {
			if err := c.each(ctx, r, role.GetNamespace(), peering.LabelImported+"="+of,
				func(u *unstructured.Unstructured) {
					if peering.IsImport(of, r == objects.Services, u) {
						all = append(all, u)
					}
				}); err != nil {
				return err
			}
		}
	}
	foreign := func(u *unstructured.Unstructured) bool { return !slices.Contains(named, u.GetNamespace()) }
	for _, u := range slices.Backward(all) {
		if !foreign(u) {
			continue
		}
		var refused apierrors.APIStatus
		if err := c.of(u).Delete(ctx, u.GetName(), metav1.DeleteOptions{}); err != nil && !errors.As(err, &refused) {
			return fmt.Errorf("delete %s: %w", nameOf(u), err)
		}
	}
	return c.remove(ctx, slices.DeleteFunc(all, foreign), say)
}

// LeaveAll removes all of culvert: first Peerings; once nothing of them is left on nodes, agents;
// then the rest.
func (c *Cluster) LeaveAll(ctx context.Context, say func(string)) error {
	names, err := c.Peerings(ctx)
	if err == nil {
		err = c.checkAgents(ctx)
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.Leave(ctx, name, say); err != nil {
			return fmt.Errorf("peering %s: %w", name, err)
		}
	}
	all, err := Objects(manifests.Common(manifests.Image, manifests.Everything()))
	if err != nil {
		return err
	}
	if err := c.removeImports(ctx, "", nil, say); err != nil {
		return err
	}
	if err := c.awaitNoServices(ctx, say); err != nil {
		return err
	}
	if c.kept, err = c.leaveServices(ctx, say); err != nil {
		return err
	}
	agents := slices.DeleteFunc(slices.Clone(all), func(u *unstructured.Unstructured) bool {
		return u.GetKind() != "DaemonSet"
	})
	if err := c.remove(ctx, agents, say); err != nil {
		return err
	}
	if c.owner != "" {
		return c.remove(ctx, all, say)
	}
	// agents ask for their DaemonSet when they end
	err = Await(ctx, say, func(ctx context.Context) (missing string, err error) {
		err = c.each(ctx, objects.Pods, peering.NodeNamespace, "app=culvert-node", func(u *unstructured.Unstructured) {
			missing = nameOf(u) + " is ending"
		})
		return missing, err
	})
	if err != nil {
		return err
	}
	return c.remove(ctx, all, say)
}

// awaitNoServices waits until nothing is left of the peers' multi-cluster Services. The pods of
// culvert multicluster remove it once the last Peering has gone. If there are none, ServiceImports
// are deleted here, and the rest goes with them. Who may not list ServiceImports has none.
func (c *Cluster) awaitNoServices(ctx context.Context, say func(string)) error {
	var left []*unstructured.Unstructured
	err := Await(ctx, say, func(ctx context.Context) (missing string, err error) {
		left = nil
		if err := c.each(ctx, objects.ServiceImports, "", mcs.LabelManaged, func(u *unstructured.Unstructured) {
			left = append(left, u)
		}); err != nil && !apierrors.IsForbidden(err) {
			return "", err
		}
		err = c.each(ctx, objects.Pods, peering.GatewayNamespace, "app=culvert-multicluster",
			func(*unstructured.Unstructured) {
				if len(left) > 0 {
					missing = nameOf(left[0]) + " is still there"
				}
			})
		return missing, err
	})
	if err != nil {
		return err
	}
	return c.remove(ctx, left, say)
}
