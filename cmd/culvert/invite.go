//go:build !nokube

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/kube/deploy"
	"culvert/kube/join/terms"
)

// inviting is one run of culvert invite or accept, in one cluster.
type inviting struct {
	*joiner
	*end
	name string // of the cluster, by --name
	peer terms.Peer
}

func newInviteCommand() *cobra.Command {
	x := &inviting{joiner: &joiner{}}
	cmd := &cobra.Command{
		Use:   "invite",
		Short: "Invite another Kubernetes cluster, whose administrator has its kubeconfig",
		Long: "Invite another Kubernetes cluster, whose administrator has its kubeconfig: install a gateway and agents in this one, wait until " +
			"the gateway can be reached, and print a short text for the other administrator, which has no secret. He answers it by culvert " +
			"accept, and so do you his answer. Both sides compare six words: whoever changes a message on its way changes them.\n\n" +
			"Run it again for the same text. This cluster is the Server: the other one's gateway must be able to reach it.",
		Example: "  culvert invite --context rome --peer milan --image registry.example/culvert:1.0 > rome.invite\n" +
			"  culvert accept --context milan --image registry.example/culvert:1.0 rome.invite > milan.invite\n" +
			"  culvert accept --context rome milan.invite",
		Args: cobra.NoArgs,
	}
	x.add(cmd)
	cmd.Flags().StringVar(&x.peer.Name, "peer", "", "`NAME` of the other cluster (required)")
	x.addExpose(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		e := new(configfile.Errors)
		terms.CheckName(e, "--peer", x.peer.Name)
		if err := errors.Join(e.Err(), x.check(true)); err != nil {
			return err
		}
		x.peer.Role = "Server"
		return x.invite()
	}
	return cmd
}

func (x *inviting) add(cmd *cobra.Command) {
	x.addCluster(cmd, "`NAME` of the context of this cluster (default: the current one)")
	cmd.Flags().StringVar(&x.name, "name", "", "`NAME` of this cluster (default: made of the context)")
	x.addInstall(cmd, "")
}

// look surveys this cluster. name is its ID, if that is known.
func (x *inviting) look(name string) (err error) {
	switch {
	case len(x.contexts) > 1:
		return errors.New("--context: one cluster invites or accepts; for two at once: culvert join")
	case len(x.contexts) == 0:
		context, err := (&operator{kubeconfig: x.kubeconfig}).current()
		if err != nil {
			return err
		}
		x.contexts = []string{context}
	}
	s, err := x.connect(x.Context(), x.contexts[0], deploy.InstallRights())
	if err == nil {
		err = x.survey(x.Context(), s, name)
	}
	if err != nil {
		return x.unchanged((&site{context: x.contexts[0]}).of(err))
	}
	x.end = s.end()
	return nil
}

// install shows the proposal, asks, and applies it. nonce is that of this cluster's invitation.
func (x *inviting) install(nonce string) error {
	var err error
	if x.spec, x.lines, err = x.found.Propose(x.peer, netip.Prefix{}, nil); err != nil {
		return x.of(err)
	}
	if err := x.wanted(x.end); err != nil {
		return x.unchanged(x.of(err))
	}
	if err := x.show([]*end{x.end}); err != nil {
		return err
	}
	if !x.stands() {
		if err := x.confirm("Apply this?"); err != nil {
			return err
		}
	}
	if err := x.pushed(); err != nil {
		return err
	}
	ctx, cancel := x.bounded()
	defer cancel()
	x.say("%s: installing", x.site.name)
	if err := x.Install(ctx, x.plan); err != nil {
		return cli.Failed(x.of(err))
	}
	if err := x.ApplyPeering(ctx, x.spec, x.found.Notes(x.spec, nonce, x.found.Reached(x.peer.Name))); err != nil {
		return cli.Failed(x.of(err))
	}
	if err := x.lacksGateway(); err != nil {
		return cli.Failed(x.of(err))
	}
	return nil
}

// invite prints an invitation.
func (x *inviting) invite() error {
	if err := x.look(x.name); err != nil {
		return err
	}
	if err := x.found.CheckOwn(); err != nil {
		return x.of(err)
	}
	if role := x.found.Role(x.peer.Name); role == "Client" {
		return x.of(fmt.Errorf(
			"its Peering %s is a Client, and a Server invites: let %[1]s invite, or leave the peering first",
			x.peer.Name))
	}
	nonce := cmp.Or(x.found.Nonce(x.peer.Name), terms.NewNonce())
	if err := x.install(nonce); err != nil {
		return err
	}
	ctx, cancel := x.bounded()
	defer cancel()
	endpoint, err := x.reached(ctx, x.end, "")
	if err != nil {
		return cli.Failed(x.of(err))
	}
	return x.print(&terms.Invitation{Endpoint: endpoint, Nonce: nonce})
}

// print completes an invitation and prints it.
func (x *inviting) print(i *terms.Invitation) error {
	ctx, cancel := x.bounded()
	defer cancel()
	text, err := x.key(ctx, x.end)
	if err == nil {
		i.Key, err = wgkey.Parse(text)
	}
	if err != nil {
		return cli.Failed(x.of(err))
	}
	i.From, i.To, i.Pods = x.spec.Cluster, x.spec.Peer, nil
	for _, c := range x.spec.Local.PodCIDRs {
		if p, err := netip.ParsePrefix(c); err == nil {
			i.Pods = append(i.Pods, p)
		}
	}
	i.External, _ = netip.ParsePrefix(x.spec.Local.ExternalCIDR)
	if _, err := fmt.Fprint(x.OutOrStdout(), i.Text()); err != nil {
		return err
	}
	x.say("words of this message, for %s to compare: %s", i.To, i.Words())
	x.say("next, in %s: culvert accept, with this message", i.To)
	return nil
}
