package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"culvert/gateway/control"
)

// traceFlags say which packet is explained.
type traceFlags struct {
	from       string
	flags      []string
	size, ttl  int
	df, next   bool
	connection uint64
	filter     filterFlags
}

func newTraceCommand() *cobra.Command {
	var f traceFlags
	c := newClientCommand(&cobra.Command{
		Use:   "trace [--from NODE] PROTOCOL SOURCE DESTINATION | --flow ID | --next",
		Short: "Explain what a running gateway does with a packet, and why",
		Long: "Explain what a running gateway does with a packet: one that is described, one each way of a\n" +
			"connection, or the next real one. Every check, rule and route that it meets is told by its name and\n" +
			"origin, with what it sees of the packet; then the packet as it goes out, or why it does not. The\n" +
			"packet path's own code decides, on a packet of its own: nothing is sent, counted or changed.\n" +
			"The exit status is 0 whatever becomes of the packet.",
		Example: "  culvert trace tcp 10.0.1.5:40000 10.61.1.5:80\n" +
			"  culvert trace --from tunnel icmp 10.0.1.5 10.0.1.5\n" +
			"  culvert trace --flow 17 -o json | jq .verdict\n" +
			"  culvert trace --next --protocol udp --port 53",
		Args: cobra.MaximumNArgs(3),
	}, "text", "json", "yaml")
	flags := c.Flags()
	flags.StringVar(&f.from, "from", "", "`NODE` where the packet comes in, or tunnel; without it, the node whose pods have the source")
	flags.StringSliceVar(&f.flags, "flags", nil, "TCP `FLAGS` such as syn,ack; without it, syn")
	flags.IntVar(&f.size, "size", 0, "`BYTES` of the whole packet; without it, headers alone")
	flags.IntVar(&f.ttl, "ttl", 0, "TTL or hop limit; without it, 64")
	flags.BoolVar(&f.df, "df", false, "the packet may not be fragmented")
	flags.Uint64Var(&f.connection, "flow", 0, "`ID` of a connection, as culvert connections shows it")
	flags.BoolVar(&f.next, "next", false, "wait for the next packet that --address, --port, --protocol and --node select; for the gateway itself, name it by --address")
	f.filter.add(c, false)
	c.RegisterFlagCompletionFunc("from", c.nodeNames)
	c.RegisterFlagCompletionFunc("flags", cobra.FixedCompletions(control.TCPFlags, cobra.ShellCompDirectiveNoFileComp))
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return control.Protocols, cobra.ShellCompDirectiveNoFileComp
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		query, err := f.query(c.Command, args)
		if err != nil {
			return err
		}
		gateway, err := c.gateway()
		if err != nil {
			return err
		}
		return c.trace(gateway, query)
	}
	return c.Command
}

// query returns the parameters that flags and arguments stand for, checked.
func (f *traceFlags) query(c *cobra.Command, args []string) (url.Values, error) {
	of := map[string][]string{
		"next": {"address", "port", "protocol", "node"}, "flow": nil, "": {"from", "flags", "size", "ttl", "df"},
	}
	mode := ""
	for _, name := range []string{"flow", "next"} {
		if c.Flags().Changed(name) && mode != "" {
			return nil, errors.New("--flow, --next: give one of them")
		} else if c.Flags().Changed(name) {
			mode = name
		}
	}
	for other, names := range of {
		for _, name := range names {
			if other != mode && c.Flags().Changed(name) {
				want := "a packet that is described: culvert trace PROTOCOL SOURCE DESTINATION"
				if other != "" {
					want = "--" + other
				}
				return nil, fmt.Errorf("--%s: only with %s", name, want)
			}
		}
	}
	switch {
	case mode != "" && len(args) > 0:
		return nil, fmt.Errorf("trace: --%s takes no packet; leave out %s", mode, strings.Join(args, " "))
	case mode == "next":
		query, err := f.filter.query()
		if err == nil {
			query.Set("next", "true")
		}
		return query, err
	case mode == "flow" && f.connection == 0:
		return nil, errors.New("--flow: 0 is no connection's ID; culvert connections lists them")
	case mode == "flow":
		o := control.TraceOptions{Connection: f.connection}
		return o.Values(), nil
	case len(args) < 3:
		return nil, errors.New("trace: which packet? Describe it, such as tcp 10.0.1.5:40000 10.61.1.5:80, or give --flow or --next; see culvert trace --help")
	}
	query := url.Values{"protocol": {args[0]}, "source": {args[1]}, "destination": {args[2]}}
	for name, value := range map[string]string{"from": f.from, "flags": strings.Join(f.flags, ","), "size": fmt.Sprint(f.size), "ttl": fmt.Sprint(f.ttl), "df": fmt.Sprint(f.df)} {
		if c.Flags().Changed(name) {
			query.Set(name, value)
		}
	}
	_, err := control.ParseTrace(query)
	return query, err
}

