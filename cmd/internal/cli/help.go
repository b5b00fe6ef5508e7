package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"culvert/gateway/configfile"
)

// addHelp gives each command its example, and makes mistyped flags suggest the right ones.
func addHelp(cmd *cobra.Command, examples map[string]string) {
	if cmd.Example == "" {
		cmd.Example = examples[cmd.CommandPath()]
	}
	cmd.SetFlagErrorFunc(flagError)
	for _, c := range cmd.Commands() {
		addHelp(c, examples)
	}
}

// wrapHelp makes help fit the terminal: it rewraps Long texts and the descriptions of flags.
func wrapHelp(root *cobra.Command) {
	width := func() int {
		if n := Width(os.Stdout); n > 0 {
			return min(n, helpWidth)
		}
		return helpWidth
	}
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		text := cmp.Or(cmd.Long, cmd.Short)
		if !cmd.IsAdditionalHelpTopicCommand() {
			text = fill(text, width())
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n%s", text, cmd.UsageString())
	})
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		var b strings.Builder
		if cmd.Runnable() || cmd.HasAvailableSubCommands() {
			fmt.Fprint(&b, "Usage:\n")
		}
		if cmd.Runnable() {
			fmt.Fprintf(&b, "  %s\n", cmd.UseLine())
		}
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintf(&b, "  %s COMMAND\n", cmd.CommandPath())
		}
		if cmd.HasExample() {
			fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
		}
		// Rows of tables: a text that does not fit wraps beside the name.
		commands, topics := Table{w: &Page{Columns: width()}}, Table{w: &Page{Columns: width()}}
		for _, c := range cmd.Commands() {
			switch {
			case c.IsAvailableCommand():
				fmt.Fprintf(&commands, "  %s\t%s\n", c.Name(), c.Short)
			case c.IsAdditionalHelpTopicCommand():
				fmt.Fprintf(&topics, "  %s\t%s\n", c.Name(), c.Short)
			}
		}
		for _, list := range []struct {
			head string
			of   *Table
		}{{"Commands", &commands}, {"Topics of " + cmd.CommandPath() + " help", &topics},
			{"Flags", flagTable(cmd.LocalFlags(), width())},
			{"Flags of all commands", flagTable(cmd.InheritedFlags(), width())}} {
			if list.of.text.Len() == 0 {
				continue
			}
			if err := list.of.Flush(); err != nil {
				return err
			}
			fmt.Fprintf(&b, "\n%s:\n%s", list.head, list.of.w)
		}
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintf(&b, "\n%s COMMAND --help explains a command.\n", cmd.CommandPath())
		}
		_, err := io.WriteString(cmd.OutOrStderr(), b.String())
		return err
	})
}

// flagTable returns a table with a row for each flag that is not hidden.
func flagTable(flags *pflag.FlagSet, width int) *Table {
	t := NewTable(&Page{Columns: width})
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		short := "   "
		if f.Shorthand != "" {
			short = "-" + f.Shorthand + ","
		}
		value, text := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if value != "" {
			name += " " + value
		}
		if f.NoOptDefVal != "" && f.NoOptDefVal != "true" {
			name = fmt.Sprintf("--%s[=%s]", f.Name, cmp.Or(value, f.NoOptDefVal))
		}
		switch f.DefValue {
		case "", "false", "0", "[]", "0s":
		default:
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(t, "  %s %s\t%s\n", short, name, text)
	})
	return t
}

// flagError names the flag that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	unknown := new(pflag.NotExistError)
	if !errors.As(err, &unknown) {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	name := strings.TrimPrefix(unknown.GetSpecifiedName(), "no-")
	if near := configfile.Closest(name, names); near != "" && len(name) > 1 {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}

// usageError adds a remedy to an error about arguments, on the same line.
func usageError(cmd *cobra.Command, err error) error {
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "unknown command "):
		_, rest, _ := strings.Cut(text, `"`)
		word, _, _ := strings.Cut(rest, `"`)
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		if near := configfile.Closest(word, names); near != "" {
			return fmt.Errorf("%w; did you mean %s %s?", err, cmd.CommandPath(), near)
		}
	case !strings.HasPrefix(text, "required flag(s) ") && !strings.Contains(text, " arg(s), "):
		return err
	}
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}
