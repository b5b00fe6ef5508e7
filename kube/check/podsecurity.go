package check

import (
	"fmt"
	"slices"

	"culvert/kube/template"
)

const labelEnforce = "pod-security.kubernetes.io/enforce"

// podSecurity compares both pods with the level enforced in the namespace.
func (k *checker) podSecurity(g template.Gateway) {
	level := text(k.Namespace, "metadata", "labels", labelEnforce)
	if k.made != nil {
		for _, fault := range podFaults(k.pod(), level) {
			k.wrong("Pod Security %s of namespace %s refuses the pod: %s", level, k.self.Namespace, fault)
		}
	}
	back, what := k.Deployment, "the pod that runs"
	if k.ours {
		back, what = k.stock(g), "the pod of "+k.end.stock
	}
	if faults := podFaults(podOf(back), level); len(faults) > 0 {
		k.remark("Pod Security %s of namespace %s refuses %s, so that the way back is closed: %s", level,
			k.self.Namespace, what, faults[0])
	}
}

// stock returns the Deployment from Liqo's own template; nil if it cannot be made.
func (k *checker) stock(g template.Gateway) map[string]any {
	if k.Stock == nil {
		k.remark("%s %s: not in namespace %s, so that the way back leads nowhere", k.end.kind, k.end.stock,
			k.TemplateNamespace)
		return nil
	}
	made, err := template.Render(k.Stock, g)
	if err != nil {
		k.remark("%s %s: %v; what the way back leads to is not known", k.end.kind, k.end.stock, err)
		return nil
	}
	deployment, _ := template.Field(made, "spec", "deployment").(map[string]any)
	return deployment
}

// What each level allows, from
// https://kubernetes.io/docs/concepts/security/pod-security-standards/.
var (
	baselineCapabilities = []string{
		"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
		"SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
	}
	restrictedVolumes = []string{"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
		"projected", "secret"}
	seccompProfiles = []string{"RuntimeDefault", "Localhost"}
)

// podFaults returns why a level refuses a pod.
func podFaults(pod map[string]any, level string) (faults []string) {
	if level != "baseline" && level != "restricted" {
		return nil
	}
	restricted := level == "restricted"
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	for _, name := range []string{"hostNetwork", "hostPID", "hostIPC"} {
		refuse(pod[name] == true, "spec.%s: true", name)
	}
	volumes, _ := pod["volumes"].([]any)
	for _, v := range volumes {
		v, _ := v.(map[string]any)
		for source := range v {
			refuse(source == "hostPath" || restricted && source != "name" && !slices.Contains(restrictedVolumes,
				source), "volume %v: %s", v["name"], source)
		}
	}
	for _, c := range containers(pod) {
		where := fmt.Sprintf("container %v", c["name"])
		own, _ := c["securityContext"].(map[string]any)
		// setting returns the container's setting, or else the pod's.
		setting := func(path ...string) any {
			if v := template.Field(own, path...); v != nil {
				return v
			}
			return template.Field(pod["securityContext"], path...)
		}
		refuse(own["privileged"] == true, "%s: privileged", where)
		refuse(setting("seccompProfile", "type") == "Unconfined", "%s: seccompProfile Unconfined", where)
		ports, _ := c["ports"].([]any)
		for _, p := range ports {
			n := template.Field(p, "hostPort")
			refuse(n != nil && fmt.Sprint(n) != "0", "%s: hostPort %v", where, n)
		}
		dropped, _ := template.Field(own, "capabilities", "drop").([]any)
		added, _ := template.Field(own, "capabilities", "add").([]any)
		for _, add := range added {
			name, _ := add.(string)
			refuse(!slices.Contains(baselineCapabilities, name) || restricted && name != "NET_BIND_SERVICE",
				"%s: adds capability %v", where, add)
		}
		if !restricted {
			continue
		}
		profile, _ := setting("seccompProfile", "type").(string)
		refuse(!slices.Contains(dropped, any("ALL")), "%s: does not drop ALL capabilities", where)
		refuse(own["allowPrivilegeEscalation"] != false, "%s: allowPrivilegeEscalation is not false", where)
		refuse(setting("runAsNonRoot") != true, "%s: runAsNonRoot is not true", where)
		refuse(fmt.Sprint(setting("runAsUser")) == "0", "%s: runAsUser 0", where)
		refuse(profile != "Unconfined" && !slices.Contains(seccompProfiles, profile), "%s: no seccompProfile", where)
	}
	return faults
}
