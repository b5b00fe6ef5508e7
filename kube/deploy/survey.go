package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"culvert/kube/join/terms"
	"culvert/kube/manifests"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// Survey reads what a cluster's objects say about its addresses.
func (c *Cluster) Survey(ctx context.Context) (*terms.Survey, error) {
	s := &terms.Survey{}
	if err := c.each(ctx, objects.Nodes, "", "", s.Node); err != nil {
		return nil, err
	}
	if err := c.each(ctx, objects.Pods, "", "", s.Pod); err != nil {
		return nil, err
	}
	if err := c.each(ctx, objects.Services, "", "", s.Service); err != nil {
		return nil, err
	}
	if err := c.eachIfThere(ctx, objects.ServiceCIDRs, s.ServiceCIDR); err != nil {
		return nil, err
	}
	if err := c.eachIfThere(ctx, objects.IPPools, s.IPPool); err != nil {
		return nil, err
	}
	if err := c.each(ctx, objects.Peerings, peering.GatewayNamespace, "", s.Peering); err != nil {
		return nil, err
	}
	return s, nil
}

// eachIfThere calls a function for all objects of a resource. A user without the right to list them
// needs none where the cluster lacks the resource. Where it has the resource, the error names the
// right, because a remap must not overlap what is in these objects.
func (c *Cluster) eachIfThere(ctx context.Context, r schema.GroupVersionResource,
	visit func(*unstructured.Unstructured)) error {
	err := c.each(ctx, r, "", "", visit)
	if !apierrors.IsForbidden(err) {
		return err
	}
	if there, e := c.has(ctx, r); e == nil && !there {
		return nil
	}
	return fmt.Errorf("%w; ask an administrator of the cluster for the right to %s", err,
		Right{"list", r.Group, r.Resource, ""})
}

// has reports whether the API server has a resource of a group, which every user may ask.
func (c *Cluster) has(ctx context.Context, r schema.GroupVersionResource) (bool, error) {
	path := "/apis/" + r.GroupVersion().String()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+path, nil)
	if err != nil {
		return false, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return false, nil
	}
	var list metav1.APIResourceList
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<24)).Decode(&list); err != nil ||
		response.StatusCode != http.StatusOK {
		return false, fmt.Errorf("%s: the API server answers %s", path, response.Status)
	}
	return slices.ContainsFunc(list.APIResources, func(x metav1.APIResource) bool { return x.Name == r.Resource }), nil
}

// Peerings returns the names of the cluster's Peerings, including those of which only parts exist.
func (c *Cluster) Peerings(ctx context.Context) ([]string, error) {
	names := map[string]bool{}
	err := c.each(ctx, objects.Peerings, peering.GatewayNamespace, "", func(u *unstructured.Unstructured) {
		names[u.GetName()] = true
	})
	if err == nil {
		err = c.each(ctx, objects.ClusterRoleBindings, "", "", func(u *unstructured.Unstructured) {
			role, _, _ := unstructured.NestedString(u.Object, "roleRef", "name")
			if name, ok := strings.CutPrefix(u.GetName(), "culvert-"); ok && role == "culvert-gateway" {
				names[name] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(names)), err
}

// Installed returns what is installed in a cluster: the image of its agents ("" if there are none),
// and about a Peering's gateway the type of its Service, its number of pods (0 if there is no
// gateway), and whether it has rights in imports, the namespace for the peer's exports.
func (c *Cluster) Installed(ctx context.Context, name, imports string) (*manifests.Gateway, error) {
	i := &manifests.Gateway{Peering: name}
	u, err := c.client.Resource(objects.DaemonSets).Namespace(peering.NodeNamespace).Get(ctx, "culvert-node",
		metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get DaemonSet culvert-node: %w", err)
	}
	if err == nil {
		if all := objects.ReadContainers(objects.Of("DaemonSet", u)); len(all) > 0 {
			i.Image = all[0].Image
		}
	}
	s, err := c.client.Resource(objects.Services).Namespace(peering.GatewayNamespace).Get(ctx, "culvert-"+name,
		metav1.GetOptions{})
	if err == nil {
		read, _ := objects.ReadService(objects.Of("Service", s)) // the API server has checked it
		i.Expose = read.Spec.Type
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Service culvert-%s: %w", name, err)
	}
	d, err := c.client.Resource(objects.Deployments).Namespace(peering.GatewayNamespace).Get(ctx, "culvert-"+name,
		metav1.GetOptions{})
	if err == nil {
		n, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas")
		i.Replicas = int(n)
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Deployment culvert-%s: %w", name, err)
	}
	_, err = c.client.Resource(objects.Deployments).Namespace(peering.GatewayNamespace).Get(ctx, multicluster,
		metav1.GetOptions{})
	if i.Multicluster = err == nil; err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Deployment %s: %w", multicluster, err)
	}
	if imports == "" {
		return i, nil
	}
	if _, err = c.client.Resource(objects.Roles).Namespace(imports).Get(ctx, peering.ImportRole(name),
		metav1.GetOptions{}); err == nil {
		i.Imports = imports
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Role %s in %s: %w", peering.ImportRole(name), imports, err)
	}
	return i, nil
}

// Values returns those by which culvert was installed; nil if there are none.
func (c *Cluster) Values(ctx context.Context) (*manifests.Values, error) {
	stored := newValues("")
	u, err := c.of(stored).Get(ctx, stored.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", nameOf(stored), err)
	}
	text, _, _ := unstructured.NestedString(u.Object, "data", valuesField)
	v, err := manifests.ReadValues("", []byte(text))
	if err != nil {
		return nil, fmt.Errorf("--values: those of the last time, in %s, have faults for this version; give them "+
			"again: %w", nameOf(stored), err)
	}
	return v, nil
}

// CanImport returns why a gateway cannot get rights in the namespace for its peer's exports.
func (c *Cluster) CanImport(ctx context.Context, g *manifests.Gateway) error {
	all, err := Parts(g)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(u *unstructured.Unstructured) bool { return u.GetNamespace() != g.Imports })
	if err := c.allowed(ctx, rightsFor(all, "create", "patch")); err != nil {
		return err
	}
	_, err = c.client.Resource(objects.Namespaces).Get(ctx, g.Imports, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("--imports: there is no namespace %s; make it: kubectl create namespace %[1]s", g.Imports)
	} else if err != nil {
		return fmt.Errorf("get Namespace %s: %w", g.Imports, err)
	}
	return nil
}
