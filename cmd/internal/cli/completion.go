package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// addCompletion adds the command that prints completion scripts. If a command has no completion,
// shells complete files, unless it has no arguments.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	scripts, _, err := root.Find([]string{"completion"})
	if err != nil {
		panic(err) // cobra has just made it
	}
	source := fmt.Sprintf("  source <(%s completion ", root.Name())
	scripts.Example = source + "bash)"
	for _, shell := range scripts.Commands() {
		switch shell.Name() {
		case "bash":
			shell.Example = fmt.Sprintf("%sbash)\n  %[2]s completion bash > /etc/bash_completion.d/%[2]s",
				source, root.Name())
		case "zsh":
			shell.Example = source + "zsh)"
		case "fish":
			shell.Example = fmt.Sprintf("  %s completion fish | source", root.Name())
		default:
			scripts.RemoveCommand(shell) // PowerShell: culvert is for Linux
		}
	}
	Visit(root, func(cmd *cobra.Command) {
		if cmd.ValidArgsFunction == nil && !strings.Contains(cmd.Use, " ") {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
	})
}

// FlagValues lets shells complete the values of a flag.
func FlagValues(cmd *cobra.Command, flag string, values ...string) {
	cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// Visit calls each for a command and for all below it.
func Visit(cmd *cobra.Command, each func(*cobra.Command)) {
	each(cmd)
	for _, c := range cmd.Commands() {
		Visit(c, each)
	}
}
