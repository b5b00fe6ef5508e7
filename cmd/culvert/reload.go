package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"culvert/gateway/config"
	"culvert/gateway/control"
)

func newReloadCommand() *cobra.Command {
	var dryRun, takeover bool
	c := newClientCommand(&cobra.Command{
		Use:   "reload",
		Short: "Make a running gateway read its file again, and show what changes",
		Long: "Make a running gateway read its file again, as SIGHUP does, and show what changes. If the file has " +
			"any fault, or changes something that needs a restart, it is refused as a whole: the exit status is 2, " +
			"each cause has a line, and the running configuration stays.\n\n" +
			"With --takeover, a file that was refused only because a change needs a restart is applied by a new " +
			"process, which takes over without losing connections, as at SIGUSR2.",
		Example: "  culvert reload --dry-run\n  culvert reload\n  culvert reload --takeover",
		Args:    cobra.NoArgs,
	}, "text", "json", "yaml")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would change, and change nothing")
	c.Flags().BoolVar(&takeover, "takeover", false, "let another process take over if a change needs a restart")
	c.RunE = func(*cobra.Command, []string) error {
		gateway, err := c.gateway()
		if err != nil {
			return err
		}
		query := make(url.Values)
		if dryRun {
			query.Set("dryRun", "true")
		}
		var r control.Reloaded
		if err := gateway.Get(c.Context(), http.MethodPost, "/v1/reload", query, &r); err != nil {
			if takeover && !dryRun && needsTakeover(err) {
				return haveReplaced(c, gateway)
			}
			return err
		}
		if c.output != "text" {
			return c.print(r)
		}
		return printReloaded(c, &r)
	}
	return c.Command
}

func printReloaded(c *clientCommand, r *control.Reloaded) error {
	verb := "applied"
	if r.DryRun {
		verb = "would change"
	}
	text := fmt.Sprintf("%s: %s\n", verb, strings.ReplaceAll(r.Changes, "; ", "\n"+verb+": "))
	if r.Changes == "nothing changed" && r.DryRun {
		text = "nothing would change\n"
	}
	for _, chosen := range r.Chosen {
		text += fmt.Sprintf("chosen: %s\n", chosen)
	}
	for _, warning := range r.Warnings {
		text += fmt.Sprintf("warning: %s\n", warning)
	}
	_, err := fmt.Fprint(c.OutOrStdout(), text)
	return err
}

// needsTakeover reports whether a file was refused only for changes that another process can make.
func needsTakeover(err error) bool {
	refused := new(control.Error)
	if !errors.As(err, &refused) {
		return false
	}
	for line := range strings.Lines(refused.Message) {
		if !strings.Contains(line, config.TakesOver) {
			return false
		}
	}
	return refused.Message != ""
}

// takeoverPatience is how long haveReplaced waits: longer than a failing hand-over takes.
const takeoverPatience = 45 * time.Second

// haveReplaced makes a gateway start its successor, and waits until that has taken over.
func haveReplaced(c *clientCommand, gateway *control.Client) error {
	before, err := gateway.Status(c.Context())
	if err != nil {
		return err
	}
	pid, err := gateway.Process(c.Context()) // before.PID may be another process's here
	if err != nil {
		return err
	}
	if pid == 0 {
		return errors.New(
			"--takeover: the gateway's process cannot be signalled from here; run this in its container, as its user")
	}
	if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
		return fmt.Errorf("--takeover: process %d: %w; run this beside the gateway, as its user", pid, err)
	}
	for began := time.Now(); time.Since(began) < takeoverPatience; {
		// While one process replaces another, there may be no answer.
		if s, err := gateway.Status(c.Context()); err == nil && s.PID != before.PID {
			_, err := fmt.Fprintf(c.OutOrStdout(), "applied: process %d has taken over from process %d\n",
				s.PID, before.PID)
			return err
		}
		select {
		case <-c.Context().Done():
			return c.Context().Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("--takeover: process %d goes on; its log says why", before.PID)
}
