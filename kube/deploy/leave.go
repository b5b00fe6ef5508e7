package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"culvert/kube"
	"culvert/kube/join"
	"culvert/kube/manifests"
	"culvert/kube/peering"
)

// awaitPause is the time between two looks.
const awaitPause = 500 * time.Millisecond

// errInterrupted is the message for a user who has interrupted a change.
var errInterrupted = errors.New("interrupted; the same command goes on")

// stuckTime is how long a pod may be unable to start. A registry may be away for a moment.
const stuckTime = 20 * time.Second

// Await calls look until nothing is missing. It calls say whenever what is missing changes. An error of look counts as missing, because an API server
// may be away for a moment; a StuckError ends the wait if it lasts. When ctx ends, Await returns an error that says what was missing last.
func Await(ctx context.Context, say func(missing string), look func(context.Context) (missing string, err error)) error {
	last := ""
	var stuck time.Time // since when
	for {
		missing, err := look(ctx)
		switch now := time.Now(); {
		case !errors.As(err, new(*StuckError)):
			stuck = time.Time{}
		case stuck.IsZero():
			stuck = now
		case now.Sub(stuck) >= stuckTime:
			return fmt.Errorf("%w; correct it, for example by another --image, and run the same command again", err)
		}
		if err == nil && missing == "" {
			return nil
		}
		if ctx.Err() == nil || last == "" {
			if err != nil {
				missing = err.Error()
			}
			if missing != last {
				last = missing
				say(missing)
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return errInterrupted
			}
			return fmt.Errorf("still missing: %s", last)
		case <-time.After(awaitPause):
		}
	}
}

// LeaveRights returns the rights that Leave and LeaveAll need.
func LeaveRights() []Right {
	all, err := Parts(anyGateway("any"))
	if err != nil {
		panic(err) // the manifests are our own
	}
	rights := rightsFor(append(all, newPeering("any", nil, nil), newLease("any")), "get", "delete")
	for _, r := range []schema.GroupVersionResource{services, endpointSlices, roles, roleBindings} { // of imports, in any namespace
		for _, verb := range []string{"list", "get", "delete"} {
			rights = append(rights, Right{verb, r.Group, r.Resource, ""})
		}
	}
	return append(rights, Right{"list", "", "nodes", ""}, Right{"list", peering.Group, "peerings", peering.GatewayNamespace}, Right{"list", peering.Group, "tunnelnodes", peering.NodeNamespace},
		Right{"list", "", "pods", peering.NodeNamespace}, Right{"list", "", "pods", peering.GatewayNamespace},
		Right{"list", "rbac.authorization.k8s.io", "clusterrolebindings", ""})
}

