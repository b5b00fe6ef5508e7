package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"culvert/gateway/control"
)

func newReloadCommand() *cobra.Command {
	var dryRun bool
	c := newClientCommand(&cobra.Command{
		Use:   "reload",
		Short: "Have a running gateway read its file again, and say what that changes",
		Long: "Have a running gateway read its file again, as SIGHUP does, and say what that changes. A file that\n" +
			"is bad in any way, or that changes what takes a restart, is refused whole: exit status 2, a line\n" +
			"for each cause, and the running configuration stays.",
		Example: "  culvert reload --dry-run\n  culvert reload",
		Args:    cobra.NoArgs,
	}, "text", "json", "yaml")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "change nothing, say what would change")
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
