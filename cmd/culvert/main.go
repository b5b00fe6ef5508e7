package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses; see doc.go.
const (
	exitFailed   = 1
	exitBadInput = 2
)

// failure marks an error of something that had started properly. Every other
// error is the input's or the environment's.
type failure struct{ error }

func main() {
	// Not undone: a signal that comes when a command has done its work must not turn that into a failure.
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cmd, err := newRootCommand().ExecuteContextC(ctx)
	if err == nil {
		return
	}
	err = usageError(cmd, err)
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(os.Stderr, "culvert: %s\n", strings.TrimSuffix(line, "\n"))
	}
	if errors.As(err, new(failure)) {
		os.Exit(exitFailed)
	}
	os.Exit(exitBadInput)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "culvert",
		Short:         "Pod traffic between Kubernetes clusters, without asking anything of the kernel",
		SilenceErrors: true,
		SilenceUsage:  true,
		// An error is one line: usageError suggests.
		DisableSuggestions: true,
	}
	root.AddCommand(newGatewayCommand(), newNodeCommand(), newInitCommand(), newLabCommand(), newKeygenCommand(), newIPAMCommand(),
		newStatusCommand(), newConnectionsCommand(), newTraceCommand(), newCaptureCommand(), newReloadCommand(), newRulesCommand(), newRoutesCommand(), newPageCommand(), newDoctorCommand(), newVersionCommand(), newConfigTopic())
	root.AddCommand(kubeCommands()...)
	addCompletion(root)
	addHelp(root)
	return root
}