// trace prints what the gateway explains.
func (c *clientCommand) trace(gateway *control.Client, query url.Values) error {
	place := c.places(gateway)
	n := 0
	var failed error
	err := control.Each(c.Context(), gateway, "/v1/trace", query, func(t *control.Trace) bool {
		for i := range t.Steps {
			t.Steps[i].Place = place(t.Steps[i].Field)
		}
		if n++; c.output != "text" {
			failed = c.line(t)
		} else {
			failed = printTrace(c.OutOrStdout(), t, n > 1)
		}
		return failed == nil
	})
	if n == 0 && failed == nil && query.Has("next") {
		return c.lost(err)
	}
	return errors.Join(err, failed)
}

// traceColumn is where what a step says begins.
const traceColumn = 19

func printTrace(w io.Writer, t *control.Trace, another bool) error {
	var b strings.Builder
	if another {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s from %s\n", packetText(&t.Packet), t.From)
	line := func(mark, kind, text string) {
		fmt.Fprintf(&b, "  %-3s  %-12s", mark, kind)
		for i, l := range strings.Split(wrap(text, statusWidth-traceColumn), "\n") {
			if i > 0 {
				b.WriteString(strings.Repeat(" ", traceColumn))
			}
			b.WriteString(l + "\n")
		}
	}
	from, to := "", ""
	for i := range t.Steps {
		s := &t.Steps[i]
		if from != "" && s.From != "" && (s.From != from || s.To != to) {
			line("", "becomes", s.From+" > "+s.To)
		}
		if s.From != "" {
			from, to = s.From, s.To
		}
		mark := "no"
		if s.Passed {
			mark = "yes"
		}
		if s.Kind == "nearest" {
			mark = ""
		}
		line(mark, s.Kind, stepText(s))
	}
	for i := range t.Sent {
		if i == 0 {
			line("", "leaves as", packetText(&t.Sent[i]))
		} else if i == len(t.Sent)-1 {
			line("", "", fmt.Sprintf("and %d more packets of up to %d bytes", i, t.Sent[0].Length))
		}
	}
	b.WriteString(wrap(verdictText(t), statusWidth) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// packetText is a packet in one line.
func packetText(p *control.TracePacket) string {
	if p.Protocol == "" {
		return fmt.Sprintf("%d bytes that are no packet", p.Length)
	}
	x := control.Connection{Protocol: p.Protocol}
	return fmt.Sprintf("%s %s > %s, %d bytes", p.Protocol, endText(&x, p.Source, p.SourcePort), endText(&x, p.Destination, p.DestinationPort), p.Length)
}

// stepText is what a step says: name, detail, and where it comes from.
func stepText(s *control.TraceStep) string {
	text := s.Name
	if text != "" && s.Detail != "" {
		text += ": "
	}
	text += s.Detail
	if s.Origin != "" {
		text += " [" + originText(s.Origin, s.Field, s.Place) + "]"
	}
	return text
}

// verdictText is what becomes of the packet.
func verdictText(t *control.Trace) string {
	text := ""
	switch t.Verdict {
	case "forward":
		text = fmt.Sprintf("forward to %s: %s", t.To, t.Egress)
	case "deliver":
		text = "deliver: " + t.Egress
	case "hold":
		text = "hold: it is a fragment and waits for the first one of its datagram"
	default:
		text = "drop: " + t.Reason
		if t.Why != "" {
			text += ": " + t.Why
		}
		if t.Told != "" {
			text += "; its sender is told by " + t.Told
		}
	}
	if t.Asymmetric {
		text += "; its connection expects it from another node"
	}
	return text
}
