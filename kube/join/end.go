package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"culvert/kube/deploy"
	"culvert/kube/join/terms"
	"culvert/kube/manifests"
	"culvert/kube/mcs"
	"culvert/kube/peering"
)

// An End is a cluster's end of one peering: what is there, and what is wanted.
type End struct {
	*Site
	Title string        // what messages call it
	Spec  *peering.Spec // of its Peering
	Lines []terms.Line  // what was found and chosen, for the user

	had, wants     *manifests.Gateway
	plan           *deploy.Plan
	nonce, answers string // of the invitations to the peer and from it; "" if there is none
}

// of adds the end's title to an error.
func (e *End) of(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", e.Title, err)
}

// Stands reports whether all that is wanted is there.
func (e *End) Stands() bool {
	old := e.Found.Old(e.Spec.Peer)
	return old != nil && reflect.DeepEqual(old, e.Spec) && *e.had == *e.wants
}

// notes returns the annotations of the Peering; endpoint is the one that was found, if any.
func (e *End) notes(endpoint string) map[string]string {
	return e.Found.Notes(e.Spec, e.nonce, endpoint)
}

func (e *End) line(what, value, source string) {
	e.Lines = append(e.Lines, terms.Line{What: what, Value: value, Source: source})
}

// complete decides what depends on the present installation, and has the API server check it.
func (e *End) complete(ctx context.Context) (err error) {
	if e.had, err = e.cluster.Installed(ctx, e.Spec.Peer, e.Spec.Imports); err != nil {
		return err
	}
	if e.had.Values, err = e.cluster.Values(ctx); err == nil || e.wishes.Values != nil {
		err = e.decide()
	}
	if err == nil && *e.had != *e.wants && e.Spec.Imports != "" {
		err = e.cluster.CanImport(ctx, e.wants)
	}
	if err == nil {
		err = e.rehearse(ctx)
	}
	return err
}

// decide decides the parts of a Peering and its gateway that depend on the user or on the present
// installation: image, Service, number of pods, values, and the namespace for imports. A wish
// counts more than given values, and these more than what is there. It adds them to the lines.
func (e *End) decide() error {
	o, given, peer := e.options, e.wishes.Values, e.Spec.Peer
	values := e.had.Values
	if given != nil && given.Text() != values.Text() {
		values = given
	}
	named := &manifests.Gateway{}
	if g := given.Gateway(peer); g != nil {
		named = g
	}
	e.Spec.Imports = cmp.Or(e.wishes.Imports, named.Imports, e.Spec.Imports)
	e.wants = &manifests.Gateway{Peering: peer, Image: cmp.Or(o.Image, given.Image(), e.had.Image),
		Imports: e.Spec.Imports, Replicas: cmp.Or(o.Replicas, named.Replicas, e.had.Replicas, 1), Values: values}
	if e.wants.Image == "" {
		return errors.New("--image: missing; name culvert's image in a registry that all nodes reach, or push this " +
			"program there with --push, such as registry.example/culvert:1.0")
	}
	if lacking := e.lacks(); lacking != "" {
		return fmt.Errorf("--push: nodes are of %s, and this program is for %s; put culvert-linux-%[1]s of the same "+
			"release beside it, or push it with culvert image push --binary and give --image", lacking,
			strings.Join(o.Archs, " and "))
	}
	why := ""
	if e.wants.Expose, why = e.expose(named.Expose); why != "" {
		e.line("reached by", e.wants.Expose, why)
	}
	switch o.Admit {
	case "all":
		e.Spec.Admit = ""
	case "exports":
		e.Spec.Admit = "Exports"
	}
	if err := e.share(); err != nil {
		return err
	}
	e.explain(named.Imports)
	if e.Spec.Role == "Server" && e.wants.Expose == "NodePort" && o.Endpoint == "" && !e.Found.Address.IsValid() {
		return errors.New("--endpoint: missing; no Node has an address by which a node port is reached")
	}
	return nil
}

// share decides which namespaces' Services the clusters share, and whether culvert multicluster
// runs. Where it does, it stays until none of the cluster's Peerings is to share any.
func (e *End) share() error {
	if all := e.options.Services; all != nil {
		e.Spec.Services = peering.SpecServices{}
		if len(all) > 0 {
			e.Spec.Services = peering.SpecServices{Export: slices.Clone(all), Import: slices.Clone(all)}
		}
	}
	on, said := e.wants.Values.Multicluster()
	if said && !on && len(e.options.Services) > 0 {
		return errors.New("--services: culvert multicluster does that, and the values say multicluster.enabled: false; " +
			"leave that out of the file of --values")
	}
	stays := e.had.Multicluster && (e.options.Services == nil || e.Found.Sharing(e.peers) != "")
	e.wants.Multicluster = on || !said && (stays || e.Spec.Services.Any())
	return nil
}

