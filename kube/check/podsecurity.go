package check

import (
	"fmt"
	"slices"

	"culvert/kube/template"
)

const labelEnforce = "pod-security.kubernetes.io/enforce"

// podSecurity compares both pods with the level that the namespace enforces.
func (k *checker) podSecurity() {
	level := text(k.Namespace, "metadata", "labels", labelEnforce)
	if k.made != nil {
		for _, fault := range podFaults(k.pod(), level) {
			k.wrong("Pod Security %s of namespace %s refuses the pod: %s", level, k.self.Namespace, fault)
		}
	}
	if k.Deployment != nil {
		if faults := podFaults(podOf(k.Deployment), level); len(faults) > 0 {
			k.note("Pod Security %s of namespace %s refuses the pod that runs, so that the way back is closed: %s", level, k.self.Namespace, faults[0])
		}
	}
}

// What each level allows, as https://kubernetes.io/docs/concepts/security/pod-security-standards/ says.
var (
	baselineCapabilities = []string{
		"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
	}
	restrictedVolumes = []string{"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
	seccompProfiles   = []string{"RuntimeDefault", "Localhost"}
)

// podFaults returns what a level refuses of a pod.
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
			refuse(source == "hostPath" || restricted && source != "name" && !slices.Contains(restrictedVolumes, source), "volume %v: %s", v["name"], source)
		}
	}
	for _, c := range containers(pod) {
		where := fmt.Sprintf("container %v", c["name"])
		own, _ := c["securityContext"].(map[string]any)
		// setting is the container's own, or the pod's.
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
			refuse(!slices.Contains(baselineCapabilities, name) || restricted && name != "NET_BIND_SERVICE", "%s: adds capability %v", where, add)
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
