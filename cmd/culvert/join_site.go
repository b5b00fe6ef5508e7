//go:build !nokube

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/kube/deploy"
	"culvert/kube/image"
	"culvert/kube/join"
	"culvert/kube/manifests"
	"culvert/kube/peering"
)

// A joiner has what culvert join, invite, accept and leave share.
type joiner struct {
	*cobra.Command
	kubeconfig                      string
	contexts, names                 []string
	image, expose, endpoint         string
	push                            string       // where packed goes
	packed                          *image.Image // this program; nil without --push
	podCIDRs, serviceCIDRs, avoided []string
	importing                       []string
	replicas                        int
	yes                             bool
	timeout                         time.Duration
	pods, services                  map[string][]netip.Prefix // by cluster name
	imports                         map[string]string         // namespaces, likewise
	avoid                           []netip.Prefix
	say                             func(format string, args ...any) // prints a line of progress
}

// A site is one of the clusters.
type site struct {
	*deploy.Cluster
	context, version, name string
	imports                string // namespace given by the user
	found                  *join.Cluster
	had, wants             *manifests.Gateway // what is installed, and what should be
	plan                   *deploy.Plan
}

func (j *joiner) addCluster(cmd *cobra.Command, contexts string) {
	j.Command = cmd
	j.say = func(format string, args ...any) {
		w := cmd.ErrOrStderr()
		fmt.Fprintln(w, cli.Wrap(fmt.Sprintf(format, args...), cli.Width(w)))
	}
	flags := cmd.Flags()
	flags.StringVar(&j.kubeconfig, "kubeconfig", "", "`FILE` that leads to the clusters (default: what kubectl takes)")
	flags.StringArrayVar(&j.contexts, "context", nil, contexts)
	flags.BoolVarP(&j.yes, "yes", "y", false, "do not ask")
	flags.DurationVar(&j.timeout, "timeout", 5*time.Minute, "how long to wait for what others have to do")
	flags.SortFlags = false
}

// addInstall adds the flags for installing. of is the prefix by which a flag's value names its
// cluster.
func (j *joiner) addInstall(cmd *cobra.Command, of string) {
	flags := cmd.Flags()
	flags.StringVar(&j.image, "image", "",
		"`NAME` of culvert's image in a registry that all nodes reach (default: the one that is installed)")
	flags.StringVar(&j.push, "push", "",
		"`REF` where to push this program as the image first, as culvert image push does, instead of --image")
	flags.IntVar(&j.replicas, "replicas", 0,
		"`NUMBER` of pods of the gateway, of which one forwards (default: as it is, or 1)")
	flags.StringArrayVar(&j.importing, "imports", nil,
		"`"+of+
			"NAMESPACE` for Services that the other cluster exports, which has to be there (default: as it is, or none)")
	flags.StringArrayVar(&j.podCIDRs, "pod-cidr", nil, "`"+of+"CIDR` of pods, if it is not found; may be repeated")
	flags.StringArrayVar(&j.serviceCIDRs, "service-cidr", nil,
		"`"+of+"CIDR` of Services, if it is not found; may be repeated")
	flags.StringArrayVar(&j.avoided, "avoid", nil, "`CIDR` that nothing that is chosen may overlap; may be repeated")
}

func (j *joiner) addExpose(cmd *cobra.Command) {
	cmd.Flags().StringVar(&j.expose, "expose", "",
		"`TYPE` of the Service by which the Server is reached: LoadBalancer or NodePort (default: LoadBalancer if that cluster has load balancers)")
	cmd.Flags().StringVar(&j.endpoint, "endpoint", "",
		"`HOST:PORT` by which the Client reaches the Server, if it is not that of the Service")
	cli.FlagValues(cmd, "expose", "LoadBalancer", "NodePort")
}

// check parses the flags. single says that there is only one cluster, which flags need not name.
func (j *joiner) check(single bool) error {
	e := new(configfile.Errors)
	for _, name := range j.names {
		join.CheckName(e, "--name", name)
	}
	of := func(flag, what, text string) (name, value string) {
		name, value, named := strings.Cut(text, "=")
		if !named || flag == "--avoid" { // which is of no cluster
			name, value = "", text
		}
		if named == single && flag != "--avoid" {
			e.Add(flag, "%q: want %s", text, map[bool]string{true: "a " + what, false: "NAME=" + strings.ToUpper(what) +
				" with the name of a cluster"}[single])
		}
		return name, value
	}
	read := func(flag string, texts []string) map[string][]netip.Prefix {
		all := map[string][]netip.Prefix{}
		for _, text := range texts {
			name, list := of(flag, "CIDR", text)
			for one := range strings.SplitSeq(list, ",") {
				p := e.Prefix(flag, configfile.Scalar(one))
				if fault := peering.CheckCIDR(p); p.IsValid() && fault != "" && flag == "--pod-cidr" {
					e.Add(flag, "%s", fault)
				} else if p.IsValid() {
					all[name] = append(all[name], p)
				}
			}
		}
		return all
	}
	j.pods, j.services, j.avoid = read("--pod-cidr", j.podCIDRs), read("--service-cidr", j.serviceCIDRs),
		read("--avoid", j.avoided)[""]
	j.imports = map[string]string{}
	for _, text := range j.importing {
		name, namespace := of("--imports", "namespace", text)
		e.Name("--imports", namespace, configfile.MaxLabel)
		j.imports[name] = namespace
	}
	if j.expose != "" {
		e.OneOf("--expose", configfile.Scalar(j.expose), "LoadBalancer", "NodePort")
	}
	if j.endpoint != "" {
		if fault := peering.CheckEndpoint(j.endpoint); fault != "" {
			e.Add("--endpoint", "%s", fault)
		}
	}
	if j.replicas != 0 {
		checkReplicas(e, j.replicas)
	}
	if j.timeout <= 0 {
		e.Add("--timeout", "want more than 0")
	}
	if j.push != "" && j.image != "" {
		e.Add("--push", "it makes the image that --image names: give one of the two")
	}
	if err := e.Err(); err != nil || j.push == "" {
		return err
	}
	im, tag, err := packed(nil, j.ErrOrStderr())
	if err == nil {
		j.packed = im
		j.image, err = im.Name(j.push, tag)
	}
	if err != nil {
		return fmt.Errorf("--push: %w", err)
	}
	return nil
}

