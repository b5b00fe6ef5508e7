//go:build !nokube

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
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
	"culvert/kube/join"
	"culvert/kube/join/terms"
	"culvert/kube/peering"
)

// A joiner has what culvert join, invite, accept and leave share.
type joiner struct {
	*cobra.Command
	join.Options
	kubeconfig                      string
	contexts, names                 []string
	push                            string       // where packed goes
	packed                          *image.Image // this program; nil without --push
	podCIDRs, serviceCIDRs, avoided []string
	importing, valued               []string
	services                        string
	yes                             bool
}

func (j *joiner) addCluster(cmd *cobra.Command, contexts string) {
	j.Command = cmd
	j.Connect = j.cluster
	var one sync.Mutex // pairs speak side by side
	j.Say = func(text string) {
		one.Lock()
		defer one.Unlock()
		w := cmd.ErrOrStderr()
		fmt.Fprintln(w, cli.Wrap(text, cli.Width(w)))
	}
	flags := cmd.Flags()
	flags.StringVar(&j.kubeconfig, "kubeconfig", "", "`FILE` that leads to the clusters (default: what kubectl takes)")
	flags.StringArrayVar(&j.contexts, "context", nil, contexts)
	flags.BoolVarP(&j.yes, "yes", "y", false, "do not ask")
	flags.DurationVar(&j.Timeout, "timeout", 5*time.Minute, "how long to wait for what others have to do")
	flags.SortFlags = false
}

// addInstall adds the flags for installing. of is the prefix by which a flag's value names its
// cluster.
func (j *joiner) addInstall(cmd *cobra.Command, of string) {
	flags := cmd.Flags()
	flags.StringVar(&j.Image, "image", "",
		"`NAME` of culvert's image in a registry that all nodes reach (default: the one that is installed)")
	flags.StringVar(&j.push, "push", "",
		"`REF` where to push this program as the image first, as culvert image push does, instead of --image")
	flags.IntVar(&j.Replicas, "replicas", 0,
		"`NUMBER` of pods of the gateway, of which one forwards (default: as it is, or 1)")
	flags.StringArrayVar(&j.importing, "imports", nil, "`"+of+"NAMESPACE` for Services that the other cluster "+
		"exports, which has to be there (default: as it is, or none)")
	flags.StringVar(&j.Admit, "admit", "", "`WHAT` each cluster lets the other open connections to: all, or exports "+
		"alone (default: as it is, or all)")
	flags.StringVar(&j.services, "services", "", "`NAMESPACE`,... whose ServiceExports the clusters share, or all, or "+
		"none (default: as it is, or none); installs culvert multicluster")
	flags.StringArrayVar(&j.valued, "values", nil,
		"`"+of+"FILE` with values of the chart, such as image pull secrets (default: those of the last time)")
	flags.StringArrayVar(&j.podCIDRs, "pod-cidr", nil, "`"+of+"CIDR` of pods, if it is not found; may be repeated")
	flags.StringArrayVar(&j.serviceCIDRs, "service-cidr", nil,
		"`"+of+"CIDR` of Services, if it is not found; may be repeated")
	flags.StringArrayVar(&j.avoided, "avoid", nil, "`CIDR` that nothing that is chosen may overlap; may be repeated")
	cli.FlagValues(cmd, "admit", "all", "exports")
	cli.FlagValues(cmd, "services", "all", "none")
}

func (j *joiner) addExpose(cmd *cobra.Command) {
	cmd.Flags().StringVar(&j.Expose, "expose", "", "`TYPE` of the Service by which the Server is reached: "+
		"LoadBalancer or NodePort (default: LoadBalancer if that cluster has load balancers)")
	cmd.Flags().StringVar(&j.Endpoint, "endpoint", "",
		"`HOST:PORT` by which the Client reaches the Server, if it is not that of the Service")
	cli.FlagValues(cmd, "expose", "LoadBalancer", "NodePort")
}

// check parses the flags. single says that there is only one cluster, which flags need not name.
func (j *joiner) check(single bool) error {
	e := new(configfile.Errors)
	for _, name := range j.names {
		terms.CheckName(e, "--name", name)
	}
	if err := j.checkWishes(e, single); err != nil {
		return err
	}
	if j.Expose != "" {
		e.OneOf("--expose", configfile.Scalar(j.Expose), "LoadBalancer", "NodePort")
	}
	if j.Admit != "" {
		e.OneOf("--admit", configfile.Scalar(j.Admit), "all", "exports")
	}
	if j.services != "" {
		j.Services = sharedNamespaces(e, j.services)
	}
	if j.Endpoint != "" {
		if fault := peering.CheckEndpoint(j.Endpoint); fault != "" {
			e.Add("--endpoint", "%s", fault)
		}
	}
	if j.Replicas != 0 {
		checkReplicas(e, j.Replicas)
	}
	if j.Timeout <= 0 {
		e.Add("--timeout", "want more than 0")
	}
	if j.push != "" && j.Image != "" {
		e.Add("--push", "it makes the image that --image names: give one of the two")
	}
	if err := e.Err(); err != nil || j.push == "" {
		return err
	}
	im, tag, err := packed(nil, j.ErrOrStderr())
	if err == nil {
		j.packed, j.Archs = im, im.Archs
		j.Image, err = im.Name(j.push, tag)
	}
	if err != nil {
		return fmt.Errorf("--push: %w", err)
	}
	return nil
}

