package manifests

import (
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
)

// An option is a value that sets a field of an object, where the user gives it. The manifests and
// the chart have the same options.
type option struct {
	value string   // field of the values, or of a peering's values if it begins with a dot
	field []string // path to the field in the object
	adds  bool     // the value's fields are added to those of the object's field
}

// podOptions are those of a Deployment or DaemonSet, whose values are in a field of their own.
func podOptions(values string) []option {
	return []option{
		{"imagePullSecrets", path("spec.template.spec.imagePullSecrets"), false},
		{"imagePullPolicy", path("spec.template.spec.containers.culvert.imagePullPolicy"), false},
		{values + ".nodeSelector", path("spec.template.spec.nodeSelector"), false},
		{values + ".tolerations", path("spec.template.spec.tolerations"), false},
		{values + ".affinity", path("spec.template.spec.affinity"), false},
		{values + ".priorityClassName", path("spec.template.spec.priorityClassName"), false},
		{values + ".resources", path("spec.template.spec.containers.culvert.resources"), false},
		{values + ".annotations", path("spec.template.metadata.annotations"), false},
		{values + ".labels", path("spec.template.metadata.labels"), true},
	}
}

// serviceOptions are those of a gateway's Service.
var serviceOptions = []option{
	{".service.annotations", path("metadata.annotations"), false},
	{".service.loadBalancerClass", path("spec.loadBalancerClass"), false},
	{".service.externalTrafficPolicy", path("spec.externalTrafficPolicy"), false},
	{".service.nodePort", path("spec.ports.wireguard.nodePort"), false},
}

func path(text string) []string { return strings.Split(text, ".") }

// optionsOf returns the options of an object.
func optionsOf(object *yaml.Node) []option {
	switch at(object, "kind").Value {
	case "DaemonSet":
		return podOptions("agents")
	case "Deployment":
		if switchOf(object) == multicluster {
			return append(podOptions(multicluster), option{multicluster + ".replicas", path("spec.replicas"), false})
		}
		return podOptions("gateways")
	case "Service":
		return serviceOptions
	}
	return extraOptions[switchOf(object)]
}

// switchOf returns the field of the values that has an object only where its enabled is true; ""
// for an object that is always there.
func switchOf(object *yaml.Node) string {
	if at(object, "metadata", "name").Value == "culvert-multicluster" {
		return multicluster
	}
	return map[string]string{"NetworkPolicy": "networkPolicy", "PodMonitor": "podMonitor", "ConfigMap": "dashboard",
		"PrometheusRule": "alerts"}[at(object, "kind").Value]
}

// multicluster is the field of the values about Services of several clusters.
const multicluster = "multicluster"

// extraOptions are those of the objects that values switch on.
var extraOptions = map[string][]option{
	"networkPolicy": {{"networkPolicy.metricsFrom", path("spec.ingress.2.from"), false}},
	"podMonitor": {{"podMonitor.labels", path("metadata.labels"), false},
		{"podMonitor.interval", path("spec.podMetricsEndpoints.0.interval"), false}},
	"dashboard": {{"dashboard.labels", path("metadata.labels"), false},
		{"dashboard.annotations", path("metadata.annotations"), false}},
	"alerts":     {{"alerts.labels", path("metadata.labels"), false}},
	multicluster: nil,
}

// with returns the objects that values want, with their options.
func (v *Values) with(all []*yaml.Node, peering string) (wanted []*yaml.Node) {
	for _, o := range all {
		if name := switchOf(o); name == "" || v.at(name+".enabled") == true {
			v.apply(o, peering)
			wanted = append(wanted, o)
		}
	}
	return wanted
}

// apply sets what values say about an object of a peering's gateway, or of what all peerings share.
func (v *Values) apply(object *yaml.Node, peering string) {
	for _, o := range optionsOf(object) {
		value := v.at(o.value)
		if of, ok := strings.CutPrefix(o.value, "."); ok {
			value = fieldAt(v.peering(peering), of)
		}
		if value != nil {
			o.set(object, nodeOf(value))
		}
	}
}

// place returns what surrounds the option's field, and the field's name.
func (o *option) place(object *yaml.Node) (around *yaml.Node, name string) {
	last := len(o.field) - 1
	return at(object, o.field[:last]...), o.field[last]
}

// set puts a value where the option's field is, or at the end of what surrounds it.
func (o *option) set(object, value *yaml.Node) {
	around, name := o.place(object)
	i := field(around, name)
	switch {
	case i < 0:
		around.Content = append(around.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, value)
	case o.adds:
		had := around.Content[i+1]
		had.Content = append(had.Content, value.Content...)
	default:
		around.Content[i].LineComment = "" // it is about what was there
		around.Content[i+1] = value
	}
}

// nodeOf returns a value as a node in JSON's style, as the chart prints it.
func nodeOf(value any) *yaml.Node {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // it was read from JSON
	}
	return parse(string(text))[0]
}
