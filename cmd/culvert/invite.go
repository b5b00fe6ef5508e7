//go:build !nokube

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/configfile"
	"culvert/kube/join"
	"culvert/kube/join/terms"
)

// inviting is one run of culvert invite or accept, in one cluster.
type inviting struct {
	joiner
	name, peer string // of this cluster and the other one
}

func newInviteCommand() *cobra.Command {
	x := &inviting{}
	cmd := &cobra.Command{
		Use:   "invite",
		Short: "Invite another Kubernetes cluster, whose administrator has its kubeconfig",
		Long: "Invite another Kubernetes cluster, whose administrator has its kubeconfig: install a gateway and " +
			"agents in this one, wait until the gateway can be reached, and print a short text for the other " +
			"administrator, which has no secret. He answers it by culvert accept, and so do you his answer. Both " +
			"sides compare six words: whoever changes a message on its way changes them.\n\n" +
			"Run it again for the same text. This cluster is the Server: the other one's gateway must be able to " +
			"reach it.",
		Example: "  culvert invite --context rome --peer milan --image registry.example/culvert:1.0 > rome.invite\n" +
			"  culvert accept --context milan --image registry.example/culvert:1.0 rome.invite > milan.invite\n" +
			"  culvert accept --context rome milan.invite",
		Args: cobra.NoArgs,
	}
	x.add(cmd)
	cmd.Flags().StringVar(&x.peer, "peer", "", "`NAME` of the other cluster (required)")
	x.addExpose(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		e := new(configfile.Errors)
		terms.CheckName(e, "--peer", x.peer)
		if err := errors.Join(e.Err(), x.check(true)); err != nil {
			return err
		}
		return x.invite()
	}
	return cmd
}

func (x *inviting) add(cmd *cobra.Command) {
	x.addCluster(cmd, "`NAME` of the context of this cluster (default: the current one)")
	cmd.Flags().StringVar(&x.name, "name", "", "`NAME` of this cluster (default: made of the context)")
	x.addInstall(cmd, "")
}

// here returns the context of this cluster.
func (x *inviting) here() (string, error) {
	if len(x.contexts) > 1 {
		return "", errors.New("--context: one cluster invites or accepts; for two at once: culvert join")
	}
	if err := x.orCurrent(); err != nil {
		return "", err
	}
	return x.contexts[0], nil
}

// invite prints an invitation.
func (x *inviting) invite() error {
	at, err := x.here()
	if err != nil {
		return err
	}
	end, err := x.Invite(x.Context(), at, x.name, x.peer)
	if err != nil {
		return x.unchanged(err)
	}
	if err := x.install(end); err != nil {
		return err
	}
	return x.print(end)
}

// install shows a plan, asks, and applies it.
func (x *inviting) install(end *join.End) error {
	if err := showEnds(x.ErrOrStderr(), []*join.End{end}); err != nil {
		return err
	}
	if !end.Stands() {
		if err := x.confirm("Apply this?"); err != nil {
			return err
		}
	}
	if err := x.pushed(); err != nil {
		return err
	}
	if err := end.Apply(x.Context()); err != nil {
		return cli.Failed(err)
	}
	return nil
}

// print prints the message for the other cluster once it is complete.
func (x *inviting) print(end *join.End) error {
	i, err := end.Message(x.Context())
	if err != nil {
		return cli.Failed(err)
	}
	if _, err := fmt.Fprint(x.OutOrStdout(), i.Text()); err != nil {
		return err
	}
	x.say("words of this message, for %s to compare: %s", i.To, i.Words())
	x.say("next, in %s: culvert accept, with this message", i.To)
	return nil
}
