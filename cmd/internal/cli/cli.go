// Package cli is what culvert and culvert-lab share: exit statuses, one-line errors, help with
// examples, completion, and -o.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"culvert/gateway/control"
)

// Exit statuses.
const (
	ExitFailed   = 1 // something that had started properly failed
	ExitBadInput = 2 // the input or the environment is bad, and nothing is left behind
)

// failure is an error with ExitFailed.
type failure struct{ error }

// Failed marks an error of something that had started properly. All other errors are caused by the
// input or the environment.
func Failed(err error) error { return failure{err} }

// Run runs the program with a root command from New, and exits unless it succeeds.
func Run(root *cobra.Command) {
	// This is never undone: a signal after a command has finished must not turn success into a
	// failure.
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return
	}
	err = usageError(cmd, err)
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), Printable(strings.TrimSuffix(line, "\n")))
	}
	if errors.As(err, new(failure)) || errors.Is(err, control.ErrCutOff) {
		os.Exit(ExitFailed)
	}
	os.Exit(ExitBadInput)
}

// New returns a program with its commands. examples are shown by --help for commands without their
// own, by the command's path.
func New(name, short string, examples map[string]string, commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:           name,
		Short:         short,
		Version:       strings.TrimPrefix(control.ReadVersion().String(), "culvert "), // for --version
		SilenceErrors: true,
		SilenceUsage:  true,
		// An error is one line: usageError has suggestions.
		DisableSuggestions: true,
	}
	root.AddCommand(commands...)
	addCompletion(root)
	addHelp(root, examples)
	wrapHelp(root)
	return root
}

// OutputFlag adds -o, and returns a function that reports whether JSON was requested.
func OutputFlag(cmd *cobra.Command) (isJSON func() (bool, error)) {
	var output string
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	FlagValues(cmd, "output", "text", "json")
	return func() (bool, error) {
		if output != "text" && output != "json" {
			return false, errors.New("--output: want text or json")
		}
		return output == "json", nil
	}
}