// pushed pushes the image, if that is wanted. It comes after the question and before any change of
// a cluster.
func (j *joiner) pushed() (err error) {
	if j.packed == nil {
		return nil
	}
	j.say("pushing %s", j.image)
	tag, _, _ := strings.Cut(j.image, "@")
	o := image.PushOptions{Progress: progress(j.ErrOrStderr())}
	if j.image, err = j.packed.Push(j.Context(), tag, "", o); err != nil {
		return j.unchanged(fmt.Errorf("--push: %w", err))
	}
	return nil
}

// lacks returns the architectures of a cluster's nodes for which --push has no program.
func (j *joiner) lacks(s *site) string {
	if j.packed == nil {
		return ""
	}
	lacking := slices.DeleteFunc(slices.Clone(s.found.Archs), func(arch string) bool {
		return slices.Contains(j.packed.Archs, arch)
	})
	return strings.Join(lacking, " and ")
}

// site connects to the cluster of a context, and checks the user's rights.
func (j *joiner) site(ctx context.Context, name string, rights []deploy.Right) (*site, error) {
	o := operator{kubeconfig: j.kubeconfig, context: name}
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	config.WarningHandler = rest.NoWarnings{}
	s := &site{context: name}
	if s.Cluster, err = deploy.New(config); err != nil {
		return nil, err
	}
	if s.version, err = s.Version(ctx); err == nil {
		err = s.Allowed(ctx, rights)
	}
	return s, err
}

// survey reads the state of a cluster. name is its ID; "" derives one from its Peerings or the
// context.
func (j *joiner) survey(ctx context.Context, s *site, name string) error {
	survey, err := s.Survey(ctx)
	if err != nil {
		return err
	}
	if name == "" {
		name = survey.Own()
	}
	if name == "" {
		name = join.NameOf(s.context)
	}
	e := new(configfile.Errors)
	if join.CheckName(e, "--name", name); e.Err() != nil {
		return e.Err()
	}
	key := name
	if len(j.contexts) == 1 {
		key = ""
	}
	s.name, s.imports = name, j.imports[key]
	s.found, err = survey.Find(name, join.Hints{Pods: j.pods[key], Services: j.services[key], Avoid: j.avoid,
		API: s.API()})
	return err
}

// notes returns the annotations of a Peering that culvert join writes; endpoint is the one that was
// found, if any.
func (s *site) notes(spec *peering.Spec, endpoint string) map[string]string {
	return s.found.Notes(spec, s.found.Nonce(spec.Peer), endpoint)
}

// lacksGateway returns an error if nobody but another program, such as Helm, can make the gateway.
func (s *site) lacksGateway() error {
	if s.plan.Owner == "" || s.had.Replicas > 0 {
		return nil
	}
	return fmt.Errorf("the Peering is there, and its gateway is not: set %s in the values of %s, then run the same "+
		"command again", s.wants.Values(s.had), s.plan.Owner)
}

// of adds the name of the cluster to an error.
func (s *site) of(err error) error {
	if err == nil {
		return nil
	}
	name := s.name
	if name == "" {
		name = s.context
	}
	return fmt.Errorf("%s: %w", name, err)
}

// waiting returns a function that prints what a cluster waits for.
func (j *joiner) waiting(s *site) func(string) {
	return func(missing string) { j.say("%s: waiting: %s", s.name, missing) }
}

// bounded returns a context that limits a wait.
func (j *joiner) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(j.Context(), j.timeout)
}

// confirm asks whether to do what was shown.
func (j *joiner) confirm(question string) error {
	if j.yes {
		return nil
	}
	if f, ok := j.InOrStdin().(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
			return errors.New(
				"nothing was changed: there is no terminal to ask at; if what is shown is right, add --yes")
		}
	}
	fmt.Fprintf(j.ErrOrStderr(), "%s [y/N] ", question)
	select {
	case line := <-readLines(j.InOrStdin()):
		if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
			return nil
		}
		return errors.New("nothing was changed")
	case <-j.Context().Done():
		return errors.New("interrupted; nothing was changed")
	}
}

