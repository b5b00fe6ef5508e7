package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"culvert/gateway/configfile"
	"culvert/ipam"
	"culvert/nat/rules"
)

// IPAM says from where CIDRs and addresses for auto are chosen, and where the choices are stored.
type IPAM struct {
	Pools    []netip.Prefix // ipam.pools; none = the same as Liqo's
	Reserved []netip.Prefix // ipam.reserved: in use, although no other field says so
	File     string         // ipam.file, else ipam.json in state; "" = nothing can be auto
}

// automatic is a value that the configuration leaves to ipam; it is invalid in a Config.
type automatic struct {
	path   string
	owner  ipam.Owner
	family netip.Addr // the address it stands for, or one of several: the choice has the same family
	set    func(ipam.Entry)
}

// externalOf returns the first external CIDR of a's family, the zero Prefix if there is none.
func (c *Config) externalOf(a netip.Addr) netip.Prefix {
	for _, p := range c.Local.ExternalCIDRs {
		if p.Addr().Is4() == a.Is4() {
			return p
		}
	}
	return netip.Prefix{}
}

// automatics lists the values that c leaves to ipam. Setting them changes c.
func (c *Config) automatics() []automatic {
	var as []automatic
	for i, path := range c.remotePaths() {
		if r := &c.Remote[i]; !r.Remapped.IsValid() && r.Real.IsValid() {
			as = append(as, automatic{path + ".remap", c.remoteOwner(i), r.Real.Addr(), func(e ipam.Entry) {
				r.Remapped = e.Remapped
			}})
		}
	}
	for i := range c.Addresses {
		m := &c.Addresses[i]
		if m.External.IsValid() {
			continue
		}
		for a := range m.Internal.All() {
			as = append(as, automatic{fmt.Sprintf("nat.addresses[%d].external", i), c.hostOwner(a), a,
				func(e ipam.Entry) { m.External.Set(e.Remapped.Addr()) }})
		}
	}
	for i := range c.Services {
		s := &c.Services[i]
		if s.Address.IsValid() || s.Name == "" {
			continue
		}
		for a := range s.families().All() {
			as = append(as, automatic{fmt.Sprintf("nat.services[%d].address", i), c.serviceOwner(s, a), a,
				func(e ipam.Entry) { s.Address.Set(e.Remapped.Addr()) }})
		}
	}
	return as
}

// families returns one backend of each family present.
func (s *Service) families() (p rules.Pair) {
	for _, b := range s.Backends {
		p.Set(b.Address)
	}
	return p
}

// remotePaths returns the path of each element of c.Remote.
func (c *Config) remotePaths() []string {
	paths := make([]string, len(c.Remote))
	pods, externals := 0, 0
	for i, r := range c.Remote {
		if r.External {
			paths[i] = fmt.Sprintf("network.remote.externalCIDRs[%d]", externals)
			externals++
		} else {
			paths[i] = fmt.Sprintf("network.remote.podCIDRs[%d]", pods)
			pods++
		}
	}
	return paths
}

func (c *Config) remoteOwner(i int) ipam.Owner {
	kind := ipam.Pod
	if c.Remote[i].External {
		kind = ipam.External
	}
	return ipam.Owner{Peer: c.Peer, Kind: kind, Real: c.Remote[i].Real.String()}
}

func (c *Config) hostOwner(internal netip.Addr) ipam.Owner {
	return ipam.Owner{Peer: c.Peer, Kind: ipam.Host, Real: internal.String()}
}

// serviceOwner returns one owner for all services with the same name in a's family, so that they
// share an address.
func (c *Config) serviceOwner(s *Service, a netip.Addr) ipam.Owner {
	kind := ipam.Service
	if a.Is6() {
		kind = ipam.Service6
	}
	return ipam.Owner{Peer: c.Peer, Kind: kind, Real: s.Name}
}

