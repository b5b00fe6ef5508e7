package template

// Default returns what Liqo's chart, installed with default settings under the name of a release,
// says about a gateway: the parts used by From.
func Default(server bool, release, namespace string) map[string]any {
	labels := func(more ...string) map[string]any {
		l := map[string]any{
			"app.kubernetes.io/name": "{{ .Name }}", "app.kubernetes.io/instance": release + "-{{ .Name }}",
			"app.kubernetes.io/component": "networking", "app.kubernetes.io/part-of": "liqo",
			"app.kubernetes.io/managed-by": "Helm",
			"networking.liqo.io/component": "gateway", "networking.liqo.io/gateway-name": "{{ .Name }}",
			"networking.liqo.io/gateway-namespace": "{{ .Namespace }}",
		}
		for _, name := range more {
			l[name] = isActive
		}
		return l
	}
	metadata := func() map[string]any {
		return map[string]any{"name": "{{ .Name }}", "namespace": "{{ .Namespace }}", "labels": labels(labelActive)}
	}
	kind, object := ClientKind, "WgGatewayClient"
	// Both releases have the port of an endpoint; only one has several.
	tunnel := []any{"--mtu={{ .Spec.MTU }}", "--endpoint-address={{ index .Spec.Endpoint.Addresses 0 }}",
		"--endpoint-port={{ .Spec.Endpoint.Port }}"}
	spec := map[string]any{"secretRef": map[string]any{"name": "{{ .Spec.SecretRef.Name }}"}}
	if server {
		kind, object = ServerKind, "WgGatewayServer"
		tunnel = []any{"--mtu={{ .Spec.MTU }}", "--listen-port={{ .Spec.Endpoint.Port }}"}
		spec["service"] = map[string]any{
			"metadata": metadata(),
			"spec": map[string]any{
				"selector": labels(labelActive), "type": "{{ .Spec.Endpoint.ServiceType }}",
				"?loadBalancerIP": "{{ .Spec.Endpoint.LoadBalancerIP }}",
				"ports": []any{map[string]any{
					"port": "{{ .Spec.Endpoint.Port }}", "targetPort": "{{ .Spec.Endpoint.Port }}", "protocol": "UDP",
					"?nodePort": "{{ .Spec.Endpoint.NodePort }}",
				}},
			},
		}
	}
	uid := "--gateway-uid={{ .GatewayUID }}"
	spec["deployment"] = map[string]any{
		"metadata": metadata(),
		"spec": map[string]any{
			"replicas": int64(1), "selector": map[string]any{"matchLabels": labels()},
			"template": map[string]any{
				"metadata": metadata(),
				"spec": map[string]any{
					"serviceAccount": "{{ .Name }}", "serviceAccountName": "{{ .Name }}",
					"containers": []any{
						map[string]any{"name": "gateway", "args": []any{uid, "--health-probe-bind-address=:8083",
							"--ping-enabled=true",
							"--ping-loss-threshold=5", "--ping-interval=2s", "--ping-update-status-interval=10s"}},
						map[string]any{"name": "wireguard",
							"args": append([]any{uid, "--health-probe-bind-address=:8085"}, tunnel...)},
						map[string]any{"name": "geneve", "args": []any{uid, "--geneve-port=6091"}},
					},
				},
			},
		},
	}
	return map[string]any{
		"apiVersion": APIVersion, "kind": kind, "metadata": map[string]any{"name": "wireguard", "namespace": namespace},
		"spec": map[string]any{
			"objectKind": map[string]any{"apiVersion": APIVersion, "kind": object},
			"template":   map[string]any{"metadata": metadata(), "spec": spec},
		},
	}
}