// explainServices adds what is shared to the lines, and what keeps it from being used.
func (e *End) explainServices(ctx context.Context) error {
	of := func(all []string) string {
		switch {
		case len(all) == 0:
			return "no namespace"
		case slices.Contains(all, "*"):
			return "all namespaces but kube-*"
		}
		return strings.Join(all, ", ")
	}
	switch peer := e.Found.Sharing(e.peers); {
	case !e.had.Multicluster || e.options.Services == nil || e.Spec.Services.Any():
	case !e.wants.Multicluster:
		e.line("ends", "culvert multicluster", "and what it has made, because no Peering shares Services")
	case peer != "":
		e.line("stays", "culvert multicluster", "Peering "+peer+" shares Services")
	default:
		e.line("stays", "culvert multicluster", "the values say so")
	}
	s, source := e.Spec.Services, "as it is"
	if e.options.Services != nil {
		source = "--services"
	} else if !s.Any() {
		return nil
	}
	value := "of " + of(s.Export)
	if !slices.Equal(s.Export, s.Import) {
		value = "exports of " + of(s.Export) + "; imports into " + of(s.Import)
	}
	e.line("shares Services", value, source)
	if !s.Any() {
		return nil
	}
	missing, err := e.cluster.Lacks(ctx, slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(
		slices.Concat(s.Export, s.Import)))), func(name string) bool { return name == "*" }))
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		e.line("missing", "namespace "+strings.Join(missing, ", "), "nothing is shared there until somebody makes it")
	}
	switch corefile := e.cluster.Corefile(ctx); {
	case corefile == "":
		e.line("names", "not known", "see that this cluster's DNS serves clusterset.local: docs/multicluster.md, Names")
	case !mcs.Zone(corefile):
		e.line("names", "not yet", "no *.svc.clusterset.local in this cluster before ConfigMap kube-system/coredns has it: "+
			"docs/multicluster.md, Names")
	}
	return nil
}

// explain adds the gateway's pods, namespace, values and image to the lines. imports is the
// namespace that given values name.
func (e *End) explain(imports string) {
	if e.wants.Replicas > 1 {
		e.line("pods", strconv.Itoa(e.wants.Replicas), "one forwards")
	}
	if e.Spec.Imports != "" {
		source := "as it is"
		switch e.Spec.Imports {
		case e.wishes.Imports:
			source = "--imports"
		case imports:
			source = "--values"
		}
		e.line("exports of "+e.Spec.Peer, "in namespace "+e.Spec.Imports, source)
	}
	switch {
	case e.Spec.Admit == "Exports" && e.options.Admit == "":
		e.line("admits", "what is exported to "+e.Spec.Peer+", and nothing else of it", "as it is")
	case e.Spec.Admit == "Exports":
		e.line("admits", "what is exported to "+e.Spec.Peer+", and nothing else of it", "--admit")
	case e.options.Admit != "":
		e.line("admits", "all of "+e.Spec.Peer, "--admit")
	}
	if names := e.wants.Values.Names(); len(names) > 0 {
		source := "as they are"
		if e.wants.Values != e.had.Values {
			source = "--values"
		}
		e.line("values", strings.Join(names, ", "), source)
	}
	name, digest, _ := strings.Cut(e.wants.Image, "@") // in the last column, which wraps
	if e.options.Archs != nil {
		digest = "this program; " + digest
	}
	e.line("image", name, digest)
}

// lacks returns the architectures of the cluster's nodes for which an image that is about to be
// pushed has no program.
func (s *Site) lacks() string {
	if s.options.Archs == nil {
		return ""
	}
	lacking := slices.DeleteFunc(slices.Clone(s.Found.Archs), func(arch string) bool {
		return slices.Contains(s.options.Archs, arch)
	})
	return strings.Join(lacking, " and ")
}

// expose decides the type of the gateway's Service, and says why unless nobody uses it. named is
// what the given values say.
func (e *End) expose(named string) (service, why string) {
	had, server := e.had.Expose, e.Spec.Role == "Server"
	switch {
	case !server && named == "":
		return "ClusterIP", ""
	case server && e.options.Expose != "":
		return e.options.Expose, "--expose"
	case named != "":
		return named, "--values"
	case had == "LoadBalancer" || had == "NodePort":
		return had, "as it is"
	case e.Found.Balanced:
		return "LoadBalancer", "load balancers of this cluster have addresses"
	}
	return "NodePort", "no load balancer of this cluster has an address"
}

// rehearse has the API server check everything before anything is changed. Of what somebody else
// owns, nothing is changed later either.
func (e *End) rehearse(ctx context.Context) (err error) {
	if e.plan, err = e.cluster.Rehearse(ctx, e.wants, e.Spec, e.notes("")); err != nil {
		return err
	}
	e.Lines = append(e.Lines, e.plan.Kept...)
	if err := e.explainServices(ctx); err != nil {
		return err
	}
	if e.plan.Owner == "" {
		return nil
	}
	if e.wishes.Values != nil {
		return fmt.Errorf("--values: %s has installed culvert here; set them there", e.plan.Owner)
	}
	if e.had.Replicas > 0 && e.Spec.Role == "Client" {
		e.wants.Expose = e.had.Expose // which nobody uses
	}
	e.line("installed by", e.plan.Owner, "nothing of it is changed here: only the Peering is made")
	e.line("change there", cmp.Or(e.wants.Changes(e.had), "nothing"), "in its values, as of the chart")
	return nil
}

// lacksGateway returns an error if nobody but another program, such as Helm, can make the gateway.
func (e *End) lacksGateway() error {
	if e.plan.Owner == "" || e.had.Replicas > 0 {
		return nil
	}
	return fmt.Errorf("the Peering is there, and its gateway is not: set %s in the values of %s, then run the same "+
		"command again", e.wants.Changes(e.had), e.plan.Owner)
}
