package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
)

// A clientCommand talks to a running gateway by its control socket.
type clientCommand struct {
	*cobra.Command
	socket, output string
}

// newClientCommand adds the flags common to all clients to a command. outputs are the formats of
// -o, the default first.
func newClientCommand(cmd *cobra.Command, outputs ...string) *clientCommand {
	c := &clientCommand{Command: cmd}
	cmd.Flags().StringVar(&c.socket, "socket", "",
		"control `SOCKET` of the gateway, or its name such as rome or rome-milan; without it, the only one that runs")
	cmd.RegisterFlagCompletionFunc("socket", func(*cobra.Command, []string, string) ([]string,
		cobra.ShellCompDirective) {
		return control.Sockets(), cobra.ShellCompDirectiveDefault
	})
	if len(outputs) == 0 {
		return c
	}
	want := strings.Join(outputs[:len(outputs)-1], ", ") + " or " + outputs[len(outputs)-1]
	cmd.Flags().StringVarP(&c.output, "output", "o", outputs[0], want)
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(outputs, c.output) {
			return errors.New("--output: want " + want)
		}
		return nil
	}
	return c
}

// gateway returns a client for the selected gateway.
func (c *clientCommand) gateway() (*control.Client, error) {
	return control.Find(c.Context(), c.socket)
}

// print prints v in a format that is not text.
func (c *clientCommand) print(v any) error {
	if c.output == "yaml" {
		text, err := yaml.Marshal(v)
		if err == nil {
			_, err = c.OutOrStdout().Write(text)
		}
		return err
	}
	return printJSON(c.OutOrStdout(), v)
}

// line prints v as a line of NDJSON, or as an element of a list of YAML.
func (c *clientCommand) line(v any) error {
	if c.output == "yaml" {
		return c.print([]any{v})
	}
	return json.NewEncoder(c.OutOrStdout()).Encode(v)
}

// lost reports that a stream ended before the user stopped it.
func (c *clientCommand) lost(err error) error {
	if err != nil || c.Context().Err() != nil {
		return err
	}
	return cli.Failed(errors.New("the gateway has ended the stream; has it stopped?"))
}

const watchInterval = time.Second

// redraw calls draw each second and replaces the previous output.
func (c *clientCommand) redraw(draw func(io.Writer) error) error {
	out := c.OutOrStdout()
	f, ok := out.(*os.File)
	terminal := ok && isTerminal(f)
	for {
		page := cli.Page{Columns: cli.Width(out)}
		if err := draw(&page); err != nil {
			if c.Context().Err() != nil {
				return nil
			}
			return err
		}
		text := page.String()
		if terminal {
			// ECMA-48: cursor home; erase the rest of each line, and everything below.
			text = "\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J"
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
		select {
		case <-c.Context().Done():
			return nil
		case <-time.After(watchInterval):
		}
		if !terminal {
			fmt.Fprintln(out)
		}
	}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// bytesText is n with three digits and a unit.
func bytesText(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/(1<<10), 0
	for v >= 999.5 && unit < 5 {
		v /= 1 << 10
		unit++
	}
	return fmt.Sprintf("%.3g %ciB", v, "KMGTPE"[unit])
}

// ageText formats a duration in its two largest units.
func ageText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second)).Truncate(time.Second)
	switch day := 24 * time.Hour; {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
