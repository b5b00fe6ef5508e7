package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"culvert/kube/join/terms"
)

// A Request says which clusters are to be joined.
type Request struct {
	*Options
	Contexts []string // of two or more clusters
	Names    []string // of the clusters; none: as their Peerings say, or made of contexts
	Pairs    []string // two names each, with a dash between them; none: each with each other
	Servers  []string // contexts of clusters that are Servers where nothing else decides that
}

// A Plan says how clusters are joined.
type Plan struct {
	Names  []string // of all clusters, in the order of contexts
	Sites  []*Site  // likewise, without those that cannot be reached
	Absent []error  // why those cannot, and contexts that were left out
	Pairs  []*Pair

	request *Request
}

// A Pair is two clusters that are joined.
type Pair struct {
	Ends [2]*End // the client, the server
	Err  error   // why they are not
}

// stands reports whether the proposal changes nothing.
func (p *Pair) stands() bool { return p.Ends[0].Stands() && p.Ends[1].Stands() }

// Stands reports whether the plan changes nothing.
func (p *Plan) Stands() bool {
	return !slices.ContainsFunc(p.Pairs, func(p *Pair) bool { return !p.stands() })
}

// NewPlan surveys clusters, decides how they are joined, and has their API servers check it. Of two
// clusters both must be there; of more, those that cannot be reached are left out. Nothing is
// changed.
func NewPlan(ctx context.Context, r *Request) (*Plan, error) {
	p := &Plan{request: r}
	if err := p.look(ctx); err != nil {
		return nil, err
	}
	if err := p.match(); err != nil {
		return nil, err
	}
	if err := p.propose(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// look surveys the clusters. A context that leads to a cluster which is there already is left out.
func (p *Plan) look(ctx context.Context) error {
	contexts := p.request.Contexts
	sites, errs := make([]*Site, len(contexts)), make([]error, len(contexts))
	var tasks sync.WaitGroup
	for i, name := range contexts {
		if slices.Contains(contexts[:i], name) {
			continue
		}
		tasks.Go(func() {
			if sites[i], errs[i] = p.request.site(ctx, i); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", name, errs[i])
			}
		})
	}
	tasks.Wait()
	return p.reached(ctx, sites, errs)
}

// reached takes the clusters that were surveyed, and returns an error if they are too few.
func (p *Plan) reached(ctx context.Context, sites []*Site, errs []error) error {
	contexts, r := p.request.Contexts, *p.request
	r.Contexts, r.Names = nil, nil
	for i, s := range sites {
		if errs[i] != nil {
			p.Absent = append(p.Absent, errs[i])
		} else if err := p.again(contexts[i], s); err != nil {
			p.Absent = append(p.Absent, err)
			continue
		} else {
			p.Sites = append(p.Sites, s)
		}
		r.Contexts = append(r.Contexts, contexts[i])
		if len(p.request.Names) > 0 {
			r.Names = append(r.Names, p.request.Names[i])
		}
	}
	if len(p.Absent) > 0 && len(contexts) == 2 || len(p.Sites) < 2 || ctx.Err() != nil {
		return errors.Join(append(slices.Clip(p.Absent), ctx.Err())...)
	}
	p.request, p.Names = &r, r.names(p.Sites)
	return r.distinct(p.Names)
}

// again returns an error if the cluster of a context is there already. s is nil if the context is.
func (p *Plan) again(context string, s *Site) error {
	if s == nil {
		return fmt.Errorf("--context: %s is given twice", context)
	}
	if k := slices.IndexFunc(p.Sites, func(o *Site) bool { return o.id == s.id }); k >= 0 {
		return fmt.Errorf("--context: %s and %s lead to the same cluster", p.Sites[k].Context, context)
	}
	return nil
}

// site surveys the cluster of a context.
func (r *Request) site(ctx context.Context, i int) (*Site, error) {
	own := ""
	if len(r.Names) > 0 {
		own = r.Names[i]
	}
	s, err := r.connect(ctx, r.Contexts[i])
	if err == nil {
		s.id, err = s.cluster.ID(ctx)
	}
	if err == nil {
		err = s.survey(ctx, own)
	}
	if err == nil {
		err = s.Found.CheckOwn()
	}
	return s, err
}

// names returns the names of all clusters, also of those that cannot be reached.
func (r *Request) names(reached []*Site) (names []string) {
	for i, context := range r.Contexts {
		k := slices.IndexFunc(reached, func(s *Site) bool { return s.Context == context })
		switch {
		case k >= 0:
			names = append(names, reached[k].Name)
		case len(r.Names) > 0:
			names = append(names, r.Names[i])
		default:
			names = append(names, terms.NameOf(context))
		}
	}
	return names
}

// distinct returns an error if two clusters have the same name, or if a wish names a cluster that
// there is not.
func (r *Request) distinct(names []string) error {
	for i, name := range names {
		if k := slices.Index(names, name); k < i {
			return fmt.Errorf("--name: the clusters of contexts %s and %s would both be %s; give each a name",
				r.Contexts[k], r.Contexts[i], name)
		}
	}
	for name, w := range r.Wishes {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%s: %q is the name of no cluster here; they are %s", w.flag(), name,
				strings.Join(names, ", "))
		}
	}
	return nil
}

