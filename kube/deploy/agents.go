package deploy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube/objects"
	"culvert/kube/peering"
)

// uncleaned returns the nodes whose agents do not say that nothing of a Peering is left there:
// those that say that something is, those of had and those with a running agent. had may be nil;
// name "" stands for every Peering.
func (c *Cluster) uncleaned(ctx context.Context, name string, had []string) (left []string, err error) {
	there, said := map[string]bool{}, map[string]bool{}
	err = c.each(ctx, objects.TunnelNodes, peering.NodeNamespace, "", func(u *unstructured.Unstructured) {
		said[u.GetName()] = !nodeHas(u, name)
	})
	if err == nil {
		err = c.each(ctx, objects.Nodes, "", "", func(u *unstructured.Unstructured) {
			there[u.GetName()] = !objects.Virtual(u.GetLabels())
		})
	}
	if err == nil {
		err = c.each(ctx, objects.Pods, peering.NodeNamespace, "app=culvert-node", func(u *unstructured.Unstructured) {
			if pod, _ := objects.ReadPod(objects.Of("Pod", u)); pod.Status.Phase == "Running" {
				had = append(had, pod.Spec.NodeName)
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
	_, err = c.client.Resource(objects.DaemonSets).Namespace(peering.NodeNamespace).Get(ctx, "culvert-node",
		metav1.GetOptions{})
	if there = err == nil; err != nil && !apierrors.IsNotFound(err) {
		return there, fmt.Errorf("get DaemonSet culvert-node: %w", err)
	}
	err = c.each(ctx, objects.Pods, peering.NodeNamespace, "app=culvert-node", func(*unstructured.Unstructured) {
		there = true
	})
	return there, err
}

// checkAgents returns an error if agents went before their work was done. Then their rights are
// still there, which Leave removes last, and nodes have not said that they are clean.
func (c *Cluster) checkAgents(ctx context.Context) error {
	if there, err := c.hasAgents(ctx); there || err != nil {
		return err
	}
	_, err := c.client.Resource(objects.ClusterRoleBindings).Get(ctx, "culvert-node", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	var all []string
	if err == nil {
		err = c.each(ctx, objects.Nodes, "", "", func(u *unstructured.Unstructured) { all = append(all, u.GetName()) })
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

// nodeHas reports whether a TunnelNode mentions a Peering; any one if name is "".
func nodeHas(u *unstructured.Unstructured, name string) bool {
	var t struct{ Status peering.NodeStatus }
	if read(u, &t) != nil {
		return false
	}
	return slices.ContainsFunc(t.Status.Peerings, func(p peering.NodePeering) bool {
		return name == "" || p.Name == name
	})
}
