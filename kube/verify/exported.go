package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"culvert/gateway/config"
	"culvert/kube/mcs"
	"culvert/kube/peering"
	"culvert/kube/verify/probe"
)

const (
	exportedService = "probe"
	// until an exported Service has appeared in the other cluster, or disappeared from it
	importTime = 20 * time.Second
)

// importedName is the name of the run's Service in the other cluster.
func (r *run) importedName() string { return exportedService + "-" + r.namespace }

// exports makes each cluster export a Service to the other one, if that imports any, and returns
// the paths to it: by its address, and by its name.
func (r *run) exports(ctx context.Context) ([]Path, error) {
	var paths [2][]Path
	var notes [2]string
	err := errors.Join(r.both(func(i int) (err error) {
		paths[i], notes[i], err = r.export(ctx, i)
		return err
	})...)
	for i := range notes {
		if notes[i] != "" {
			notes[i] += ": an exported Service of " + r.sides[1-i].name() + " was not tried"
		}
	}
	r.note(notes)
	return slices.Concat(paths[0], paths[1]), err
}

// export makes cluster i import a Service of the other one. note says why it cannot.
func (r *run) export(ctx context.Context, i int) (paths []Path, note string, err error) {
	a, b := r.sides[i], r.sides[1-i]
	namespace := a.Peering.Imports
	if namespace == "" && len(a.Peering.Services.Import) > 0 { // which is the newer way
		return nil, "", nil
	}
	if namespace == "" {
		return nil, fmt.Sprintf("spec.imports of Peering %s names no namespace", a.Peering.Metadata.Name), nil
	}
	v6 := r.families[0]
	if !b.Peering.UnknownSource().Of(v6).IsValid() {
		return nil, fmt.Sprintf(
			"%s's Peering has no spec.local.externalCIDR of %s, from which exported Services have their addresses",
			b.name(), familyOf(v6)), nil
	}
	if _, err := r.clusters[i].ClusterIP(ctx, namespace, r.importedName()); apierrors.IsForbidden(err) {
		return nil, fmt.Sprintf("you may not get services in namespace %s", namespace), nil
	}
	r.imported[i] = namespace
	objects := serviceObjects(exportedService, "ClusterIP", r.servers[1-i][0].Addresses.Of(v6),
		map[string]any{peering.LabelExport: "true"})
	if _, err := r.clusters[1-i].Create(ctx, r.namespace, objects...); err != nil {
		return nil, "", err
	}
	at, err := r.awaitImport(ctx, i)
	if err != nil {
		return nil, "", err
	}
	for _, host := range []string{"", fmt.Sprintf("%s.%s.svc", r.importedName(), namespace)} {
		p := r.path(KindService, i, len(r.chosen[i])-1, 1-i, 0, v6)
		if p.target, p.host = at, host; !at.IsValid() {
			p.Error = notImported
		}
		paths = append(paths, p)
	}
	return paths, "", nil
}

var notImported = fmt.Sprintf("not imported within %s", importTime)

// awaitImport waits until the run's Service is in cluster i, for at most importTime. It returns the
// Service's address, if it has one.
func (r *run) awaitImport(ctx context.Context, i int) (at netip.Addr, err error) {
	for until := time.Now().Add(importTime); ; {
		if at, err = r.clusters[i].ClusterIP(ctx, r.imported[i], r.importedName()); err == nil &&
			at.IsValid() || time.Now().After(until) {
			return at, err
		}
		select {
		case <-ctx.Done():
			return at, ctx.Err()
		case <-time.After(look):
		}
	}
}

// forget removes the run's Service from cluster i when its gateway has heard that the other one
// exports it no more. The gateway itself would keep it for some minutes, because an export may
// return. note says why the gateway has to.
func (r *run) forget(ctx context.Context, i int) (note string, err error) {
	if r.imported[i] == "" {
		return "", nil
	}
	for until := time.Now().Add(importTime); ; {
		gone, err := r.clusters[i].Forget(ctx, r.imported[i], r.importedName())
		switch {
		case gone:
			return "", nil
		case apierrors.IsForbidden(err):
			return fmt.Sprintf("the Service %s/%s is still there, and you may not remove it: the gateway does within minutes",
				r.imported[i], r.importedName()), nil
		case time.Now().After(until):
			return "", cmp.Or(err, fmt.Errorf("the Service %s/%s is still there: the gateway removes it when %s's tells it so, which takes a tunnel between them",
				r.imported[i], r.importedName(), r.sides[1-i].name()))
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(look):
		}
	}
}

// services judges the paths to exported Services.
func (j *judge) services(a, b *Side) {
	byAddress := map[*Side]string{} // errors
	for i := range j.paths {
		p := &j.paths[i]
		if p.Kind != KindService || p.Error == "" {
			continue
		}
		if p.host == "" {
			byAddress[p.from] = p.Error
		}
		known := j.apart || j.blamed[p.From] || j.blamed[p.To]
		switch {
		case p.Error == probe.NoDNS:
			j.all = append(j.all, Finding{p.from.name(), false,
				"pods find no names at all, not even kubernetes.default.svc: whether they find an exported Service by its name was not tried"})
		case known, p.host != "" && byAddress[p.from] != "": // and that was reported
		case p.Error == notImported:
			j.wrong(p.from.name(), "a Service that %s exports is not in namespace %s after %s%s", p.to.name(),
				p.from.Peering.Imports, importTime, said(p.to, peering.Exported)+said(p.from, peering.Imported))
		case p.host != "":
			j.wrong(p.from.name(), "%s: %s, although its address answers: see what the cluster's DNS says",
				p.name(), p.Error)
		case p.to.Peering.Admit == config.AdmitExports:
			j.wrong(p.from.name(), "%s: %s: see what its gateway drops, and why: %s", p.name(), p.Error,
				p.to.kubectl("-n %s exec deploy/culvert-%s -- culvert status", peering.GatewayNamespace,
					p.to.Peering.Metadata.Name))
		default:
			j.wrong(p.from.name(),
				"%s: %s, although pods reach each other: see what kube-proxy, or what stands for it, says on node %s",
				p.name(), p.Error, p.fromNode)
		}
	}
}

