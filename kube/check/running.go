package check

import (
	"fmt"
	"maps"
	"slices"

	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"culvert/kube/template"
)

// running reports the differences between the Deployment and what the template makes, and whether
// Liqo would apply them. If a Deployment exists and none of its gateway's pods is Running, Liqo's
// controller (v1.2.0 and main) stops before it reads the template: "Failed to handle internal
// endpoint status: … no active gateway pods found".
func (k *checker) running() {
	if k.Deployment == nil {
		return
	}
	path, is, wants := "", "", ""
	if k.ours && k.made != nil {
		path, is, wants = difference("spec", template.Field(k.Deployment, "spec"), template.Field(k.made, "spec",
			"deployment", "spec"))
	}
	stuck := !slices.ContainsFunc(k.Pods, func(p map[string]any) bool {
		return text(p, "status", "phase") == "Running"
	})
	if path != "" {
		k.Findings = append(k.Findings,
			Finding{stuck, fmt.Sprintf(
				"Deployment gw-%s is not what its template makes: %s is %s, and %s in the template", k.self.Name,
				path, is, wants)})
	}
	if !stuck {
		if why := k.whyNone(); why != "" {
			k.wrong("a pod of Deployment gw-%s does not start (%s): the rollout waits for it; correct the cause, for a wrong image in the template",
				k.self.Name, why)
		}
		return
	}
	why := k.whyNone()
	if why != "" {
		why = " (" + why + ")"
	}
	k.wrong("no pod of Deployment gw-%s is Running%s: until one is, Liqo applies neither a corrected template nor a switch to that Deployment; "+
		"remove the cause, then delete the Deployment, which Liqo makes anew in seconds", k.self.Name, why)
	k.command("To have Liqo make the Deployment anew", "kubectl delete deployment -n %s gw-%s",
		k.self.Namespace, k.self.Name)
}

// whyNone returns what Kubernetes says about pods that are not Running, or about a Deployment
// without pods; "" if nothing.
func (k *checker) whyNone() string {
	for _, p := range k.Pods {
		for _, kind := range []string{"initContainerStatuses", "containerStatuses"} {
			statuses, _ := template.Field(p, "status", kind).([]any)
			for _, s := range statuses {
				if reason := text(s, "state", "waiting", "reason"); reason != "" && reason != "ContainerCreating" &&
					reason != "PodInitializing" {
					return fmt.Sprintf("%s: %s: %s", text(p, "metadata", "name"), reason,
						text(s, "state", "waiting", "message"))
				}
			}
		}
		if why := condition(p, "PodScheduled", "False"); why != "" {
			return text(p, "metadata", "name") + ": " + why
		}
	}
	return condition(k.Deployment, "ReplicaFailure", "True")
}

// condition returns the message of an object's condition that has this status.
func condition(o map[string]any, kind, status string) string {
	all, _ := template.Field(o, "status", "conditions").([]any)
	for _, c := range all {
		if text(c, "type") == kind && text(c, "status") == status {
			return text(c, "reason") + ": " + text(c, "message")
		}
	}
	return ""
}

// difference finds the first field of wants that differs or is missing in is; "" if there is none.
// Fields that wants lacks may have any value, because an API server fills in defaults.
func difference(path string, is, wants any) (at, has, want string) {
	switch w := wants.(type) {
	case map[string]any:
		m, _ := is.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(w)) {
			// Liqo's controller writes the name of the keys' Secret.
			if at, has, want = difference(path+"."+name, m[name], w[name]); at != "" && name != "secretName" {
				return at, has, want
			}
		}
		return "", "", ""
	case []any:
		l, _ := is.([]any)
		if len(l) != len(w) {
			break
		}
		for i := range w {
			if at, has, want = difference(fmt.Sprintf("%s[%d]", path, i), l[i], w[i]); at != "" {
				return at, has, want
			}
		}
		return "", "", ""
	default:
		if is != nil && same(fmt.Sprint(is), fmt.Sprint(wants)) {
			return "", "", ""
		}
	}
	return path, fmt.Sprint(shown(is)), fmt.Sprint(wants)
}

// same compares values in the API server's normal form: 0.1 of a core is 100m.
func same(a, b string) bool {
	if a == b {
		return true
	}
	x, err := apiresource.ParseQuantity(a)
	if err != nil {
		return false
	}
	y, err := apiresource.ParseQuantity(b)
	return err == nil && x.Cmp(y) == 0
}
