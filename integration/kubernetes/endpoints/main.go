// Command endpoints prints the endpoints that kube-proxy would use on a node for Services and their
// EndpointSlices. It calls kube-proxy's own functions. It reads one Case a line from standard
// input, and writes the Ports of each.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
)

// A Case is the input of one node.
type Case struct {
	Node, Zone string
	Service    v1.Service
	Slices     []discovery.EndpointSlice
}

// A Port is one port of the Service in one family. Addresses are sorted.
type Port struct {
	Name, Protocol         string
	Port, NodePort         int
	ClusterIP              string
	External, Balanced     []string
	Sources                []string
	Affinity               string
	AffinitySeconds        int
	ExternalLocal          bool
	InternalLocal          bool
	HealthCheck, Here      int
	UsesCluster, UsesLocal bool
	Cluster, Local         []string
	Any                    bool
}

func main() {
	log.SetFlags(0)
	in, answers := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		c := Case{}
		if err := in.Decode(&c); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		if err := answers.Encode(c.ports()); err != nil {
			log.Fatal(err)
		}
	}
}

func (c *Case) ports() []Port {
	all := []Port{}
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		services, changes := make(proxy.ServicePortMap), proxy.NewServiceChangeTracker(family, nil, nil)
		changes.Update(nil, &c.Service)
		services.Update(changes)
		endpoints, tracker := make(proxy.EndpointsMap), proxy.NewEndpointsChangeTracker(family, c.Node, nil, nil)
		for i := range c.Slices {
			if family == v1.IPFamily(c.Slices[i].AddressType) {
				tracker.EndpointSliceUpdate(&c.Slices[i], false)
			}
		}
		endpoints.Update(tracker)
		checks, here := services.HealthCheckNodePorts(), endpoints.LocalReadyEndpoints()
		for name, s := range services {
			cluster, local, _, any := proxy.CategorizeEndpoints(endpoints[name], s, c.Node,
				map[string]string{v1.LabelTopologyZone: c.Zone})
			if checks[name.NamespacedName] == 0 {
				delete(here, name.NamespacedName) // nobody asks
			}
			all = append(all, Port{
				Name: name.Port, Protocol: string(name.Protocol), Port: s.Port(), NodePort: s.NodePort(),
				ClusterIP: s.ClusterIP().String(),
				External:  addresses(s.ExternalIPs()), Balanced: addresses(s.LoadBalancerVIPs()),
				Sources:  networks(s.LoadBalancerSourceRanges()),
				Affinity: string(s.SessionAffinityType()), AffinitySeconds: s.StickyMaxAgeSeconds(),
				ExternalLocal: s.ExternalPolicyLocal(), InternalLocal: s.InternalPolicyLocal(),
				HealthCheck: int(checks[name.NamespacedName]), Here: here[name.NamespacedName],
				UsesCluster: s.UsesClusterEndpoints(), UsesLocal: s.UsesLocalEndpoints(),
				Cluster: names(cluster), Local: names(local), Any: any,
			})
		}
	}
	slices.SortFunc(all, func(a, b Port) int {
		return cmp.Or(strings.Compare(a.ClusterIP, b.ClusterIP), strings.Compare(a.Name, b.Name),
			strings.Compare(a.Protocol, b.Protocol))
	})
	return all
}

func sorted[T any](all []T, text func(T) string) []string {
	list := []string{}
	for _, x := range all {
		list = append(list, text(x))
	}
	slices.Sort(list)
	return list
}

func addresses(all []net.IP) []string { return sorted(all, net.IP.String) }

func networks(all []*net.IPNet) []string { return sorted(all, (*net.IPNet).String) }

func names(all []proxy.Endpoint) []string { return sorted(all, proxy.Endpoint.String) }