// Owners returns the owner of each value that c leaves to ipam.
func (c *Config) Owners() []ipam.Owner {
	var owners []ipam.Owner
	for _, a := range c.automatics() {
		owners = append(owners, a.owner)
	}
	return owners
}

// Taken returns every prefix in use by c or this machine, each with its path.
func (c *Config) Taken() []ipam.Taken {
	var ts []ipam.Taken
	add := func(name string, p netip.Prefix, owner ipam.Owner) {
		if p.IsValid() {
			ts = append(ts, ipam.Taken{Name: name, Prefix: p, Owner: owner})
		}
	}
	host := func(name string, a netip.Addr, owner ipam.Owner) {
		if a.IsValid() {
			add(name, netip.PrefixFrom(a.WithZone(""), a.BitLen()), owner)
		}
	}
	nobody := ipam.Owner{}
	both := func(name string, d rules.Pair) {
		for a := range d.All() {
			host(name, a, nobody)
		}
	}
	add("the tunnel addresses", tunnelBlock, nobody)
	for _, r := range reserved {
		add(r.name, r.prefix, nobody)
	}
	for _, list := range []struct {
		path     string
		prefixes []netip.Prefix
	}{
		{"network.local.podCIDRs", c.Local.PodCIDRs},
		{"network.local.externalCIDRs", c.Local.ExternalCIDRs},
		{"ipam.reserved", c.IPAM.Reserved},
	} {
		for i, p := range list.prefixes {
			add(fmt.Sprintf("%s[%d]", list.path, i), p, nobody)
		}
	}
	for i, path := range c.remotePaths() {
		add(path, c.Remote[i].Remapped, c.remoteOwner(i))
	}
	both("geneve.gatewayAddress", c.Geneve.GatewayAddress)
	for i, n := range c.Geneve.Nodes {
		both(fmt.Sprintf("geneve.nodes[%d].address", i), n.Address)
		host(fmt.Sprintf("geneve.nodes[%d].underlay", i), n.Underlay, nobody)
	}
	if endpoint, err := netip.ParseAddrPort(c.WireGuard.Endpoint); err == nil {
		host("wireguard.endpoint", endpoint.Addr().Unmap(), nobody)
	}
	both("nat.unknownSource", c.UnknownSource)
	for i := range c.Addresses {
		for a := range c.Addresses[i].External.All() {
			host(fmt.Sprintf("nat.addresses[%d].external", i), a, c.hostOwner(c.Addresses[i].Internal.Of(a.Is6())))
		}
	}
	for i := range c.Services {
		for a := range c.Services[i].Address.All() {
			host(fmt.Sprintf("nat.services[%d].address", i), a, c.serviceOwner(&c.Services[i], a))
		}
	}
	return append(ts, Connected()...)
}

// Connected returns the networks of this machine's interfaces, none if they cannot be read.
func Connected() []ipam.Taken {
	var ts []ipam.Taken
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
				p = netip.PrefixFrom(p.Addr().WithZone(""), p.Bits()).Masked()
				ts = append(ts, ipam.Taken{Name: "the network of " + i.Name, Prefix: p, Connected: true})
			}
		}
	}
	return ts
}

// validateIPAM checks what c leaves to ipam, as far as possible without the stored choices.
func (c *Config) validateIPAM(e *configfile.Errors) {
	if _, err := ipam.NewPlan(c.IPAM.Pools, nil); err != nil {
		path, cause, _ := strings.Cut(err.Error(), ": ")
		e.Add(path, "%s", cause)
	}
	for _, a := range c.automatics() {
		switch {
		case c.IPAM.File == "":
			e.Add(a.path,
				"auto needs a file that remembers the choice: set state to a folder that outlives this process, or set ipam.file")
		case a.owner.Kind.OneAddress() && !c.externalOf(a.family).IsValid():
			e.Add(a.path, "auto needs an %s CIDR in network.local.externalCIDRs to choose from", familyOf(a.family))
		}
	}
}

