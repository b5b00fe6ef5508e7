package deploy

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ownerOf returns the program that has installed an object and would undo a change of it; "" if
// there is none.
func ownerOf(u *unstructured.Unstructured) string {
	labels, notes := u.GetLabels(), u.GetAnnotations()
	for _, kind := range []struct{ name, group string }{{"HelmRelease", "helm"}, {"Kustomization", "kustomize"}} {
		if name := labels[kind.group+".toolkit.fluxcd.io/name"]; name != "" {
			return "Flux's " + kind.name + " " + labels[kind.group+".toolkit.fluxcd.io/namespace"] + "/" + name
		}
	}
	if name, _, _ := strings.Cut(notes["argocd.argoproj.io/tracking-id"], ":"); name != "" {
		return "Argo CD's application " + name
	}
	for _, f := range u.GetManagedFields() {
		switch f.Manager {
		case "argocd-controller":
			return "Argo CD"
		case "kustomize-controller", "helm-controller":
			return "Flux"
		}
	}
	if name := notes["meta.helm.sh/release-name"]; name != "" {
		return "Helm's release " + notes["meta.helm.sh/release-namespace"] + "/" + name
	}
	return ""
}
