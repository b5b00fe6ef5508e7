//go:build !nokube

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/verify/probe"
)

// newProbeCommand is the command that the pods of culvert verify run.
func newProbeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "probe",
		Short:  "Be a pod of culvert verify",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return errors.New("probe: want serve or ask") },
	}
	var token, name, result string
	serve := &cobra.Command{
		Use: "serve", Short: "Answer", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at := fmt.Sprintf(":%d", probe.Port)
			tcp, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			udp, err := net.ListenPacket("udp", at)
			if err != nil {
				tcp.Close()
				return err
			}
			return probe.Serve(cmd.Context(), tcp, udp, token, name)
		},
	}
	serve.Flags().StringVar(&token, "token", "", "`TEXT` of 16 bytes that askers know")
	serve.Flags().StringVar(&name, "name", "server", "`TEXT` that askers are told")
	ask := &cobra.Command{
		Use: "ask TASK", Short: "Ask", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var task probe.Task
			if err := json.Unmarshal([]byte(args[0]), &task); err != nil {
				return fmt.Errorf("TASK: %w", err)
			}
			text, err := json.Marshal(probe.Ask(cmd.Context(), &task))
			if err == nil {
				err = os.WriteFile(result, text, 0o644)
			}
			if err != nil {
				return cli.Failed(err)
			}
			return cmd.Context().Err()
		},
	}
	ask.Flags().StringVar(&result, "result", "/dev/termination-log", "`FILE` for the answers")
	cmd.AddCommand(serve, ask)
	return cmd
}
