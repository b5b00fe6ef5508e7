package verify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"culvert/kube/mcs"
	"culvert/kube/verify/probe"
)

// paths returns the paths to test, in each family.
func (r *run) paths() (all []Path) {
	add := func(kind string, i, from, j, to int) {
		for _, v6 := range r.families {
			p := r.path(kind, i, from, j, to, v6)
			if len(r.families) > 1 {
				p.Family = familyOf(v6)
			}
			all = append(all, p)
		}
	}
	for i := range r.sides {
		for n := range r.chosen[i] {
			add(KindInside, i, n, i, (n+1)%len(r.chosen[i]))
		}
	}
	hops := ring(len(r.chosen[0]), len(r.chosen[1]))
	if r.o.AllNodes {
		hops = everyPair(len(r.chosen[0]), len(r.chosen[1]))
	}
	for _, h := range hops {
		from := 0
		if h.away {
			from = 1
		}
		add(KindPods, from, h.from, 1-from, h.to)
	}
	add(KindNodePort, 1, 0, 0, len(r.chosen[0])-1)
	add(KindNodePort, 0, 0, 1, len(r.chosen[1])-1)
	return all
}

// path returns the path of a family from a node to another, given the indexes of the clusters and
// of the nodes.
func (r *run) path(kind string, i, from, j, to int, v6 bool) Path {
	a, b := r.sides[i], r.sides[j]
	p := Path{Kind: kind, from: a, to: b, fromNode: r.chosen[i][from], toNode: r.chosen[j][to], mtu: a.Peering.MTU,
		v6: v6}
	p.From, p.To = a.of(p.fromNode), b.of(p.toNode)
	p.unknown = unknownAs(b, a, v6)
	if p.target = r.servers[j][to].Addresses.Of(v6); !p.target.IsValid() {
		p.Error = fmt.Sprintf("pods on node %s have no address of %s", p.toNode, familyOf(v6))
	}
	switch kind {
	case KindPods:
		p.target = seenAs(a.Peering, p.target, false)
	case KindNodePort:
		// the asker's own node may route its pods there without translation
		p.via = r.chosen[i][(from+1)%len(r.chosen[i])]
	}
	return p
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// nodePorts creates the Services for the paths by a cluster's NodePorts.
func (r *run) nodePorts(ctx context.Context, i int, paths []Path) error {
	for n := range paths {
		p := &paths[n]
		if p.Kind != KindNodePort || p.from != r.sides[i] {
			continue
		}
		node := r.sides[i].node(p.via)
		far := seenAs(r.sides[i].Peering, p.target, false)
		p.target = netip.Addr{}
		if node == nil || !node.Addresses.Of(p.v6).IsValid() || !far.IsValid() {
			continue
		}
		made, err := r.clusters[i].Create(ctx, r.namespace, serviceObjects("node-port-"+strings.ToLower(familyOf(p.v6)),
			"NodePort", far, nil)...)
		if apierrors.IsInvalid(err) && len(r.families) > 1 {
			p.Error = noService
			continue
		}
		if err != nil {
			return err
		}
		p.target = node.Addresses.Of(p.v6)
		if p.port, err = nodePort(made[0]); err != nil {
			return err
		}
	}
	return nil
}

// askers runs the asking pods on one cluster's nodes, and puts their answers into the paths.
func (r *run) askers(ctx context.Context, i int, paths []Path) error {
	d := r.sides[i].program()
	var objects []map[string]any
	var asked [][]*Path // by asker
	for _, node := range r.chosen[i] {
		var own []*Path
		for n := range paths {
			p := &paths[n]
			if p.from != r.sides[i] || p.fromNode != node {
				continue
			}
			if !p.target.IsValid() {
				p.Error = cmp.Or(p.Error, "the Peering has no address for the far end")
				continue
			}
			own = append(own, p)
		}
		for part := range slices.Chunk(own, perPod) {
			t := &probe.Task{Token: r.token, Patience: patience}
			for n, p := range part {
				t.Targets = append(t.Targets, p.asTarget(n))
			}
			text, err := json.Marshal(t)
			if err != nil {
				return err
			}
			objects = append(objects, podObject(d, fmt.Sprint("asker-", len(asked)), node, "ask", string(text)))
			asked = append(asked, part)
		}
	}
	if _, err := r.clusters[i].Create(ctx, r.namespace, objects...); err != nil {
		return err
	}
	pods, err := r.await(ctx, i, askTime, len(objects), "asker-", func(p *Pod) bool { return p.Phase == "Succeeded" })
	if err != nil {
		return err
	}
	for n, pod := range pods {
		var answers []probe.Answer
		if err := json.Unmarshal([]byte(pod.Message), &answers); err != nil || len(answers) != len(asked[n]) {
			return fmt.Errorf("pod %s on node %s has said %q: is its image as new as this culvert?", pod.Name,
				pod.Node, pod.Message)
		}
		for k, a := range answers {
			p := asked[n][k]
			p.Answer = a
			switch p.Kind {
			case KindPods, KindService: // the gateway serves the Service, and keeps clients' addresses
				p.Want = text(seenAs(p.to.Peering, pod.Addresses.Of(p.v6), false))
			case KindInside:
				p.Want = text(pod.Addresses.Of(p.v6))
			case KindNodePort: // some nodes keep a pod's address
				if own := text(seenAs(p.to.Peering, pod.Addresses.Of(p.v6), false)); a.Seen == own {
					p.Want = own
				} else {
					p.Want = text(p.unknown)
				}
			}
		}
	}
	return nil
}

// asTarget returns the path as a target for an asker.
func (p *Path) asTarget(n int) probe.Target {
	port := probe.Port
	if p.port != 0 {
		port = p.port
	}
	t := probe.Target{Name: fmt.Sprint(n), Address: net.JoinHostPort(cmp.Or(p.host, p.target.String()),
		fmt.Sprint(port))}
	if p.Kind == KindName {
		t.Address, t.Zone = p.host, mcs.ClusterSet
	}
	if p.Kind == KindPods {
		t.MTU, t.Bytes = p.mtu, bulkBytes
	}
	return t
}
