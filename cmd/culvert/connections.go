package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"culvert/gateway/control"
	"culvert/nat"
)

// filterFlags select connections.
type filterFlags struct {
	addresses, ports      []string
	protocol, node, state string
}

func (f *filterFlags) add(c *clientCommand, withState bool) {
	flags := c.Flags()
	flags.StringSliceVarP(&f.addresses, "address", "a", nil,
		"`ADDRESS` or prefix of an end, before or after translation; given twice, both must fit")
	flags.StringSliceVarP(&f.ports, "port", "p", nil,
		"`PORT` of an end, or ICMP identifier; given twice, both must fit")
	flags.StringVar(&f.protocol, "protocol", "", "tcp, udp, sctp, icmp, icmpv6 or a number")
	flags.StringVarP(&f.node, "node", "n", "", "`NODE` from or to which packets go, or tunnel")
	c.RegisterFlagCompletionFunc("protocol", cobra.FixedCompletions(control.Protocols,
		cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("node", c.nodeNames)
	if withState {
		flags.StringVar(&f.state, "state", "", "`STATE`: one of "+strings.Join(nat.States(), ", "))
		c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(nat.States(), cobra.ShellCompDirectiveNoFileComp))
	}
}

// nodeNames completes names of nodes.
func (c *clientCommand) nodeNames(*cobra.Command, []string, string) (names []string, d cobra.ShellCompDirective) {
	if gateway, err := c.gateway(); err == nil {
		if s, err := gateway.Status(c.Context()); err == nil {
			for _, n := range s.Nodes {
				names = append(names, n.Name)
			}
		}
	}
	return append(names, "tunnel"), cobra.ShellCompDirectiveNoFileComp
}

// query returns the parameters for the flags, checked.
func (f *filterFlags) query() (url.Values, error) {
	v := make(url.Values)
	for name, values := range map[string][]string{"address": f.addresses, "port": f.ports, "protocol": {f.protocol},
		"node": {f.node}, "state": {f.state}} {
		for _, value := range values {
			if value != "" {
				v.Add(name, value)
			}
		}
	}
	if _, err := control.ParseFilter(v); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	return v, nil
}

func newConnectionsCommand() *cobra.Command {
	var watch bool
	var flags filterFlags
	c := newClientCommand(&cobra.Command{
		Use:   "connections",
		Short: "List, watch or delete the connections of a running gateway",
		Long: "List the connections of a running gateway. The first line of each shows its first packet as it " +
			"arrived. A second line shows the packet as it left, if it was translated, and what translated it. SENT " +
			"counts packets from the side that started the connection.",
		Example: "  culvert connections --node rome-1 --protocol tcp\n  culvert connections --watch -o json",
		Args:    cobra.NoArgs,
	}, "text", "json", "yaml")
	flags.add(c, true)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "print connections as they start and end, until interrupted")
	c.RunE = func(*cobra.Command, []string) error {
		query, err := flags.query()
		if err != nil {
			return err
		}
		gateway, err := c.gateway()
		if err != nil {
			return err
		}
		if watch {
			return c.watchConnections(gateway, query)
		}
		return list(c, gateway, "/v1/connections", query, "ID\tSTATE\tAT\tSOURCE\tDESTINATION\tIDLE\tSENT\tRECEIVED",
			nil, connectionText)
	}
	c.AddCommand(newConnectionsDeleteCommand())
	return c.Command
}

// flushLines is how many lines are aligned together: a list may have a million.
const flushLines = 2000

func connectionText(x *control.Connection) string {
	text := fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.ID, stateText(x), x.From, endText(x, x.Original.Source,
		x.Original.SourcePort),
		endText(x, x.Original.Destination, x.Original.DestinationPort), ageText(x.IdleSeconds), bytesText(x.Sent.Bytes),
		bytesText(x.Received.Bytes))
	if len(x.Uses) > 0 {
		text += fmt.Sprintf("\t%s\t%s\t%s\t%s\t\t\t\n", strings.Join(x.Uses, ", "), x.To,
			endText(x, x.Reply.Destination, x.Reply.DestinationPort), endText(x, x.Reply.Source, x.Reply.SourcePort))
	}
	return text
}

// stateText returns the state of a connection, or why its packets do not pass.
func stateText(x *control.Connection) string {
	switch {
	case x.Refused != "":
		return x.Refused
	case x.RefusedReply != "":
		return "answers " + x.RefusedReply
	}
	return x.State
}

// endText returns one end of a connection. An ICMP identifier is not shown as a port.
func endText(x *control.Connection, a netip.Addr, port uint16) string {
	if port == 0 || strings.HasPrefix(x.Protocol, "icmp") {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

func (c *clientCommand) watchConnections(gateway *control.Client, query url.Values) error {
	var failed error
	err := control.Each(c.Context(), gateway, "/v1/connections/events", query, func(e *control.Event) bool {
		switch x := e.Connection; {
		case c.output != "text":
			failed = c.line(e)
		case x == nil:
			_, failed = fmt.Fprintf(c.OutOrStdout(), "%s  %d events were lost: too many at one time\n",
				e.Time.Local().Format("15:04:05.000"), e.Lost)
		default:
			end := ""
			if e.Kind == "ended" {
				end = fmt.Sprintf(": %s, %s sent, %s received", e.Reason, bytesText(x.Sent.Bytes),
					bytesText(x.Received.Bytes))
			}
			_, failed = fmt.Fprintf(c.OutOrStdout(), "%s  %-5s  %d  %s  %s %s > %s%s\n",
				e.Time.Local().Format("15:04:05.000"), e.Kind, x.ID, x.From, x.Protocol,
				endText(x, x.Original.Source, x.Original.SourcePort), endText(x, x.Original.Destination,
					x.Original.DestinationPort), end)
		}
		return failed == nil
	})
	return c.lost(errors.Join(err, failed))
}

func newConnectionsDeleteCommand() *cobra.Command {
	var all bool
	var flags filterFlags
	c := newClientCommand(&cobra.Command{
		Use:     "delete",
		Short:   "End connections; their next packets create new ones under the current rules",
		Example: "  culvert connections delete --address 10.0.1.5 --port 443",
		Args:    cobra.NoArgs,
	}, "text", "json", "yaml")
	flags.add(c, true)
	c.Flags().BoolVar(&all, "all", false, "end every connection")
	c.RunE = func(*cobra.Command, []string) error {
		query, err := flags.query()
		if err != nil {
			return err
		}
		if len(query) == 0 && !all {
			return errors.New("connections delete: which? Give a filter such as --address, or --all; see --help")
		}
		if all {
			query.Set("all", "true")
		}
		gateway, err := c.gateway()
		if err != nil {
			return err
		}
		var d control.Deleted
		if err := gateway.Get(c.Context(), http.MethodDelete, "/v1/connections", query, &d); err != nil {
			return err
		}
		if c.output != "text" {
			return c.print(d)
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "%d connections deleted\n", d.Connections)
		return err
	}
	return c.Command
}
