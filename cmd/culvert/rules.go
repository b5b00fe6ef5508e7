package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
)

func newRulesCommand() *cobra.Command {
	c := newClientCommand(&cobra.Command{
		Use:   "rules",
		Short: "List the compiled rules of a running gateway and the packets they matched",
		Long: "List the compiled rules of a running gateway in the order in which packets meet them. The second line " +
			"of each rule says what it matches and does, and where it comes from. Under Liqo, resources that were " +
			"refused follow, with the reason; culvert status -o json has them too.",
		Example: "  culvert rules\n  culvert rules -o json | jq 'select(.packets > 0)'",
		Args:    cobra.NoArgs,
	}, "text", "json", "yaml")
	c.RunE = func(*cobra.Command, []string) error {
		gateway, err := c.gateway()
		if err != nil {
			return err
		}
		place := c.places(gateway)
		err = list(c, gateway, "/v1/rules", nil, "STAGE\tPRIORITY\tPACKETS\tBYTES\tRULE",
			func(r *control.Rule) { r.Place = place(r.Field) }, func(r *control.Rule) string {
				name := r.Table + "/" + r.Chain
				if r.Name != "" && r.Name != r.Chain {
					name += "/" + r.Name
				}
				packets, bytes := "-", "-"
				if r.Packets != nil {
					packets, bytes = fmt.Sprint(*r.Packets), bytesText(*r.Bytes)
				}
				return fmt.Sprintf("%s\t%d\t%s\t%s\t%s\n\t\t\t\t%s %s [%s]\n", r.Stage, r.Priority,
					packets, bytes, name,
					r.Match, r.Action, originText(r.Origin, r.Field, r.Place))
			})
		if err != nil || c.output != "text" {
			return err
		}
		s, err := gateway.Status(c.Context())
		if err == nil && s.Resources != nil && len(s.Resources.LeftOut) > 0 {
			fmt.Fprintln(c.OutOrStdout())
			printLeftOut(c.OutOrStdout(), s.Resources)
		}
		return err
	}
	return c.Command
}

func newRoutesCommand() *cobra.Command {
	c := newClientCommand(&cobra.Command{
		Use:   "routes",
		Short: "List the compiled routes of a running gateway",
		Long: "List the compiled routes of a running gateway in the order of their rules. The first rule that " +
			"matches and has a route decides; of its routes, the one with the longest prefix is used.",
		Example: "  culvert routes\n  culvert routes -o json | jq 'select(.to == \"rome-1\")'",
		Args:    cobra.NoArgs,
	}, "text", "json", "yaml")
	c.RunE = func(*cobra.Command, []string) error {
		gateway, err := c.gateway()
		if err != nil {
			return err
		}
		place := c.places(gateway)
		return list(c, gateway, "/v1/routes", nil, "PRIORITY\tDESTINATION\tTO\tFROM\tMARK\tSOURCE\tORIGIN",
			func(r *control.Route) { r.Place = place(r.Field) }, func(r *control.Route) string {
				to := r.To
				if r.Via != "" {
					to += " via " + r.Via
				}
				mark := "any"
				if r.Mark != 0 {
					mark = fmt.Sprint(r.Mark)
				}
				return fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Priority, r.Destination, to, orAny(r.In), mark,
					orAny(r.Source),
					cmp.Or(r.Place, r.Origin))
			})
	}
	return c.Command
}

func orAny(s string) string {
	if s == "" {
		return "any"
	}
	return s
}

// list prints a list from the gateway as a table, as NDJSON or as YAML. complete, which may be nil,
// fills in what the gateway does not know.
func list[T any](c *clientCommand, gateway *control.Client, path string, query url.Values, head string,
	complete func(*T), row func(*T) string) error {
	t := cli.NewTable(c.OutOrStdout())
	if c.output == "text" {
		fmt.Fprintln(t, head)
	}
	n := 0
	var failed error
	err := control.Each(c.Context(), gateway, path, query, func(v *T) bool {
		n++
		if complete != nil {
			complete(v)
		}
		if c.output != "text" {
			failed = c.line(v)
			return failed == nil
		}
		fmt.Fprint(t, row(v))
		if n%flushLines == 0 {
			failed = t.Flush()
		}
		return failed == nil
	})
	if n == 0 && err == nil && c.output == "yaml" {
		_, failed = fmt.Fprintln(c.OutOrStdout(), "[]")
	}
	return errors.Join(err, failed, t.Flush())
}
