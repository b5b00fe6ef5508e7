package manifests

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Common returns the objects that a cluster needs once for all its peerings, with an image.
func Common(image string, v *Values) string {
	return strings.TrimSuffix(Kinds, "\n") + "\n---\n" + format(v.with(commonObjects(image), ""))
}

// commonObjects returns all objects that Common can have but the kinds, without options.
func commonObjects(image string) []*yaml.Node {
	all := parse(Nodes)
	all = append(all, parse(multiclusterYAML)...)
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		set(at(container(find(all, kind)), "image"), image)
	}
	for _, o := range parse(monitoringYAML) {
		switch at(o, "kind").Value {
		case "ConfigMap":
			at(o, "data", "culvert.json").Style = yaml.LiteralStyle
			at(o, "data", "culvert.json").Value = dashboardJSON
		case "PrometheusRule":
			*at(o, "spec") = *parse(alertsYAML)[0]
		}
		all = append(all, o)
	}
	return all
}

// pod returns the spec of the pods of a Deployment or DaemonSet.
func pod(o *yaml.Node) *yaml.Node { return at(o, "spec", "template", "spec") }

// container returns the container of these pods.
func container(o *yaml.Node) *yaml.Node { return at(pod(o), "containers", "culvert") }

// LiqoNodesOf returns LiqoNodes with an image and Liqo's namespace. If serve is "labelled" or
// "all", the DaemonSet also serves these Services, with the settings and rights of the manifest
// Services.
func LiqoNodesOf(image, namespace, serve string) string {
	all, header := parse(LiqoNodes), ""
	agent := find(all, "DaemonSet")
	set(at(container(agent), "image"), image)
	if serve != "" {
		header = servicesHeader
		all = append(all, addServices(agent, serve)...)
	}
	for _, o := range all {
		visit(o, "", func(name string, value *yaml.Node) {
			switch {
			case value.Value == Namespace && (name == "namespace" || name == "resourceNames"):
				set(value, namespace)
			case name == "args":
				value.Value = strings.Replace(value.Value, "--daemonset="+Namespace+"/",
					"--daemonset="+namespace+"/", 1)
			}
		})
	}
	return header + format(all)
}

const servicesHeader = "# With Services: put your cluster's CIDRs into the ConfigMap at the end. An update restarts the process:\n" +
	"# services.state and the links keep connections meanwhile. Delete the DaemonSet culvert-node of services.yaml first,\n" +
	"# where there is one: a node's Services have one server.\n"

// addServices makes the agent of LiqoNodes serve Services, too, and returns the objects of Services
// that it needs.
func addServices(agent *yaml.Node, serve string) []*yaml.Node {
	all := parse(Services)
	own, other := container(agent), find(all, "DaemonSet")
	// The next pod cannot start before this one ends: it cannot serve Services beside it.
	remove(at(agent, "spec"), "updateStrategy")
	remove(own, "startupProbe")
	args := at(own, "args")
	for _, arg := range []string{"--services=" + serve, "--config=/etc/culvert/node.yaml",
		"--lease-namespace=culvert-leases"} {
		n := &yaml.Node{Kind: yaml.ScalarNode}
		set(n, arg)
		args.Content = append(args.Content, n)
	}
	resources := at(own, "resources")
	remove(resources, "limits")
	set(at(resources, "requests", "cpu"), "300m")
	set(at(resources, "requests", "memory"), "128Mi")
	// A comment above this field says how a pod reaches the API server without Services.
	server := container(other)
	own.Content[field(own, "resources")].HeadComment = server.Content[field(server, "resources")].HeadComment
	mounts, volumes := at(own, "volumeMounts"), at(pod(agent), "volumes")
	for i, name := range []string{"config", "state"} {
		mounts.Content = append(mounts.Content, at(server, "volumeMounts", name))
		volumes.Content = slices.Insert(volumes.Content, i, at(pod(other), "volumes", name))
	}
	set(at(volumes, "config", "configMap", "name"), "culvert-links")
	return servicesObjects(all)
}