// sharedNamespaces parses the value of --services.
func sharedNamespaces(e *configfile.Errors, text string) []string {
	switch text {
	case "all":
		return []string{"*"}
	case "none":
		return []string{}
	}
	var all []string
	for name := range strings.SplitSeq(text, ",") {
		switch {
		case name == "all" || name == "none" || name == "*":
			e.Add("--services", "%q: want all, none, or names of namespaces with commas", text)
			return nil
		case !peering.IsNamespace(name):
			e.Add("--services", "%q is no name of a namespace: want small letters, digits and dashes", name)
		case !slices.Contains(all, name):
			all = append(all, name)
		}
	}
	return all
}

// checkWishes parses the flags whose values name a cluster, unless there is only one.
func (j *joiner) checkWishes(e *configfile.Errors, single bool) error {
	j.Wishes = map[string]*join.Wishes{}
	of := func(flag, what, text string) (w *join.Wishes, value string) {
		name, value, named := strings.Cut(text, "=")
		if !named {
			name, value = "", text
		}
		if named == single {
			e.Add(flag, "%q: want %s", text, map[bool]string{true: "a " + what, false: "NAME=" + strings.ToUpper(what) +
				" with the name of a cluster"}[single])
		}
		if j.Wishes[name] == nil {
			j.Wishes[name] = &join.Wishes{}
		}
		return j.Wishes[name], value
	}
	prefixes := func(flag, list string) (all []netip.Prefix) {
		for one := range strings.SplitSeq(list, ",") {
			p := e.Prefix(flag, configfile.Scalar(one))
			if fault := peering.CheckCIDR(p); p.IsValid() && fault != "" && flag == "--pod-cidr" {
				e.Add(flag, "%s", fault)
			} else if p.IsValid() {
				all = append(all, p)
			}
		}
		return all
	}
	for _, text := range j.podCIDRs {
		w, list := of("--pod-cidr", "CIDR", text)
		w.Pods = append(w.Pods, prefixes("--pod-cidr", list)...)
	}
	for _, text := range j.serviceCIDRs {
		w, list := of("--service-cidr", "CIDR", text)
		w.Services = append(w.Services, prefixes("--service-cidr", list)...)
	}
	for _, list := range j.avoided {
		j.Avoid = append(j.Avoid, prefixes("--avoid", list)...)
	}
	for _, text := range j.importing {
		w, namespace := of("--imports", "namespace", text)
		e.Name("--imports", namespace, configfile.MaxLabel)
		w.Imports = namespace
	}
	for _, text := range j.valued {
		w, file := of("--values", "file", text)
		v, err := valuesFile(file).read()
		if err != nil && !e.Bad("--values") {
			return err
		}
		w.Values = v
	}
	return nil
}

// pushed pushes the image, if that is wanted. It comes after the question and before any change of
// a cluster.
func (j *joiner) pushed() error {
	if j.packed == nil {
		return nil
	}
	j.say("pushing %s", j.Image)
	tag, _, _ := strings.Cut(j.Image, "@")
	o := image.PushOptions{Progress: progress(j.ErrOrStderr())}
	if _, err := j.packed.Push(j.Context(), tag, "", o); err != nil {
		return j.unchanged(fmt.Errorf("--push: %w", err))
	}
	return nil
}

// orCurrent makes the current context that of the cluster if none is given.
func (j *joiner) orCurrent() error {
	if len(j.contexts) > 0 {
		return nil
	}
	current, err := (&operator{kubeconfig: j.kubeconfig}).current()
	j.contexts = []string{current}
	return err
}

// cluster returns a client of the cluster of a context.
func (j *joiner) cluster(context string) (*deploy.Cluster, error) {
	config, err := (&operator{kubeconfig: j.kubeconfig, context: context}).config()
	if err != nil {
		return nil, err
	}
	config.WarningHandler = rest.NoWarnings{}
	return deploy.New(config)
}

// say prints a line of progress.
func (j *joiner) say(format string, args ...any) { j.Say(fmt.Sprintf(format, args...)) }

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
