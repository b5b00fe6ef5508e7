package join

import (
	"cmp"
	"context"

	"culvert/kube/join/terms"
	"culvert/kube/peering"
)

// A Result is what one end has become.
type Result struct {
	Cluster  string       `json:"cluster"`
	Context  string       `json:"context"`
	Peer     string       `json:"peer"`
	Role     string       `json:"role"`
	Endpoint string       `json:"endpoint,omitempty"`
	Nodes    string       `json:"nodes"`
	RTT      string       `json:"rtt,omitempty"`
	Sees     []Seen       `json:"sees"`
	Found    []terms.Line `json:"found"`
}

// Seen is a CIDR of the other cluster.
type Seen struct {
	Cluster string `json:"cluster"`
	What    string `json:"what"` // "pods" or "nodes and Services"
	CIDR    string `json:"cidr"`
	As      string `json:"as"`
}

// sees lists the other cluster's CIDRs in a Peering.
func sees(spec *peering.Spec) (all []Seen) {
	for _, r := range spec.Remote.PodCIDRs {
		all = append(all, Seen{spec.Peer, "pods", r.CIDR, cmp.Or(r.Remap, r.CIDR)})
	}
	for _, r := range spec.Remote.Externals() {
		all = append(all, Seen{spec.Peer, "nodes and Services", r.CIDR, cmp.Or(r.Remap, r.CIDR)})
	}
	return all
}

// result returns what the end has become.
func (e *End) result(ctx context.Context) (Result, error) {
	status, err := e.cluster.Status(ctx, e.Spec.Peer)
	if err != nil {
		return Result{}, e.of(err)
	}
	return Result{Cluster: e.Name, Context: e.Context, Peer: e.Spec.Peer, Role: e.Spec.Role,
		Endpoint: e.Spec.Endpoint, Nodes: status.NodesReady, RTT: status.RTT, Sees: sees(e.Spec),
		Found: e.Lines}, nil
}

// Results returns the results for both ends of each pair that is joined. Of the others it returns
// why they are not, and of clusters why they were left out. A pair whose status cannot be read
// counts as not joined.
func (p *Plan) Results(ctx context.Context) (all []Result, missing []error) {
	all, missing = []Result{}, append(missing, p.Absent...)
	for _, pair := range p.Pairs {
		var ends [2]Result
		for i, e := range pair.Ends {
			if pair.Err == nil {
				ends[i], pair.Err = e.result(ctx)
			}
		}
		if pair.Err != nil {
			missing = append(missing, pair.Err)
		} else {
			all = append(all, ends[:]...)
		}
	}
	return all, missing
}