// Peerings returns the names of the cluster's Peerings, including those of which only parts exist.
func (c *Cluster) Peerings(ctx context.Context) ([]string, error) {
	names := map[string]bool{}
	err := c.each(ctx, peerings, peering.GatewayNamespace, "", func(u *unstructured.Unstructured) { names[u.GetName()] = true })
	if err == nil {
		err = c.each(ctx, bindings, "", "", func(u *unstructured.Unstructured) {
			role, _, _ := unstructured.NestedString(u.Object, "roleRef", "name")
			if name, ok := strings.CutPrefix(u.GetName(), "culvert-"); ok && role == "culvert-gateway" {
				names[name] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(names)), err
}

// remove deletes objects in the reverse order of apply, and waits until they are gone. It leaves what another program has installed, and keeps the
// name of that program.
func (c *Cluster) remove(ctx context.Context, all []*unstructured.Unstructured, say func(string)) error {
	all = slices.Clone(all)
	slices.Reverse(all)
	policy := metav1.DeletePropagationBackground
	for i, u := range all {
		stored, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
		if err == nil {
			if owner := ownerOf(stored); owner != "" {
				c.owner, all[i] = owner, nil
				continue
			}
			err = c.of(u).Delete(ctx, u.GetName(), metav1.DeleteOptions{PropagationPolicy: &policy})
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return errInterrupted
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", nameOf(u), err)
		}
	}
	all = slices.DeleteFunc(all, func(u *unstructured.Unstructured) bool { return u == nil })
	return Await(ctx, say, func(ctx context.Context) (string, error) {
		for _, u := range all {
			_, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
			if err == nil {
				return nameOf(u) + " is being deleted", nil
			}
			if !apierrors.IsNotFound(err) {
				return "", fmt.Errorf("get %s: %w", nameOf(u), err)
			}
		}
		return "", nil
	})
}

// Leave removes a Peering, waits until no node has any remains of it, and removes its gateway.
func (c *Cluster) Leave(ctx context.Context, name string, say func(string)) error {
	var imports []string // the namespace that the Peering names; an interrupted removal has left no Peering
	if err := c.each(ctx, peerings, peering.GatewayNamespace, "", func(u *unstructured.Unstructured) {
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
	all, err := Objects(anyGateway(name).YAML())
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
	binding := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool { return u.GetKind() == "ClusterRoleBinding" })
	rest := slices.Delete(slices.Clone(all), binding, binding+1)
	if err := c.remove(ctx, append(rest, newLease(name)), say); err != nil {
		return err
	}
	if err := c.removeImports(ctx, name, imports, say); err != nil {
		return err
	}
	return c.remove(ctx, all[binding:binding+1], say)
}

// awaitEnd waits until the pods of a Peering's gateway have ended, or should have: nobody ends those of a lost node.
func (c *Cluster) awaitEnd(ctx context.Context, name string, say func(string)) error {
	return Await(ctx, say, func(ctx context.Context) (missing string, err error) {
		err = c.each(ctx, pods, peering.GatewayNamespace, gatewayLabels(name), func(u *unstructured.Unstructured) {
			if late := u.GetDeletionTimestamp(); late == nil || time.Now().Before(late.Time) {
				missing = nameOf(u) + " is ending"
			}
		})
		return missing, err
	})
}

// gatewayLabels select the pods of a Peering's gateway.
func gatewayLabels(name string) string { return "app=culvert-gateway,culvert.io/peering=" + name }

// awaitClean waits until nothing of a Peering is left on nodes. had are those that had something of it.
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

// uncleaned returns the nodes whose agents do not say that nothing of a Peering is left there: those that say that something is, those of had and
// those with a running agent. had may be nil; name "" stands for every Peering.
func (c *Cluster) uncleaned(ctx context.Context, name string, had []string) (left []string, err error) {
	there, said := map[string]bool{}, map[string]bool{}
	err = c.each(ctx, tunnelNodes, peering.NodeNamespace, "", func(u *unstructured.Unstructured) { said[u.GetName()] = !nodeHas(u, name) })
	if err == nil {
		err = c.each(ctx, nodes, "", "", func(u *unstructured.Unstructured) { there[u.GetName()] = !kube.Virtual(u.GetLabels()) })
	}
	if err == nil {
		err = c.each(ctx, pods, peering.NodeNamespace, "app=culvert-node", func(u *unstructured.Unstructured) {
			if phase, _, _ := unstructured.NestedString(u.Object, "status", "phase"); phase == "Running" {
				node, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName")
				had = append(had, node)
			}
		})
	}
	for _, node := range slices.Concat(slices.Collect(maps.Keys(said)), had) {
		if there[node] && !said[node] {
			left = append(left, node)
		}
	}
	slices.Sort(left)
	return slices.Compact(left), err
}

// hasAgents reports whether agents run or will be started.
func (c *Cluster) hasAgents(ctx context.Context) (there bool, err error) {
	_, err = c.client.Resource(daemonSets).Namespace(peering.NodeNamespace).Get(ctx, "culvert-node", metav1.GetOptions{})
	if there = err == nil; err != nil && !apierrors.IsNotFound(err) {
		return there, fmt.Errorf("get DaemonSet culvert-node: %w", err)
	}
	err = c.each(ctx, pods, peering.NodeNamespace, "app=culvert-node", func(*unstructured.Unstructured) { there = true })
	return there, err
}

// checkAgents returns an error if agents went before their work was done. Then their rights are still there, which Leave removes last, and nodes have
// not said that they are clean.
func (c *Cluster) checkAgents(ctx context.Context) error {
	if there, err := c.hasAgents(ctx); there || err != nil {
		return err
	}
	_, err := c.client.Resource(bindings).Get(ctx, "culvert-node", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	var all []string
	if err == nil {
		err = c.each(ctx, nodes, "", "", func(u *unstructured.Unstructured) { all = append(all, u.GetName()) })
	}
	if err != nil {
		return fmt.Errorf("get ClusterRoleBinding culvert-node: %w", err)
	}
	left, err := c.uncleaned(ctx, "", all)
	if len(left) == 0 || err != nil {
		return err
	}
	return errAlone(left)
}

// errAlone is the error for nodes without an agent.
func errAlone(left []string) error {
	const most = 5
	names := strings.Join(left[:min(len(left), most)], ", ")
	if n := len(left) - most; n > 0 {
		names += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("links, routes and the exception from masquerade may be left on %s: the agents went before they said that they are gone; "+
		"put the agents back, and run this again: culvert kube template --image IMAGE | kubectl apply -f -", names)
}

// newLease returns the Lease that a gateway with several pods creates.
func newLease(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": "culvert-" + name, "namespace": peering.GatewayNamespace},
	}}
}

// removeImports removes the objects that stand for a peer's Services, and the rights to write them; "" means all peers. A running gateway has already
// removed the objects when its Peering went, and one without the rights creates no more. Whoever may write in a namespace can make objects that look
// like these. So nothing is waited for but what is in the namespaces that Peerings name, and no refusal elsewhere is in the way.
func (c *Cluster) removeImports(ctx context.Context, name string, named []string, say func(string)) error {
	right := peering.ImportRole(name)
	var of []*unstructured.Unstructured // the rights
	for _, r := range []schema.GroupVersionResource{roles, roleBindings} {
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
		for _, r := range []schema.GroupVersionResource{services, endpointSlices} {
			if err := c.each(ctx, r, role.GetNamespace(), peering.LabelImported+"="+of, func(u *unstructured.Unstructured) {
				if peering.IsImport(of, r == services, u) {
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

// nodeHas reports whether a TunnelNode mentions a Peering; any one if name is "".
func nodeHas(u *unstructured.Unstructured, name string) bool {
	var t struct{ Status peering.NodeStatus }
	if read(u, &t) != nil {
		return false
	}
	return slices.ContainsFunc(t.Status.Peerings, func(p peering.NodePeering) bool { return name == "" || p.Name == name })
}

// LeaveAll removes all of culvert: first Peerings; once nothing of them is left on nodes, agents; then the rest.
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
	all, err := Objects(manifests.Common(manifests.Image))
	if err != nil {
		return err
	}
	if err := c.removeImports(ctx, "", nil, say); err != nil {
		return err
	}
	agents := slices.DeleteFunc(slices.Clone(all), func(u *unstructured.Unstructured) bool { return u.GetKind() != "DaemonSet" })
	if err := c.remove(ctx, agents, say); err != nil {
		return err
	}
	if c.owner != "" {
		return c.remove(ctx, all, say)
	}
	err = Await(ctx, say, func(ctx context.Context) (missing string, err error) { // agents ask for their DaemonSet when they end
		err = c.each(ctx, pods, peering.NodeNamespace, "app=culvert-node", func(u *unstructured.Unstructured) { missing = nameOf(u) + " is ending" })
		return missing, err
	})
	if err != nil {
		return err
	}
	return c.remove(ctx, all, say)
}

// Nonce returns the nonce of an invitation that ApplyPeering must keep: the existing one, or a new
// one.
func Nonce(c *join.Cluster, peer string) string {
	if n := c.Nonce(peer); n != "" {
		return n
	}
	return join.NewNonce()
}
