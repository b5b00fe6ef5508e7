package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/rules"
)

// prepared is a configuration that every layer has accepted.
type prepared struct {
	config  *config.Config
	links   config.Links
	rules   *nat.Prepared
	tunnels *geneve.Prepared
}

// Apply replaces the desired state. It refuses a configuration as a whole, without effect, if it is
// invalid, changes something that cannot change while the gateway runs, or comes while another
// process takes over.
func (g *Gateway) Apply(c *config.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	g.applying.Lock()
	defer g.applying.Unlock()
	if err := g.life.Changeable(); err != nil {
		return err
	}
	p, err := g.prepare(c)
	if err != nil {
		return err
	}
	g.commit(p)
	return nil
}

// Amend is Apply for a configuration that differs from the running one only in the PodCIDRs of some
// nodes, in the backends, all of them pods, of some services, and in exports of pods. It returns
// false for any other, which needs Apply. Its cost depends on these nodes, services and exports,
// and it logs nothing: pods come and go all the time.
func (g *Gateway) Amend(c *config.Config) bool {
	g.applying.Lock()
	defer g.applying.Unlock()
	if g.life.Changeable() != nil { // Apply says why
		return false
	}
	now, links := g.current.Get()
	m, alone := c.Amended(now, links)
	switch {
	case !alone || m.Empty():
		return false
	case len(m.Routes) > 0 && !g.engine.Reroute(m.Routes):
		return false
	case len(m.Services) > 0 && g.engine.Amend(m.Services) != nil: // Apply does all of it again
		return false
	case len(m.Withdrawn)+len(m.Added) > 0 && g.engine.Admit(m.Withdrawn, m.Added) != nil:
		return false
	}
	g.current.Set(c, links)
	return true
}

// Check reports everything for which Apply would refuse c, and changes nothing.
func (g *Gateway) Check(c *config.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	g.applying.Lock()
	defer g.applying.Unlock()
	_, err := g.prepare(c)
	return err
}

// Changes describes the differences between c and the running configuration.
func (g *Gateway) Changes(c *config.Config) string {
	now, _ := g.current.Get()
	return c.Changes(now)
}

// SetReload sets the function that reads the configuration again when the control socket asks for
// it. It must be called before Run.
func (g *Gateway) SetReload(reload func(ctx context.Context, dryRun bool) (*control.Reloaded, error)) {
	g.inspect.ReadAgain = reload
}

// prepare does all of Apply that can fail, and changes nothing.
//
// Preconditions: g.applying is held.
// +checklocks:g.applying
func (g *Gateway) prepare(c *config.Config) (*prepared, error) {
	now, links := g.current.Get()
	if err := c.ChangesLive(now); err != nil {
		return nil, err
	}
	p := &prepared{config: c, links: links.Assign(c.Geneve.Nodes)}
	err := g.reaches(c)
	if err != nil {
		return nil, err
	}
	if p.rules, err = g.engine.Prepare(c.NAT(p.links, g.budget.Connections)); err != nil {
		return nil, err
	}
	if p.tunnels, err = g.endpoint.Prepare(c.Tunnels(p.links)); err != nil {
		return nil, err
	}
	return p, nil
}

// reaches returns an error for nodes to which no socket of this machine can send.
func (g *Gateway) reaches(c *config.Config) error {
	var errs []error
	for i := range c.Geneve.Nodes {
		at := c.Geneve.Nodes[i].Underlay
		if !g.endpoint.Reaches(at) {
			errs = append(errs,
				fmt.Errorf("geneve.nodes[%d].underlay: %s is IPv6, which this kernel does not support; boot it without ipv6.disable=1, "+
					"or write an IPv4 address", i, at))
		}
	}
	return errors.Join(errs...)
}

// commit does the rest of Apply. It cannot fail.
//
// Preconditions: g.applying is held.
// +checklocks:g.applying
func (g *Gateway) commit(p *prepared) {
	g.engine.Commit(p.rules)
	g.life.Restore(g.engine, p.links) // before their packets arrive
	g.endpoint.Commit(p.tunnels)
	if g.Role().Forwards() {
		g.endpoint.AskNew()
	}
	if err := g.wg.SetPeer(g.peer(p.config)); err != nil {
		g.log.WithError(err).Warn("the WireGuard device is closed")
	}
	old, _ := g.current.Get()
	if p.config.ConnectionCheck != old.ConnectionCheck ||
		p.config.WireGuard.PeerPublicKey != old.WireGuard.PeerPublicKey {
		g.monitor.BeginCheck(p.config)
	}
	changes, level, before := p.config.Changes(old), p.config.Log.Level, old.Log.Level
	g.current.Set(p.config, p.links)
	g.log.Info("configuration applied: " + changes)
	if level != before {
		level, _ := logrus.ParseLevel(level) // Validate has checked it
		g.log.Logger.SetLevel(level)
	}
}

// Put makes r the resource of key in the rules that the next CommitRules publishes. An error
// concerns this key only, which keeps its earlier resource.
func (g *Gateway) Put(key rules.Key, r rules.Resource) error { return g.engine.Put(key, r) }

// Delete removes the resource of key from those rules.
func (g *Gateway) Delete(key rules.Key) { g.engine.Delete(key) }

// CommitRules publishes all puts and deletes.
func (g *Gateway) CommitRules() { g.engine.CommitRules() }
