package verify

import (
	"errors"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube/objects"
	"culvert/kube/verify/probe"
)

// app names the objects in the namespace.
const app = "culvert-verify"

// podObject returns a pod of a run on a node: culvert's own image without any privilege. It ends
// with the run, even if nobody removes it.
func podObject(d *Deployment, name, node string, args ...string) map[string]any {
	container := map[string]any{
		"name": "probe", "image": d.Image, "args": texts(append([]string{"probe"}, args...)),
		"resources": map[string]any{
			"requests": map[string]any{"cpu": "10m", "memory": "32Mi"}, "limits": map[string]any{"memory": "64Mi"},
		},
		"securityContext": map[string]any{
			"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
			"capabilities": map[string]any{"drop": []any{"ALL"}},
		},
	}
	if d.PullPolicy != "" {
		container["imagePullPolicy"] = d.PullPolicy
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app": app, "pod": name}},
		"spec": map[string]any{
			"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": int64(1),
			"activeDeadlineSeconds":        int64(maxRun.Seconds()),
			"automountServiceAccountToken": false, "enableServiceLinks": false,
			"tolerations": []any{map[string]any{"operator": "Exists"}},
			"securityContext": map[string]any{
				"runAsNonRoot": true, "runAsUser": int64(65532), "runAsGroup": int64(65532),
				"seccompProfile": map[string]any{"type": "RuntimeDefault"},
			},
			"containers": []any{container},
		},
	}
}

func texts(all []string) (list []any) {
	for _, s := range all {
		list = append(list, s)
	}
	return list
}

// serviceObjects returns a Service of a type, with labels, whose only endpoint is an address, of
// which it has the family.
func serviceObjects(name, kind string, address netip.Addr, labels map[string]any) []map[string]any {
	port := map[string]any{"name": "probe", "protocol": "TCP", "port": int64(probe.Port)}
	return []map[string]any{
		{
			"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name, "labels": labels},
			"spec": map[string]any{"type": kind, "ports": []any{port}, "ipFamilies": []any{familyOf(address.Is6())}},
		},
		{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata":    map[string]any{"name": name, "labels": map[string]any{"kubernetes.io/service-name": name}},
			"addressType": familyOf(address.Is6()), "ports": []any{port},
			"endpoints": []any{map[string]any{"addresses": []any{address.String()},
				"conditions": map[string]any{"ready": true}}},
		},
	}
}

// nodePort reads the port of a Service of type NodePort.
func nodePort(o map[string]any) (int, error) {
	x, fault := objects.ReadService(objects.Of("Service", &unstructured.Unstructured{Object: o}))
	if fault != "" {
		return 0, errors.New(fault)
	}
	if len(x.Spec.Ports) == 0 || x.Spec.Ports[0].NodePort == 0 {
		return 0, fmt.Errorf("the Service of type NodePort has no node port")
	}
	return int(x.Spec.Ports[0].NodePort), nil
}
