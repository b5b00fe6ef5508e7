package verify

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"culvert/kube/peering"
)

// ringNodes is the maximum number of nodes of each cluster that are tested, unless all are.
const ringNodes = 10

// A Side is one of the two clusters.
type Side struct {
	Context string // as the user calls it
	*Snapshot
	Peering *peering.Peering // its end of the tunnel
}

// name is the cluster's ID.
func (s *Side) name() string { return s.Peering.Cluster }

// of returns a place in the cluster.
func (s *Side) of(node string) string { return s.name() + "/" + node }

// pair finds the Peerings that join two clusters.
func pair(a, b *Snapshot) (p, q *peering.Peering, err error) {
	for _, x := range a.Peerings {
		for _, y := range b.Peerings {
			if x.Cluster == "" || x.Cluster != y.Peer || x.Peer != y.Cluster {
				continue
			}
			known := x.PublicKey.Base64() == y.Status.PublicKey && y.PublicKey.Base64() == x.Status.PublicKey
			if p == nil || known {
				p, q = x, y
			}
		}
	}
	if p == nil {
		err := fmt.Errorf("no Peering joins them: the first has %s, the second has %s", list(a.Peerings),
			list(b.Peerings))
		if !names(a, b) && !names(b, a) {
			err = notJoined{err}
		}
		return nil, nil, err
	}
	return p, q, nil
}

// notJoined is the error for two clusters of which neither has a Peering with the other.
type notJoined struct{ error }

// NotJoined reports whether err says that neither of two clusters has a Peering with the other.
func NotJoined(err error) bool { return errors.As(err, new(notJoined)) }

// names reports whether a Peering of a names b as its peer.
func names(a, b *Snapshot) bool {
	return slices.ContainsFunc(a.Peerings, func(x *peering.Peering) bool {
		return slices.ContainsFunc(b.Peerings, func(y *peering.Peering) bool { return x.Peer == y.Cluster })
	})
}

func list(all []*peering.Peering) string {
	var names []string
	for _, p := range all {
		names = append(names, fmt.Sprintf("%s (cluster %s, peer %s)", p.Metadata.Name, p.Cluster, p.Peer))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// chosen returns the nodes to test: ready ones with a tunnel, the gateway's node first.
func (s *Side) chosen(all bool) (names []string, of int) {
	for _, a := range s.Peering.Status.Nodes {
		if n := s.node(a.Name); n != nil && n.Ready {
			names = append(names, a.Name)
		}
	}
	slices.SortFunc(names, func(x, y string) int {
		if here := s.gatewayNode(); x == here && y != here {
			return -1
		} else if y == here && x != here {
			return 1
		}
		return strings.Compare(x, y)
	})
	of = len(names)
	if !all && of > ringNodes {
		names = names[:ringNodes]
	}
	return names, of
}

func (s *Side) gatewayNode() string {
	if s.Peering.Status.Active == nil {
		return ""
	}
	return s.Peering.Status.Active.Node
}

// program returns the gateway's Deployment, with the image of a pod that runs: its own may be one
// that does not start.
func (s *Side) program() *Deployment {
	d := *s.deployment(s.Peering.Metadata.Name)
	for _, p := range s.gateways(s.Peering.Metadata.Name) {
		if p.Ready && p.Image != "" {
			d.Image = p.Image
		}
	}
	return &d
}

// A hop is one direction between two nodes, by their indexes in the lists of chosen nodes. away:
// from the second cluster to the first.
type hop struct {
	from, to int
	away     bool
}

// ring goes back and forth between the nodes of two clusters until each node was left and entered.
func ring(a, b int) (all []hop) {
	if a == 0 || b == 0 {
		return nil
	}
	for i := range max(a, b) {
		all = append(all, hop{i % a, i % b, false}, hop{i % b, (i + 1) % a, true})
	}
	return all
}

// everyPair returns the hops from each node of each cluster to each node of the other.
func everyPair(a, b int) (all []hop) {
	for i := range a {
		for j := range b {
			all = append(all, hop{i, j, false}, hop{j, i, true})
		}
	}
	return all
}

// Kinds of paths.
const (
	KindPods     = "pods"
	KindInside   = "inside" // both ends are in one cluster: a fault there is not culvert's
	KindNodePort = "nodePort"
	KindService  = "service"
	KindName     = "name" // of a multi-cluster Service, which DNS is asked for
)

// seenAs returns the address under which a cluster sees one of its peer's; invalid if it sees it
// under none.
func seenAs(p *peering.Peering, a netip.Addr, external bool) netip.Addr {
	for _, r := range p.Remote {
		if r.External == external && r.Real.Contains(a) && r.Remapped.IsValid() {
			return peering.Remapped(a, r.Real, r.Remapped)
		}
	}
	return netip.Addr{}
}

// unknownAs returns the address of a family under which a cluster sees its peer's hosts that are
// not pods; invalid: none.
func unknownAs(at *Side, from *Side, v6 bool) netip.Addr {
	return seenAs(at.Peering, from.Peering.UnknownSource().Of(v6), true)
}

// familyOf returns the name of a family.
func familyOf(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// families returns the families, by whether they are IPv6, that both Peerings carry between pods.
// It is IPv4 if there is none: what is wrong then is found as in any other case.
func families(a, b *Side) (all []bool) {
	for _, v6 := range []bool{false, true} {
		if a.Peering.Carries(v6) && b.Peering.Carries(v6) {
			all = append(all, v6)
		}
	}
	if len(all) == 0 {
		all = []bool{false}
	}
	return all
}
