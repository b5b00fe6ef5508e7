package liqo

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"culvert/kube"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

const kindConnection = "Connection"

func (s *Source) resource(kind string) dynamic.NamespaceableResourceInterface {
	return s.loop.Client.Resource(objects.LiqoResource(kind))
}

// followed are the kinds that a gateway follows.
var followed = []string{KindFirewall, KindRoute, KindTunnel, KindFabric, KindNode, KindPublicKey, kindConnection}

// sets are what a gateway follows, selected for it.
//
// +checklocksignore: a Loop holds mu
func (s *Source) sets() (all []kube.Set) {
	for _, kind := range followed {
		set := kube.Set{Name: kind, Resource: objects.LiqoResource(kind), Namespace: s.identity.Namespace,
			Read: func(u *unstructured.Unstructured) func(string) {
				o := objects.Of(kind, u)
				return func(string) { s.state.Put(o) }
			},
			Drop: func(namespace, name string) {
				s.state.Delete(rules.Key{Kind: kind, Namespace: namespace, Name: name})
			},
		}
		switch kind {
		case KindFirewall:
			set.Namespace, set.Labels = "", labelFirewall+category+"="+forGateways
		case KindRoute:
			set.Namespace, set.Labels = "", labelRoute+category+"="+forGateways
		case KindNode:
			set.Namespace = ""
		case KindFabric, KindPublicKey:
			set.Labels = labelRemote + "=" + s.identity.Remote
		case kindConnection:
			set.Fields = "metadata.name=" + s.connectionName()
			set.Read = func(u *unstructured.Unstructured) func(string) {
				if u.GetName() != s.connectionName() {
					return nil
				}
				c := readConnection(u)
				return func(string) { s.connection = c }
			}
			set.Drop = func(string, string) { s.connection = nil }
		}
		all = append(all, set)
	}
	return all
}
