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
	if namespace == "" {
		return nil, fmt.Sprintf("spec.imports of Peering %s names no namespace", a.Peering.Metadata.Name), nil
	}
	if !b.Peering.External.IsValid() {
		return nil, fmt.Sprintf(
			"%s's Peering has no spec.local.externalCIDR, from which exported Services have their addresses",
			b.name()), nil
	}
	if _, err := r.clusters[i].ClusterIP(ctx, namespace, r.importedName()); apierrors.IsForbidden(err) {
		return nil, fmt.Sprintf("you may not get services in namespace %s", namespace), nil
	}
	r.imported[i] = namespace
	objects := serviceObjects(exportedService, "ClusterIP", r.servers[1-i][0].Address.String(),
		map[string]any{peering.LabelExport: "true"})
	if _, err := r.clusters[1-i].Create(ctx, r.namespace, objects...); err != nil {
		return nil, "", err
	}
	at, err := r.awaitImport(ctx, i)
	if err != nil {
		return nil, "", err
	}
	for _, host := range []string{"", fmt.Sprintf("%s.%s.svc", r.importedName(), namespace)} {
		p := r.path(KindService, i, len(r.chosen[i])-1, 1-i, 0)
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
	c := s.condition(kind)
	switch {
	case c == nil:
		return fmt.Sprintf("; %s's gateway says nothing of it: is it as new as this culvert?", s.name())
	case c.Status == "True":
		return ""
	}
	return fmt.Sprintf("; %s says: %s", s.name(), cmp.Or(c.Message, c.Reason))
}
