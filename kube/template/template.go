package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The kinds of templates, and the names of ours.
const (
	APIVersion = "networking.liqo.io/v1beta1"
	ServerKind = "WgGatewayServerTemplate"
	ClientKind = "WgGatewayClientTemplate"
	ServerName = "culvert-server"
	ClientName = "culvert-client"
)

// Labels that Liqo's controllers search for.
const (
	labelActive = "networking.liqo.io/active"
	isActive    = "true"
)

// podLabels lead Liqo's controllers from a pod to its gateway.
var podLabels = []string{"networking.liqo.io/component", "networking.liqo.io/gateway-name",
	"networking.liqo.io/gateway-namespace"}

// podFields are the fields of Liqo's pods that ours keep: identity and scheduling.
var podFields = []string{
	"serviceAccount", "serviceAccountName", "imagePullSecrets", "nodeSelector", "affinity", "tolerations",
	"topologySpreadConstraints",
	"priorityClassName", "schedulerName", "runtimeClassName", "dnsPolicy", "dnsConfig", "terminationGracePeriodSeconds",
}

// From returns the template that starts culvert where stock starts Liqo's gateway, with notes on
// what it omits of stock. It keeps names, labels, selectors, the Service and the values of common
// flags. Of several replicas one is elected to forward, and carries the label of the active pod.
func From(stock map[string]any, image string, replicas int) (made map[string]any, notes []string, err error) {
	t := &taker{made: clean(stock).(map[string]any), image: image, replicas: int64(replicas)}
	t.take()
	if len(t.errs) > 0 {
		return nil, nil, errors.Join(t.errs...)
	}
	return t.made, t.notes, nil
}

// A taker changes a copy of a stock template.
type taker struct {
	made     map[string]any
	image    string
	replicas int64
	server   bool
	notes    []string
	errs     []error
}

func (t *taker) warn(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}
func (t *taker) fail(format string, args ...any) {
	t.errs = append(t.errs, fmt.Errorf(format, args...))
}

// at returns the object at a path, which must exist.
func (t *taker) at(path string) map[string]any {
	o, _ := Field(t.made, strings.Split(path, ".")...).(map[string]any)
	if o == nil && t.errs == nil {
		t.fail("%s: missing; want a template as Liqo's chart has it", path)
	}
	return o
}

const (
	deploymentPath = "spec.template.spec.deployment.spec"
	podPath        = deploymentPath + ".template"
)

func (t *taker) take() {
	kind, object, name := t.made["kind"], "WgGatewayClient", ClientName
	if t.server = kind == ServerKind; t.server {
		object, name = "WgGatewayServer", ServerName
	}
	if kind != ServerKind && kind != ClientKind {
		t.fail("kind: %v is neither %s nor %s", kind, ServerKind, ClientKind)
		return
	}
	if made := Field(t.made, "spec", "objectKind", "kind"); made != object {
		t.fail("spec.objectKind.kind: %v, and culvert stands in for a %s alone; give a template that makes one",
			made, object)
	}
	namespace := Field(t.made, "metadata", "namespace")
	t.made["metadata"] = map[string]any{
		"name": name, "namespace": namespace, "labels": map[string]any{"app.kubernetes.io/name": name,
			"app.kubernetes.io/part-of": "culvert"},
	}
	delete(t.made, "status")

	deployment, labels, stock := t.at(deploymentPath), t.at(podPath+".metadata.labels"), t.at(podPath+".spec")
	if len(t.errs) > 0 {
		return
	}
	if n := deployment["replicas"]; n != nil && t.replicas == 1 && fmt.Sprint(n) != "1" {
		t.warn("replicas: 1 instead of %v; give --replicas if others are to stand by", n)
	}
	deployment["replicas"] = t.replicas
	if t.replicas == 1 {
		deployment["strategy"] = map[string]any{"type": "Recreate"}
		labels[labelActive] = isActive
	} else {
		// A new standby is there before an old pod goes.
		deployment["strategy"] = map[string]any{"type": "RollingUpdate",
			"rollingUpdate": map[string]any{"maxUnavailable": int64(0), "maxSurge": int64(1)}}
		delete(labels, labelActive) // the elected one takes it
	}
	for _, name := range podLabels {
		if labels[name] == nil {
			t.fail("%s.metadata.labels: no %s, by which Liqo finds the gateway's pod; add it", podPath, name)
		}
	}
	if account, _ := stock["serviceAccountName"].(string); account == "" {
		t.fail("%s.spec.serviceAccountName: missing; without it Liqo binds the gateway's rights to the namespace's default account", podPath)
	}
	t.at(podPath)["spec"] = t.pod(stock)
}

// pod returns the replacement for a pod.
func (t *taker) pod(stock map[string]any) map[string]any {
	var containers []map[string]any
	for _, c := range list(stock["containers"]) {
		if c, ok := c.(map[string]any); ok {
			containers = append(containers, c)
		}
	}
	flags := t.readFlags(containers)
	pod := map[string]any{
		"securityContext": map[string]any{"runAsNonRoot": true,
			"seccompProfile": map[string]any{"type": "RuntimeDefault"}},
		"containers": []any{t.container(flags, pullPolicy(containers))},
		"volumes":    []any{keysVolume(stock), emptyDir(runVolume, runSize), emptyDir(stateVolume, stateSize)},
	}
	for _, name := range sortedKeys(stock) {
		switch {
		case slices.Contains(podFields, name):
			pod[name] = stock[name]
		case name == "containers" || name == "volumes":
		default:
			t.warn("%s of the pod is left out", name)
		}
	}
	if t.replicas > 1 && pod["affinity"] == nil {
		pod["affinity"] = apart()
	}
	return pod
}

// apart prefers another node for each replica. It requires none: with one node left, two pods there
// are better than one.
func apart() any {
	labels := map[string]any{}
	for i, value := range []string{"gateway", "{{ .Name }}", "{{ .Namespace }}"} {
		labels[podLabels[i]] = value
	}
	preferred := map[string]any{"weight": int64(100), "podAffinityTerm": map[string]any{
		"topologyKey": "kubernetes.io/hostname", "labelSelector": map[string]any{"matchLabels": labels},
	}}
	return map[string]any{"podAntiAffinity": map[string]any{
		"preferredDuringSchedulingIgnoredDuringExecution": []any{preferred},
	}}
}

func emptyDir(name, size string) any {
	return map[string]any{"name": name, "emptyDir": map[string]any{"sizeLimit": size}}
}

// keysVolume returns the volume whose Secret Liqo's controller fills in by the volume's name.
func keysVolume(stock map[string]any) any {
	for _, v := range list(stock["volumes"]) {
		if Field(v, "name") == keysName {
			return v
		}
	}
	return map[string]any{"name": keysName, "secret": map[string]any{"secretName": "{{ .SecretName }}"}}
}

func pullPolicy(containers []map[string]any) any {
	for _, c := range containers {
		if p := c["imagePullPolicy"]; p != nil {
			return p
		}
	}
	return "IfNotPresent"
}
