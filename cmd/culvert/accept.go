//go:build !nokube

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/join/terms"
)

func newAcceptCommand() *cobra.Command {
	x := &inviting{joiner: &joiner{}}
	cmd := &cobra.Command{
		Use:   "accept FILE",
		Short: "Accept the invitation of another Kubernetes cluster, or its answer to yours",
		Long: "Accept the invitation of another Kubernetes cluster: choose under which CIDRs this one sees it, show all of it and ask, install a " +
			"gateway and agents, and print the answer, a short text without any secret. Accept an answer: choose CIDRs, show them and ask, and " +
			"wait until packets pass.\n\n" +
			"Before you say yes, compare the six words with those that the other side has printed, by telephone for example. An answer is taken " +
			"only if it is one to this cluster's own invitation. - as FILE is standard input.",
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
	if err := x.look(i.To); err != nil {
		return err
	}
	if err := x.found.Acceptable(i); err != nil {
		return (&site{context: x.context}).of(err) // the message may name another cluster
	}
	x.say("words of this message, which %s has printed too: %s", i.From, i.Words())
	x.peer = terms.Peer{Name: i.From, Pods: i.Pods, External: i.External, Key: i.Key, Role: "Client",
		Endpoint: i.Endpoint}
	if i.Answers != "" {
		x.peer.Role = "Server"
		return x.complete(i)
	}
	nonce := cmp.Or(x.found.Nonce(i.From), terms.NewNonce())
	if err := x.install(nonce); err != nil {
		return err
	}
	return x.print(&terms.Invitation{Nonce: nonce, Answers: i.Nonce})
}

// complete applies an answer, and waits until packets pass.
func (x *inviting) complete(i *terms.Invitation) error {
	if err := x.install(x.found.Nonce(i.From)); err != nil {
		return err
	}
	ctx, cancel := x.bounded()
	defer cancel()
	if err := x.connected(ctx, x.end); err != nil {
		return cli.Failed(x.of(err))
	}
	status, err := x.Status(ctx, i.From)
	if err != nil {
		return cli.Failed(x.of(err))
	}
	return printEnds(x.Command, []endReport{{Cluster: x.site.name, Nodes: status.NodesReady, RTT: status.RTT,
		Sees: sees(x.spec)}})
}
