//go:build !nokube

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/kube/deploy"
	"culvert/kube/image"
	"culvert/kube/join/terms"
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
	importing, valued               []string
	replicas                        int
	yes                             bool
	timeout                         time.Duration
	pods, services                  map[string][]netip.Prefix // by cluster name
	imports                         map[string]string         // namespaces, likewise
	values                          map[string]*manifests.Values
	avoid                           []netip.Prefix
	say                             func(format string, args ...any) // prints a line of progress
}

// A site is one of the clusters.
type site struct {
	*deploy.Cluster
	context, version, name, id string
	imports                    string            // namespace given by the user
	values                     *manifests.Values // likewise; nil = as they are
	found                      *terms.Cluster
	installing                 sync.Mutex // of what its ends share
}

// An end is a cluster's end of one peering: what is there, and what is wanted.
type end struct {
	*site
	title      string // what messages call it
	spec       *peering.Spec
	lines      []terms.Line // about spec
	had, wants *manifests.Gateway
	plan       *deploy.Plan
}

func (s *site) end() *end { return &end{site: s, title: s.name} }

// of adds the end's title to an error.
func (e *end) of(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", e.title, err)
}

// stands reports whether all that is wanted is there.
func (e *end) stands() bool {
	old := e.found.Old(e.spec.Peer)
	return old != nil && reflect.DeepEqual(old, e.spec) && *e.had == *e.wants
}

