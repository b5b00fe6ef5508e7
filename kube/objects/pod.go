package objects

import (
	"cmp"
	"net/netip"
)

// A Pod is the content of a Pod, except for what its containers are.
type Pod struct {
	Spec struct {
		NodeName    string `json:"nodeName"`
		HostNetwork bool   `json:"hostNetwork"`
	}
	Status struct {
		Phase   string `json:"phase"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
		PodIP   string `json:"podIP"`
		PodIPs  []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
		Conditions Conditions `json:"conditions"`
		Containers []struct {
			State     ContainerState `json:"state"`
			LastState ContainerState `json:"lastState"`
		} `json:"containerStatuses"`
	}
}

// A ContainerState says why a container does not run; nil: not for this reason.
type ContainerState struct {
	Waiting    *ContainerReason `json:"waiting"`
	Terminated *ContainerReason `json:"terminated"`
}

// A ContainerReason is why a container waits or has ended.
type ContainerReason struct {
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	ExitCode int    `json:"exitCode"`
}

// ReadPod reads a Pod. Beside a fault, it returns what it can read.
func ReadPod(o *Object) (p Pod, fault string) {
	fault = cmp.Or(ReadPart("spec", o.Spec, &p.Spec), ReadPart("status", o.Status, &p.Status))
	return p, fault
}

// Ended reports whether none of the Pod's containers will run again.
func (p *Pod) Ended() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// Addresses returns the Pod's addresses.
func (p *Pod) Addresses() (all []netip.Addr) {
	for _, ip := range p.Status.PodIPs {
		if a, err := ParseAddr(ip.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// A Container is a container as its Pod, or the template of a Deployment or DaemonSet, wants it.
type Container struct {
	Image           string   `json:"image"`
	ImagePullPolicy string   `json:"imagePullPolicy"`
	Command         []string `json:"command"`
	Args            []string `json:"args"`
}

// ReadContainers returns the containers of a Pod, or of the template of a Deployment or DaemonSet.
func ReadContainers(o *Object) []Container {
	type pod struct {
		Containers []Container `json:"containers"`
	}
	var spec struct {
		pod
		Template struct {
			Spec pod `json:"spec"`
		} `json:"template"`
	}
	ReadPart("spec", o.Spec, &spec) // the API server has checked it
	return append(spec.Containers, spec.Template.Spec.Containers...)
}

// Sentence joins a reason and its explanation, each of which may be missing.
func Sentence(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}