// said returns the text of a condition that is not True.
func said(s *Side, kind string) string {
	c := s.Peering.Status.Condition(kind)
	switch {
	case c == nil:
		return fmt.Sprintf("; %s's gateway says nothing of it: is it as new as this culvert?", s.name())
	case c.Status == "True":
		return ""
	}
	return fmt.Sprintf("; %s says: %s", s.name(), cmp.Or(c.Message, c.Reason))
}

// maxNames is how many names of multi-cluster Services each cluster's DNS is asked for.
const maxNames = 2 * perPod

// names returns the paths by the names of multi-cluster Services: each cluster's DNS is asked for
// those that the other one exports.
func (r *run) names() (all []Path) {
	for i, a := range r.sides {
		b := r.sides[1-i]
		if len(a.Peering.Services.Import) == 0 {
			continue
		}
		note := func(format string, args ...any) {
			r.report.Findings = append(r.report.Findings, Finding{a.name(), false, fmt.Sprintf(format, args...)})
		}
		of := slices.DeleteFunc(slices.Clone(a.Imports), func(x Import) bool {
			return !slices.Contains(x.Clusters, b.name())
		})
		switch n := len(of); {
		case a.NoImports == noKind: // judged later
		case a.NoImports != "":
			note("%s: names of multi-cluster Services were not tried", a.NoImports)
		case n == 0:
			note("there is no multi-cluster Service of %s, so that DNS was asked for one that is not; culvert services "+
				"says more", b.name())
			// whether it is found out that it is not tells whether CoreDNS serves the zone
			of = []Import{{Namespace: r.namespace, Name: "none", Headless: true}}
		case n > maxNames:
			note("%d of %d names of multi-cluster Services of %s are tried", maxNames, n, b.name())
		}
		for _, x := range of[:min(len(of), maxNames)] {
			p := r.path(KindName, i, len(r.chosen[i])-1, 1-i, 0, r.families[0])
			p.host = fmt.Sprintf("%s.%s.svc.%s", x.Name, x.Namespace, mcs.ClusterSet)
			p.To, p.Want, p.headless = fmt.Sprintf("%s/%s.%s", b.name(), x.Name, x.Namespace), x.Addresses, x.Headless
			all = append(all, p)
		}
	}
	return all
}

// names judges how a cluster gets at the peer's multi-cluster Services. One cause keeps all names
// from being found.
func (j *judge) names(s *Side) {
	if len(s.Peering.Services.Import) == 0 {
		return
	}
	if s.NoImports == noKind {
		j.wrong(s.name(), "Peering %s shares Services, and %s: culvert join with --services makes it, or culvert "+
			"multicluster crds | kubectl apply -f -", s.Peering.Metadata.Name, noKind)
		return
	}
	if c := s.Peering.Status.Condition(peering.Imported); c != nil && c.Status == "False" {
		j.wrong(s.name(), "Services of %s do not come, or not all: %s", s.Peering.Peer, cmp.Or(c.Message, c.Reason))
	}
	said := map[string]bool{}
	for i := range j.paths {
		p := &j.paths[i]
		if p.Kind != KindName || p.from != s || said[p.Error] && p.Error != "" || p.empty() {
			continue
		}
		if p.Error == "" && p.Seen != p.Want && p.Want != "" {
			j.wrong(s.name(), "the cluster's DNS says that %s is %s, and the ServiceImport says %s: who else serves %s?",
				p.host, p.Seen, p.Want, mcs.ClusterSet)
		}
		switch said[p.Error] = true; {
		case p.Error == "":
		case p.Error == probe.NoDNS:
			j.all = append(j.all, Finding{s.name(), false,
				"pods find no names at all, not even kubernetes.default.svc: names of multi-cluster Services were not tried"})
		case p.Error == probe.NoZone && mcs.Zone(s.Corefile):
			j.wrong(s.name(), "the cluster's DNS does not serve %s, although its Corefile says so: CoreDNS does since 1.12.2, and "+
				"an older one refuses the Corefile; see %s", mcs.ClusterSet,
				s.kubectl("-n kube-system logs -l k8s-app=kube-dns --tail 20"))
		case p.Error == probe.NoZone:
			j.wrong(s.name(), "the cluster's DNS does not serve %s. CoreDNS does since 1.12.2 by two lines of its "+
				"Corefile, \"kubernetes cluster.local %[1]s in-addr.arpa ip6.arpa {\" and below it \"multicluster %[1]s\": %s",
				mcs.ClusterSet, s.kubectl("-n kube-system edit configmap coredns"))
		case p.Error == probe.Failing:
			j.wrong(s.name(), "the cluster's DNS answers SERVFAIL in %s, and may do so in cluster.local: CoreDNS may not list "+
				"ServiceImports; give system:coredns the right: docs/multicluster.md, Names", mcs.ClusterSet)
		default:
			j.wrong(s.name(), "%s: %s, although there is a ServiceImport: see what CoreDNS says: %s", p.name(), p.Error,
				s.kubectl("-n kube-system logs -l k8s-app=kube-dns --tail 20"))
		}
	}
}