func (j *joiner) addCluster(cmd *cobra.Command, contexts string) {
	j.Command = cmd
	var one sync.Mutex // pairs speak side by side
	j.say = func(format string, args ...any) {
		one.Lock()
		defer one.Unlock()
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
	flags.StringArrayVar(&j.valued, "values", nil,
		"`"+of+"FILE` with values of the chart, such as image pull secrets (default: those of the last time)")
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
		terms.CheckName(e, "--name", name)
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
	j.values = map[string]*manifests.Values{}
	for _, text := range j.valued {
		name, file := of("--values", "file", text)
		v, err := valuesFile(file).read()
		if err != nil && !e.Bad("--values") {
			return err
		}
		j.values[name] = v
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

// connect returns the cluster of a context, and checks the user's rights.
func (j *joiner) connect(ctx context.Context, name string, rights []deploy.Right) (*site, error) {
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
		name = terms.NameOf(s.context)
	}
	e := new(configfile.Errors)
	if terms.CheckName(e, "--name", name); e.Err() != nil {
		return e.Err()
	}
	key := name
	if len(j.contexts) == 1 {
		key = ""
	}
	s.name, s.imports, s.values = name, j.imports[key], j.values[key]
	s.found, err = survey.Find(name, terms.Hints{Pods: j.pods[key], Services: j.services[key], Avoid: j.avoid,
		API: s.API()})
	return err
}

// notes returns the annotations of a Peering that culvert join writes; endpoint is the one that was
// found, if any.
func (e *end) notes(endpoint string) map[string]string {
	return e.found.Notes(e.spec, e.found.Nonce(e.spec.Peer), endpoint)
}

// lacksGateway returns an error if nobody but another program, such as Helm, can make the gateway.
func (e *end) lacksGateway() error {
	if e.plan.Owner == "" || e.had.Replicas > 0 {
		return nil
	}
	return fmt.Errorf("the Peering is there, and its gateway is not: set %s in the values of %s, then run the same "+
		"command again", e.wants.Changes(e.had), e.plan.Owner)
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

// waiting returns a function that prints what a cluster, or an end, waits for.
func (j *joiner) waiting(title string) func(string) {
	return func(missing string) { j.say("%s: waiting: %s", title, missing) }
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

// show prints what a cluster has and what its ends will get.
func (j *joiner) show(ends []*end) error {
	out, s := j.ErrOrStderr(), ends[0].site
	print := func(lines []terms.Line) error {
		t := cli.NewTable(out)
		for _, l := range lines {
			fmt.Fprintf(t, "  %s\t%s\t%s\n", l.What, l.Value, l.Source)
		}
		return t.Flush()
	}
	nodes := "nodes"
	if s.found.Nodes == 1 {
		nodes = "node"
	}
	title := s.name
	if len(ends) == 1 {
		title = ends[0].title
	}
	fmt.Fprintf(out, "%s (context %s, Kubernetes %s, %d %s)", title, s.context, s.version, s.found.Nodes, nodes)
	if len(ends) == 1 {
		fmt.Fprintf(out, ", %s:\n", ends[0].spec.Role)
		return print(ends[0].lines)
	}
	fmt.Fprintln(out, ":")
	inAll := func(l terms.Line) bool {
		return !slices.ContainsFunc(ends, func(e *end) bool { return !slices.Contains(e.lines, l) })
	}
	var shared []terms.Line
	for _, l := range ends[0].lines {
		if inAll(l) {
			shared = append(shared, l)
		}
	}
	if err := print(shared); err != nil {
		return err
	}
	for _, e := range ends {
		fmt.Fprintf(out, "%s with %s, %s", s.name, e.spec.Peer, e.spec.Role)
		if e.stands() {
			fmt.Fprintln(out, ": as it is")
			continue
		}
		fmt.Fprintln(out, ":")
		if err := print(slices.DeleteFunc(slices.Clone(e.lines), inAll)); err != nil {
			return err
		}
	}
	return nil
}

// wanted decides what depends on the present installation, and has the API server check it.
func (j *joiner) wanted(e *end) (err error) {
	if e.had, err = e.Installed(j.Context(), e.spec.Peer, e.spec.Imports); err != nil {
		return err
	}
	if e.had.Values, err = e.Values(j.Context()); err == nil || e.values != nil {
		err = j.decide(e)
	}
	if err == nil && *e.had != *e.wants && e.spec.Imports != "" {
		err = e.CanImport(j.Context(), e.wants)
	}
	if err == nil {
		err = j.rehearse(e)
	}
	return err
}

// decide decides the parts of a Peering and its gateway that depend on the user or on the present
// installation: image, Service, number of pods, values, and the namespace for imports. A flag
// counts more than given values, and these more than what is there. It adds them to the lines.
func (j *joiner) decide(e *end) error {
	spec, peer, role := e.spec, e.spec.Peer, e.spec.Role
	values := e.had.Values
	if e.values != nil && e.values.Text() != values.Text() {
		values = e.values
	}
	named := &manifests.Gateway{}
	if g := e.values.Gateway(peer); g != nil {
		named = g
	}
	spec.Imports = cmp.Or(e.imports, named.Imports, spec.Imports)
	e.wants = &manifests.Gateway{Peering: peer, Image: cmp.Or(j.image, e.values.Image(), e.had.Image),
		Imports: spec.Imports, Replicas: cmp.Or(j.replicas, named.Replicas, e.had.Replicas, 1), Values: values}
	if e.wants.Image == "" {
		return errors.New("--image: missing; name culvert's image in a registry that all nodes reach, or push this program there " +
			"with --push, such as registry.example/culvert:1.0")
	}
	if lacking := j.lacks(e.site); lacking != "" {
		return fmt.Errorf("--push: nodes are of %s, and this program is for %s; put culvert-linux-%[1]s of the same "+
			"release beside it, or push it with culvert image push --binary and give --image", lacking,
			strings.Join(j.packed.Archs, " and "))
	}
	if why := j.exposes(e, named.Expose); why != "" {
		e.lines = append(e.lines, terms.Line{What: "reached by", Value: e.wants.Expose, Source: why})
	}
	if e.wants.Replicas > 1 {
		e.lines = append(e.lines, terms.Line{What: "pods", Value: strconv.Itoa(e.wants.Replicas), Source: "one forwards"})
	}
	if spec.Imports != "" {
		source := "as it is"
		switch spec.Imports {
		case e.imports:
			source = "--imports"
		case named.Imports:
			source = "--values"
		}
		e.lines = append(e.lines, terms.Line{What: "exports of " + peer, Value: "in namespace " + spec.Imports,
			Source: source})
	}
	if names := e.wants.Values.Names(); len(names) > 0 {
		source := "as they are"
		if e.wants.Values != e.had.Values {
			source = "--values"
		}
		e.lines = append(e.lines, terms.Line{What: "values", Value: strings.Join(names, ", "), Source: source})
	}
	name, digest, _ := strings.Cut(e.wants.Image, "@") // in the last column, which wraps
	if j.packed != nil {
		digest = "this program; " + digest
	}
	e.lines = append(e.lines, terms.Line{What: "image", Value: name, Source: digest})
	if role == "Server" && e.wants.Expose == "NodePort" && j.endpoint == "" && !e.found.Address.IsValid() {
		return errors.New("--endpoint: missing; no Node has an IPv4 address by which a node port is reached")
	}
	return nil
}

// exposes decides the type of the gateway's Service, and says why unless nobody uses it. named is
// what the given values say.
func (j *joiner) exposes(e *end, named string) (why string) {
	had := e.had.Expose
	switch {
	case e.spec.Role == "Client" && named == "":
		e.wants.Expose = "ClusterIP"
		return ""
	case e.spec.Role == "Server" && j.expose != "":
		e.wants.Expose, why = j.expose, "--expose"
	case named != "":
		e.wants.Expose, why = named, "--values"
	case had == "LoadBalancer" || had == "NodePort":
		e.wants.Expose, why = had, "as it is"
	case e.found.Balanced:
		e.wants.Expose, why = "LoadBalancer", "load balancers of this cluster have addresses"
	default:
		e.wants.Expose, why = "NodePort", "no load balancer of this cluster has an address"
	}
	return why
}

// rehearse has the API server check everything before anything is changed. Of what somebody else
// owns, nothing is changed later either.
func (j *joiner) rehearse(e *end) (err error) {
	if e.plan, err = e.Rehearse(j.Context(), e.wants, e.spec, e.notes("")); err != nil {
		return err
	}
	for _, label := range e.plan.Kept {
		e.lines = append(e.lines, terms.Line{What: "stays", Value: label,
			Source: "somebody else has set it, and gateways fit in"})
	}
	if e.plan.Owner == "" {
		return nil
	}
	if e.values != nil {
		return fmt.Errorf("--values: %s has installed culvert here; set them there", e.plan.Owner)
	}
	if e.had.Replicas > 0 && e.spec.Role == "Client" {
		e.wants.Expose = e.had.Expose // which nobody uses
	}
	text := e.wants.Changes(e.had)
	if text == "" {
		text = "nothing"
	}
	e.lines = append(e.lines, terms.Line{What: "installed by", Value: e.plan.Owner,
		Source: "nothing of it is changed here: only the Peering is made"},
		terms.Line{What: "change there", Value: text, Source: "in its values, as of the chart"})
	return nil
}