// servicesObjects returns the objects of Services for the account of LiqoNodes, without the
// DaemonSet, its account and the right to read the DaemonSet.
func servicesObjects(all []*yaml.Node) (rest []*yaml.Node) {
	for _, o := range all {
		name := "culvert-links-services"
		switch at(o, "kind").Value {
		case "DaemonSet", "ServiceAccount":
			continue
		case "Role", "RoleBinding":
			if at(o, "metadata", "namespace").Value == "kube-system" {
				continue
			}
		case "ConfigMap":
			name = "culvert-links"
		}
		visit(o, "", func(key string, value *yaml.Node) {
			switch {
			case key == "name" && value.Value == "culvert-node":
				set(value, name)
			case key == "namespace" && value.Value == "kube-system":
				set(value, Namespace)
			}
		})
		if field(o, "subjects") >= 0 {
			for _, subject := range at(o, "subjects").Content {
				set(at(subject, "name"), "culvert-links")
			}
		}
		rest = append(rest, o)
	}
	return rest
}

// A Gateway has the values of the manifest for a Peering's gateway.
type Gateway struct {
	Peering  string // a DNS label
	Image    string
	Expose   string // type of its Service
	Imports  string // namespace for the peer's exports, where the gateway gets rights; "" for none
	Replicas int
	Values   *Values // the options of its objects
	// Multicluster says that culvert multicluster runs in the cluster, whatever Values say.
	Multicluster bool
}

// Changes returns the values of the chart that make an installation this one; "" if it is.
func (g *Gateway) Changes(had *Gateway) string {
	var all []string
	if g.Image != had.Image {
		all = append(all, "image: "+g.Image)
	}
	if g.Multicluster && !had.Multicluster {
		all = append(all, "multicluster: {enabled: true}")
	}
	if !g.Multicluster && had.Multicluster {
		all = append(all, "multicluster: {enabled: false}")
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
func (g *Gateway) YAML() string {
	return format(g.Values.with(g.objects(), g.Peering))
}

// objects returns all objects that the manifest can have, without options.
func (g *Gateway) objects() []*yaml.Node {
	all := append(parse(GatewayYAML), parse(policyYAML)...)
	if g.Imports != "" {
		all = append(all, parse(Imports)...)
	}
	names := strings.NewReplacer(Peering, g.Peering, Importing, g.Imports)
	for _, o := range all {
		replace(o, names)
	}
	deployment := find(all, "Deployment")
	set(at(container(deployment), "image"), g.Image)
	set(at(deployment, "spec", "replicas"), g.Replicas)
	set(at(find(all, "Service"), "spec", "type"), g.Expose)
	return all
}

const budget = `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: NAME
  namespace: NAMESPACE
  ownerReferences:
  - {apiVersion: networking.liqo.io/v1beta1, kind: KIND, name: NAME, uid: UID}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {networking.liqo.io/component: gateway, networking.liqo.io/gateway-name: NAME}
`

// Budget returns the PodDisruptionBudget of a gateway in one of Liqo's tenant namespaces, which
// keeps one of its replicas when nodes are drained. Kubernetes removes it together with the
// gateway, a GatewayServer or GatewayClient with this UID.
func Budget(kind, gateway, namespace, uid string) string {
	o := parse(budget)[0]
	set(at(o, "metadata", "name"), "gw-"+gateway)
	set(at(o, "metadata", "namespace"), namespace)
	owner := at(o, "metadata", "ownerReferences").Content[0]
	set(at(owner, "kind"), kind)
	set(at(owner, "name"), gateway)
	set(at(owner, "uid"), uid)
	set(at(o, "spec", "selector", "matchLabels", "networking.liqo.io/gateway-name"), gateway)
	return "---\n" + format([]*yaml.Node{o})
}
