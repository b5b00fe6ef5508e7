package deploy

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/mcs-api/config/crd"

	"culvert/kube/join/terms"
	"culvert/kube/mcs"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// multicluster is the name of the Deployment for multi-cluster Services, and of its account and
// rights.
const multicluster = "culvert-multicluster"

// serviceCRDs returns the kinds ServiceExport and ServiceImport.
func serviceCRDs() []*unstructured.Unstructured {
	all, err := Objects(string(crd.ServiceExportCRD) + "\n---\n" + string(crd.ServiceImportCRD))
	if err != nil {
		panic(err) // they are in the program
	}
	return all
}

// serviceKinds returns those of the kinds that are to be applied: others may have made them, in
// another version, and theirs stay.
func (c *Cluster) serviceKinds(ctx context.Context, p *Plan) (all []*unstructured.Unstructured, err error) {
	for _, u := range serviceCRDs() {
		stored, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("--services: get %s: %w", nameOf(u), err)
		case err != nil || applied(stored):
			all = append(all, u)
			continue
		case !serves(stored, "v1beta1"):
			return nil, fmt.Errorf("--services: %s is there and does not serve v1beta1; whoever has made it has to upgrade "+
				"it, or: culvert multicluster crds | kubectl apply -f -", nameOf(u))
		}
		p.Kept = append(p.Kept, terms.Line{What: "stays", Value: nameOf(u), Source: "somebody else has made it"})
	}
	return all, nil
}

// applied reports whether Install has made an object.
func applied(u *unstructured.Unstructured) bool {
	return slices.ContainsFunc(u.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == manager && f.Operation == metav1.ManagedFieldsOperationApply
	})
}

// serves reports whether a CustomResourceDefinition serves a version.
func serves(u *unstructured.Unstructured, version string) bool {
	var o struct {
		Spec struct {
			Versions []struct {
				Name   string
				Served bool
			}
		}
	}
	return read(u, &o) == nil && slices.ContainsFunc(o.Spec.Versions, func(v struct {
		Name   string
		Served bool
	}) bool {
		return v.Served && v.Name == version
	})
}

// MulticlusterRolled returns what is missing until the pods of culvert multicluster run. Where
// there is no Deployment, others run it.
func (c *Cluster) MulticlusterRolled(ctx context.Context) (missing string, err error) {
	u, err := c.client.Resource(objects.Deployments).Namespace(peering.GatewayNamespace).Get(ctx, multicluster,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("get Deployment %s: %w", multicluster, err)
	}
	if missing = rolled(u); missing == "" {
		return "", nil
	}
	why, err := c.trouble(ctx, podSet{namespace: peering.GatewayNamespace, labels: "app=" + multicluster})
	return missing + colon(why), err
}

// Unshare removes culvert multicluster and the Services that it has made, if a plan does without it
// and no Peering shares Services any more, unless the values switch it off. Several ends of a
// cluster may do so at once.
func (c *Cluster) Unshare(ctx context.Context, p *Plan, say func(string)) error {
	if len(p.unshared) == 0 {
		return nil
	}
	if _, said := p.g.Values.Multicluster(); !said {
		needed := false
		if err := c.each(ctx, objects.Peerings, peering.GatewayNamespace, "", func(u *unstructured.Unstructured) {
			var o struct{ Spec peering.Spec }
			needed = needed || read(u, &o) != nil || o.Spec.Services.Any()
		}); err != nil || needed {
			return err
		}
	}
	for _, u := range p.unshared {
		if u.GetKind() == "Deployment" { // which goes last, so that a removal that is interrupted begins again
			if err := c.scaleTo0(ctx, u); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	if err := c.awaitNoServices(ctx, say); err != nil {
		return err
	}
	return c.remove(ctx, p.unshared, say)
}

// Lacks returns the namespaces among some that are not there.
func (c *Cluster) Lacks(ctx context.Context, names []string) (missing []string, err error) {
	for _, name := range names {
		_, err := c.client.Resource(objects.Namespaces).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, name)
		case err != nil:
			return nil, fmt.Errorf("get Namespace %s: %w", name, err)
		}
	}
	return missing, nil
}

// Corefile returns the configuration of the cluster's DNS, if it is where CoreDNS has it in most
// clusters; otherwise "".
func (c *Cluster) Corefile(ctx context.Context) string {
	u, err := c.client.Resource(objects.ConfigMaps).Namespace("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
	if err != nil {
		return ""
	}
	text, _, _ := unstructured.NestedString(u.Object, "data", "Corefile")
	return text
}

// leaveServices removes the kinds ServiceExport and ServiceImport if Install has made them and
// nobody uses them. why says why they stay.
func (c *Cluster) leaveServices(ctx context.Context, say func(string)) (why string, err error) {
	var all []*unstructured.Unstructured
	for _, u := range serviceCRDs() {
		stored, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", fmt.Errorf("get %s: %w", nameOf(u), err)
		case applied(stored):
			all = append(all, u)
		}
	}
	if len(all) == 0 {
		return "", nil
	}
	const remove = "; if nobody needs them: kubectl delete crd serviceexports.multicluster.x-k8s.io " +
		"serviceimports.multicluster.x-k8s.io"
	if mcs.Zone(c.Corefile(ctx)) {
		return "the kinds ServiceExport and ServiceImport stay, because the cluster's DNS serves clusterset.local and " +
			"fails without them: take the zone out of the Corefile first" + remove, nil
	}
	found := ""
	for _, r := range []string{mcs.KindExport, mcs.KindImport} {
		if err := c.each(ctx, objects.Resource(objects.Multicluster, r), "", "", func(u *unstructured.Unstructured) {
			found = nameOf(u)
		}); err != nil {
			return "", err
		}
	}
	if found != "" {
		return "the kinds ServiceExport and ServiceImport stay, because there is " + found + remove, nil
	}
	return "", c.remove(ctx, all, say)
}