// unchanged returns err, an error from before any change. If the user has interrupted, it hides the
// interrupted request, which does not matter.
func (j *joiner) unchanged(err error) error {
	if err != nil && errors.Is(j.Context().Err(), context.Canceled) {
		return errors.New("interrupted; nothing was changed")
	}
	return err
}

// show prints what a cluster has and what it will get.
func (j *joiner) show(s *site, role string, lines []join.Line) error {
	out := j.ErrOrStderr()
	nodes := "nodes"
	if s.found.Nodes == 1 {
		nodes = "node"
	}
	fmt.Fprintf(out, "%s (context %s, Kubernetes %s, %d %s), %s:\n", s.name, s.context, s.version,
		s.found.Nodes, nodes, role)
	t := cli.NewTable(out)
	for _, l := range lines {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", l.What, l.Value, l.Source)
	}
	return t.Flush()
}

// wanted decides the parts of a Peering and its gateway that depend on the user or on the present
// installation: image, Service, number of pods, and the namespace for imports. It adds them to
// lines.
func (j *joiner) wanted(s *site, spec *peering.Spec, lines *[]join.Line) (err error) {
	peer, role := spec.Peer, spec.Role
	if s.had, err = s.Installed(j.Context(), peer, spec.Imports); err != nil {
		return err
	}
	spec.Imports = cmp.Or(s.imports, spec.Imports)
	s.wants = &manifests.Gateway{Peering: peer, Image: cmp.Or(j.image, s.had.Image), Expose: j.expose,
		Imports: spec.Imports, Replicas: cmp.Or(j.replicas, s.had.Replicas, 1)}
	if *s.had != *s.wants && spec.Imports != "" {
		if err := s.CanImport(j.Context(), s.wants); err != nil {
			return err
		}
	}
	if s.wants.Image == "" {
		return errors.New("--image: missing; name culvert's image in a registry that all nodes reach, or push this program there " +
			"with --push, such as registry.example/culvert:1.0")
	}
	if lacking := j.lacks(s); lacking != "" {
		return fmt.Errorf("--push: nodes are of %s, and this program is for %s; put culvert-linux-%[1]s of the same "+
			"release beside it, or push it with culvert image push --binary and give --image", lacking,
			strings.Join(j.packed.Archs, " and "))
	}
	why := "--expose"
	switch {
	case role == "Client":
		s.wants.Expose, why = "ClusterIP", ""
	case j.expose != "":
	case s.had.Expose == "LoadBalancer" || s.had.Expose == "NodePort":
		s.wants.Expose, why = s.had.Expose, "as it is"
	case s.found.Balanced:
		s.wants.Expose, why = "LoadBalancer", "load balancers of this cluster have addresses"
	default:
		s.wants.Expose, why = "NodePort", "no load balancer of this cluster has an address"
	}
	if why != "" {
		*lines = append(*lines, join.Line{What: "reached by", Value: s.wants.Expose, Source: why})
	}
	if s.wants.Replicas > 1 {
		*lines = append(*lines, join.Line{What: "pods", Value: strconv.Itoa(s.wants.Replicas), Source: "one forwards"})
	}
	if spec.Imports != "" {
		source := "as it is"
		if s.imports != "" {
			source = "--imports"
		}
		*lines = append(*lines, join.Line{What: "exports of " + peer, Value: "in namespace " + spec.Imports,
			Source: source})
	}
	name, digest, _ := strings.Cut(s.wants.Image, "@") // in the last column, which wraps
	if j.packed != nil {
		digest = "this program; " + digest
	}
	*lines = append(*lines, join.Line{What: "image", Value: name, Source: digest})
	if role == "Server" && s.wants.Expose == "NodePort" && j.endpoint == "" && !s.found.Address.IsValid() {
		return errors.New("--endpoint: missing; no Node has an IPv4 address by which a node port is reached")
	}
	return j.rehearse(s, spec, lines)
}

// rehearse has the API server check everything before anything is changed. Of what somebody else
// owns, nothing is changed later either.
func (j *joiner) rehearse(s *site, spec *peering.Spec, lines *[]join.Line) (err error) {
	if s.plan, err = s.Rehearse(j.Context(), s.wants, spec, s.notes(spec, "")); err != nil {
		return err
	}
	for _, label := range s.plan.Kept {
		*lines = append(*lines, join.Line{What: "stays", Value: label,
			Source: "somebody else has set it, and gateways fit in"})
	}
	if s.plan.Owner == "" {
		return nil
	}
	if s.had.Replicas > 0 && spec.Role == "Client" {
		s.wants.Expose = s.had.Expose // which nobody uses
	}
	text := s.wants.Values(s.had)
	if text == "" {
		text = "nothing"
	}
	*lines = append(*lines, join.Line{What: "installed by", Value: s.plan.Owner,
		Source: "nothing of it is changed here: only the Peering is made"},
		join.Line{What: "change there", Value: text, Source: "in its values, as of the chart"})
	return nil
}