// match decides which clusters are joined, and which one of two is the server.
func (p *Plan) match() error {
	all, err := pairsOf(p.request.Pairs, p.Names)
	if err != nil {
		return err
	}
	for _, names := range all {
		a, b := p.Site(names[0]), p.Site(names[1])
		if a == nil || b == nil {
			continue
		}
		server, why := p.request.guess(a, b)
		client := a
		if server == a {
			client = b
		}
		of, many := "", len(p.Names) > 2
		if many {
			of = " of " + client.Name
		}
		p.request.say("%s is the Server%s: %s", server.Name, of, why)
		p.Pairs = append(p.Pairs, &Pair{Ends: [2]*End{client.end(server.Name, many), server.end(client.Name, many)}})
	}
	for _, err := range p.Absent {
		p.request.say("left out: %v", err)
	}
	if len(p.Pairs) == 0 {
		return errors.Join(append([]error{errors.New("no pair is left to join")}, p.Absent...)...)
	}
	return nil
}

// Site returns the cluster of a name; nil if it cannot be reached.
func (p *Plan) Site(name string) *Site {
	if k := slices.IndexFunc(p.Sites, func(s *Site) bool { return s.Name == name }); k >= 0 {
		return p.Sites[k]
	}
	return nil
}

// Ends returns the ends that a cluster has.
func (p *Plan) Ends(s *Site) (ends []*End) {
	for _, pair := range p.Pairs {
		for _, e := range pair.Ends {
			if e.Site == s {
				ends = append(ends, e)
			}
		}
	}
	return ends
}

// guess decides which of two clusters is the server, and says why.
func (r *Request) guess(a, b *Site) (s *Site, why string) {
	role := cmp.Or(a.Found.Role(b.Name), map[string]string{"Server": "Client",
		"Client": "Server"}[b.Found.Role(a.Name)])
	first, second := slices.Contains(r.Servers, a.Context), slices.Contains(r.Servers, b.Context)
	switch {
	case role == "Server":
		return a, "its Peering says so"
	case role == "Client":
		return b, "the Peering says so"
	case first && !second:
		return a, "--server"
	case second && !first:
		return b, "--server"
	case a.Found.Balanced != b.Found.Balanced && a.Found.Balanced:
		return a, "its load balancers have addresses, and the other cluster has none; --server changes it"
	case a.Found.Balanced != b.Found.Balanced:
		return b, "its load balancers have addresses, and the other cluster has none; --server changes it"
	case a.Found.Public && !b.Found.Public && !a.Found.Balanced:
		return a, "its nodes have external addresses, and those of the other cluster have none; --server changes it"
	}
	return b, "it was named last; --server changes it"
}

// propose proposes all ends, one pair after the other so that none takes a CIDR of another, and has
// the API servers check them.
func (p *Plan) propose(ctx context.Context) error {
	for _, pair := range p.Pairs {
		specs, lines, err := terms.Pair(pair.Ends[0].Found, pair.Ends[1].Found, p.request.Endpoint)
		if err != nil {
			return err
		}
		for i, e := range pair.Ends {
			e.Spec, e.Lines = specs[i], lines[i]
		}
	}
	return p.each(func(pair *Pair) error {
		for _, e := range pair.Ends {
			if err := e.complete(ctx); err != nil {
				return e.of(err)
			}
		}
		return nil
	})
}

// each calls do for each of the pairs, side by side, and returns the errors in the order of pairs.
func (p *Plan) each(do func(*Pair) error) error {
	errs := make([]error, len(p.Pairs))
	var tasks sync.WaitGroup
	for i, pair := range p.Pairs {
		tasks.Go(func() { errs[i] = do(pair) })
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// pairsOf returns the pairs of clusters that texts name; if there are no texts, all pairs.
func pairsOf(texts, names []string) (pairs [][2]string, err error) {
	var all [][2]string
	for i, b := range names {
		for _, a := range names[:i] {
			all = append(all, [2]string{a, b})
		}
	}
	if len(texts) == 0 {
		return all, nil
	}
	for _, text := range texts {
		var fits [][2]string
		for _, p := range all {
			if text == p[0]+"-"+p[1] || text == p[1]+"-"+p[0] {
				fits = append(fits, p)
			}
		}
		switch {
		case len(fits) == 0:
			return nil, fmt.Errorf("--pairs: %q is no two clusters with a dash between them; they are %s", text,
				strings.Join(names, ", "))
		case len(fits) > 1:
			return nil, fmt.Errorf("--pairs: %q may be %s and %s or %s and %s; give other names by --name", text,
				fits[0][0], fits[0][1], fits[1][0], fits[1][1])
		case !slices.Contains(pairs, fits[0]):
			pairs = append(pairs, fits[0])
		}
	}
	return pairs, nil
}
