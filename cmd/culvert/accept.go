//go:build !nokube

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/join"
	"culvert/kube/join/terms"
)

func newAcceptCommand() *cobra.Command {
	x := &inviting{}
	cmd := &cobra.Command{
		Use:   "accept FILE",
		Short: "Accept the invitation of another Kubernetes cluster, or its answer to yours",
		Long: "Accept the invitation of another Kubernetes cluster: choose under which CIDRs this one sees it, show " +
			"all of it and ask, install a gateway and agents, and print the answer, a short text without any secret. " +
			"Accept an answer: choose CIDRs, show them and ask, and wait until packets pass.\n\n" +
			"Before you say yes, compare the six words with those that the other side has printed, by telephone for " +
			"example. An answer is taken only if it is one to this cluster's own invitation. - as FILE is standard " +
			"input.",
		Example: "  culvert accept --context milan --image registry.example/culvert:1.0 rome.invite > milan.invite\n" +
			"  culvert accept --context rome milan.invite",
		Args: cobra.ExactArgs(1),
	}
	x.add(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := x.check(true); err != nil {
			return err
		}
		if args[0] == "-" && !x.yes {
			return errors.New(
				"-: standard input has the message, so that you cannot be asked; give a file, or add --yes")
		}
		i, err := readInvitation(args[0], x.InOrStdin())
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		return x.accept(i)
	}
	return cmd
}

// readInvitation reads a message from a file, or from standard input.
func readInvitation(name string, stdin io.Reader) (*terms.Invitation, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, terms.MaxInvitation+1))
	if err != nil {
		return nil, err
	}
	return terms.ParseInvitation(text)
}

func (x *inviting) accept(i *terms.Invitation) error {
	if x.name != "" && x.name != i.To {
		return fmt.Errorf("--name: the message is for %s, not for %s", i.To, x.name)
	}
	at, err := x.here()
	if err != nil {
		return err
	}
	end, err := x.Accept(x.Context(), at, i)
	if err != nil {
		return x.unchanged(err)
	}
	if err := x.install(end); err != nil {
		return err
	}
	if i.Answers == "" {
		return x.print(end)
	}
	result, err := end.Connected(x.Context())
	if err != nil {
		return cli.Failed(err)
	}
	return printEnds(x.OutOrStdout(), []join.Result{result})
}
