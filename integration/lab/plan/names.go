package plan

import (
	"slices"
	"strings"
)

// Other is the cluster that is not c.
func Other(c *Cluster) *Cluster { return &V4[1-V4.Index(c.Name+"/")] }

// HostNames are the names of the hosts of every lab.
func HostNames() (names []string) {
	for i := range V4 {
		c := &V4[i]
		for _, n := range c.Nodes {
			names = append(names, c.Name+"/"+n.PodName, c.Name+"/"+n.Name)
		}
		names = append(names, c.Name+"/gateway", c.Name+"/router", c.Name+"/client")
	}
	return names
}

// IsGateway reports whether a host is a gateway's.
func IsGateway(host string) bool { return strings.HasSuffix(host, "/gateway") }

// Of returns the cluster of a host's name.
func Of(host string) *Cluster { return V4.Of(host) }

// Index returns the position of the cluster of a host's name.
func (p *Plan) Index(host string) int {
	return slices.IndexFunc(p[:], func(c Cluster) bool { return strings.HasPrefix(host, c.Name+"/") })
}

// Of returns the cluster of a host's name.
func (p *Plan) Of(host string) *Cluster { return &p[p.Index(host)] }
