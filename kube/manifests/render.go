package manifests

import (
	"strconv"
	"strings"
)

// Common returns the objects that a cluster needs once for all its peerings, with an image.
func Common(image string) string {
	return strings.TrimSuffix(Kinds, "\n") + "\n---\n" + strings.ReplaceAll(Nodes, Image, image)
}

// LiqoNodesOf returns LiqoNodes with an image and Liqo's namespace. If serve is "labelled" or
// "all", the DaemonSet also serves these Services, with the settings and rights of the manifest
// Services.
func LiqoNodesOf(image, namespace, serve string) string {
	text := LiqoNodes
	if serve != "" {
		text = servicesHeader + strings.NewReplacer(
			surgeFirst, "", hasStarted, "",
			"=liqo/culvert-links]", "=liqo/culvert-links, --services="+serve+", --config=/etc/culvert/node.yaml, --lease-namespace=culvert-leases]",
			"        resources:", servicesEnv+"        resources:",
			"requests: {cpu: 100m, memory: 64Mi}\n          limits: {memory: 128Mi}\n", "requests: {cpu: 300m, memory: 128Mi}\n",
			"      volumes:\n", "        - {name: config, mountPath: /etc/culvert, readOnly: true}\n        - {name: state, mountPath: /var/lib/culvert}\n      volumes:\n"+servicesVolumes,
		).Replace(text)
		text = strings.TrimSuffix(text, "\n") + "\n" + servicesObjects()
	}
	return strings.NewReplacer("image: "+Image, "image: "+image, "namespace: "+Namespace+"\n", "namespace: "+namespace+"\n",
		"namespace: "+Namespace+"}", "namespace: "+namespace+"}", "="+Namespace+"/", "="+namespace+"/",
		"["+Namespace+"]", "["+namespace+"]").Replace(text)
}

const (
	// What lets the next pod start before the one that it replaces ends. One that serves Services,
	// too, cannot wait beside it.
	surgeFirst = "  # The new pod waits until the old one ends, and carries its packets at once. If it does not start, the old one stays.\n" +
		"  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0, maxSurge: 25%}}\n"
	hasStarted = "        startupProbe: {exec: {command: [/usr/bin/culvert, status]}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 86400} # it has started\n"

	servicesHeader = "# With Services: put your cluster's CIDRs into the ConfigMap at the end. An update restarts the process: services.state and the links keep\n" +
		"# connections meanwhile. Delete the DaemonSet culvert-node of services.yaml first, where there is one: a node's Services have one server.\n"
	servicesEnv = "        # With --services=all, an address and a port of the API server that need no Service:\n" +
		"        # - {name: KUBERNETES_SERVICE_HOST, value: 172.18.0.4}\n" +
		"        # - {name: KUBERNETES_SERVICE_PORT, value: \"6443\"}\n"
	servicesVolumes = "      - name: config\n        configMap: {name: culvert-links}\n" +
		"      - name: state # of the node, so that it outlives the pod; its owner is root alone\n" +
		"        hostPath: {path: /run/culvert-node, type: DirectoryOrCreate}\n"
)

// servicesObjects returns the objects of Services for the account of LiqoNodes, without the DaemonSet, its account and the right to read the
// DaemonSet.
func servicesObjects() (text string) {
	for _, o := range strings.Split(Services, "\n---\n") {
		if strings.Contains(o, "kind: DaemonSet\n") || strings.Contains(o, "kind: ServiceAccount\nmetadata:") ||
			strings.Contains(o, "kind: Role") && strings.Contains(o, "\n  namespace: kube-system\n") {
			continue
		}
		text += "---\n" + strings.NewReplacer(
			"{kind: ServiceAccount, name: culvert-node, namespace: kube-system}", "{kind: ServiceAccount, name: culvert-links, namespace: "+Namespace+"}",
			"kind: ConfigMap\nmetadata:\n  name: culvert-node\n", "kind: ConfigMap\nmetadata:\n  name: culvert-links\n",
			"name: culvert-node", "name: culvert-links-services",
			"namespace: kube-system", "namespace: "+Namespace,
		).Replace(o) + "\n"
	}
	return text
}

// A Gateway has the values of the manifest for a Peering's gateway.
type Gateway struct {
	Peering  string // a DNS label
	Image    string
	Expose   string // type of its Service
	Imports  string // namespace for the peer's exports, where the gateway gets rights; "" for none
	Replicas int
}

// Values returns the values of the chart that make an installation this one; "" if it is.
func (g *Gateway) Values(had *Gateway) string {
	var all []string
	if g.Image != had.Image {
		all = append(all, "image: "+g.Image)
	}
	if g.Expose != had.Expose || g.Replicas != had.Replicas || g.Imports != had.Imports {
		one := "peerings: [{name: " + g.Peering + ", expose: " + g.Expose
		if g.Replicas > 1 {
			one += ", replicas: " + strconv.Itoa(g.Replicas)
		}
		if g.Imports != "" {
			one += ", imports: " + g.Imports
		}
		all = append(all, one+"}]")
	}
	return strings.Join(all, ", ")
}

// YAML returns the manifest.
func (g *Gateway) YAML() string { return g.text(strconv.Itoa(g.Replicas)) }

// text returns the manifest, with a text for the number of pods.
func (g *Gateway) text(replicas string) string {
	text := strings.NewReplacer(Peering, g.Peering, Image, g.Image, "type: LoadBalancer", "type: "+g.Expose,
		"replicas: 1", "replicas: "+replicas).Replace(GatewayYAML)
	if g.Imports != "" {
		text += "---\n" + strings.NewReplacer(Peering, g.Peering, Importing, g.Imports).Replace(Imports)
	}
	return text
}

// Budget returns the PodDisruptionBudget of a gateway in one of Liqo's tenant namespaces, which
// keeps one of its replicas when nodes are drained. Kubernetes removes it together with the
// gateway, a GatewayServer or GatewayClient with this UID.
func Budget(kind, gateway, namespace, uid string) string {
	return `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: gw-` + gateway + `
  namespace: ` + namespace + `
  ownerReferences:
  - {apiVersion: networking.liqo.io/v1beta1, kind: ` + kind + `, name: ` + strconv.Quote(gateway) + `, uid: ` + strconv.Quote(uid) + `}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {networking.liqo.io/component: gateway, networking.liqo.io/gateway-name: ` + strconv.Quote(gateway) + `}
`
}
