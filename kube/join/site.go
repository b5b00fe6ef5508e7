package join

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"culvert/gateway/configfile"
	"culvert/kube/deploy"
	"culvert/kube/join/terms"
)

// A Site is one of the clusters.
type Site struct {
	Context string
	Version string // of Kubernetes
	Name    string
	Found   *terms.Cluster

	options    *Options
	cluster    *deploy.Cluster
	id         string
	wishes     *Wishes
	peers      []string   // of its ends
	installing sync.Mutex // of what its ends share
}

// connect returns the cluster of a context, and checks the user's rights.
func (o *Options) connect(ctx context.Context, name string) (*Site, error) {
	s := &Site{Context: name, options: o}
	var err error
	if s.cluster, err = o.Connect(name); err == nil {
		s.Version, err = s.cluster.Check(ctx, deploy.InstallRights())
	}
	return s, err
}

// survey reads the state of the cluster. name is its ID; "" derives one from its Peerings or the
// context.
func (s *Site) survey(ctx context.Context, name string) error {
	survey, err := s.cluster.Survey(ctx)
	if err != nil {
		return err
	}
	s.Name = cmp.Or(name, survey.Own(), terms.NameOf(s.Context))
	e := new(configfile.Errors)
	if terms.CheckName(e, "--name", s.Name); e.Err() != nil {
		return e.Err()
	}
	s.wishes = s.options.wishes(s.Name)
	s.Found, err = survey.Find(s.Name, terms.Hints{Pods: s.wishes.Pods, Services: s.wishes.Services,
		Avoid: s.options.Avoid, API: s.cluster.API(), Image: cmp.Or(s.options.Image, s.wishes.Values.Image())})
	return err
}

// of adds the name of the cluster to an error.
func (s *Site) of(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", cmp.Or(s.Name, s.Context), err)
}

// end returns the cluster's end of a peering. titled says that its title names the peer.
func (s *Site) end(peer string, titled bool) *End {
	s.peers = append(s.peers, peer)
	e := &End{Site: s, Title: s.Name, nonce: s.Found.Nonce(peer)}
	if titled {
		e.Title += " with " + peer
	}
	return e
}