// Choice is the value of one auto of a configuration.
type Choice struct {
	Path string // of the field
	ipam.Entry
	New bool // not chosen before
}

// Remapped is a configuration in which every auto has a value.
type Remapped struct {
	Config   *Config
	Choices  []Choice
	Warnings []string
}

// Remap replaces each auto of c by its stored choice, or chooses one. accept may refuse the result
// before new choices are stored; then nothing has changed. Remap returns once the choices are
// durable. With dry it stores nothing. now is stored with new choices; ctx limits the wait for
// other gateways of the cluster.
func Remap(ctx context.Context, c *Config, now time.Time, dry bool, accept func(*Config) error) (*Remapped, error) {
	if c.IPAM.File == "" {
		return &Remapped{Config: c, Warnings: c.Warnings}, accept(c)
	}
	var r *Remapped
	choose := func(l *ipam.Ledger) (err error) {
		if r, err = c.Preview(l, c.Taken(), now); err == nil {
			err = accept(r.Config)
		}
		return err
	}
	store := ipam.Open(c.IPAM.File)
	l, err := store.Read()
	if err == nil {
		err = choose(l)
	}
	isNew := func(c Choice) bool { return c.New }
	if err == nil && !dry && slices.ContainsFunc(r.Choices, isNew) {
		err = store.Update(ctx, choose) // others may have chosen meanwhile
	}
	return r, err
}

// Preview does the same as Remap with a ledger that the caller owns, where taken is in use.
func (c *Config) Preview(l *ipam.Ledger, taken []ipam.Taken, now time.Time) (*Remapped, error) {
	plan, err := ipam.NewPlan(c.IPAM.Pools, taken)
	if err != nil {
		return nil, err
	}
	warnings, err := l.Conflicts(plan)
	if err != nil {
		return nil, err
	}
	next := *c
	next.Remote, next.Addresses, next.Services = slices.Clone(c.Remote), slices.Clone(c.Addresses),
		slices.Clone(c.Services)
	r := &Remapped{Config: &next, Warnings: slices.Concat(c.Warnings, warnings)}
	isNew := map[ipam.Owner]bool{}
	var errs []error
	for _, a := range next.automatics() {
		entry, known := l.Find(a.owner)
		if known && entry.Network.IsValid() && !slices.ContainsFunc(c.Local.ExternalCIDRs,
			func(p netip.Prefix) bool { return p.Contains(entry.Remapped.Addr()) }) {
			errs = append(errs,
				fmt.Errorf("%s: auto chose %s, which is in no CIDR of network.local.externalCIDRs any more; add one with it there, or choose again after: %s",
					a.path, entry.RemappedText(), l.Releasing(a.owner)))
			continue
		}
		if !known {
			isNew[a.owner] = true
			if a.owner.Kind == ipam.Pod || a.owner.Kind == ipam.External {
				_, err = l.Network(plan, a.owner, netip.MustParsePrefix(a.owner.Real), now)
			} else {
				_, err = l.Address(plan, a.owner, c.externalOf(a.family), now)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", a.path, err))
				continue
			}
			entry, _ = l.Find(a.owner)
		}
		a.set(entry)
		r.Choices = append(r.Choices, Choice{a.path, entry, isNew[a.owner]})
	}
	return r, errors.Join(errs...)
}

// Claim marks the gateway of c as running, in the folder with its stored choices, so that they are
// not released until the result is closed or the process dies. If c leaves nothing to ipam, a
// folder that cannot be written is no error: it cannot hold a choice to release.
func (c *Config) Claim(ctx context.Context) (io.Closer, error) {
	if c.IPAM.File == "" {
		return io.NopCloser(nil), nil
	}
	claim, err := ipam.Open(c.IPAM.File).Claim(ctx, c.Peer)
	if err != nil && len(c.Owners()) == 0 && ctx.Err() == nil {
		return io.NopCloser(nil), nil
	}
	return claim, err
}
