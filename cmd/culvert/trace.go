package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/nat/rules"
)

// traceFlags say which packet is explained.
type traceFlags struct {
	from       string
	flags      []string
	size, ttl  int
	df         bool
	fail, all  bool
	connection uint64
}

func newTraceCommand() *cobra.Command {
	var f traceFlags
	c := newClientCommand(&cobra.Command{
		Use:   "trace [--from NODE] PROTOCOL SOURCE DESTINATION | --flow ID",
		Short: "Explain what a running gateway does with a packet, and why",
		Long: "Explain what a running gateway does with a packet that you describe, or with a packet of a connection " +
			"in each direction. The output names the field of the file, or the resource, that applies to the packet, " +
			"and then shows the packet as it leaves or says why it is dropped. With -v, it lists every check, rule " +
			"and route, by the names in culvert rules.\n\n" +
			"The code of the packet path decides, but nothing is sent, counted or changed. The exit status is 0 " +
			"whatever happens to the packet; with --fail it is 1 if the packet is dropped.",
		Example: "  culvert trace tcp 10.0.1.5:40000 10.61.1.5:80\n" +
			"  culvert trace --from tunnel icmp 10.0.1.5 10.0.1.5\n" +
			"  culvert trace --flow 17 -o json | jq .verdict",
		Args: cobra.MaximumNArgs(3),
	}, "text", "json", "yaml")
	flags := c.Flags()
	flags.StringVar(&f.from, "from", "",
		"`NODE` from which the packet comes, or tunnel; without it, the node of the source's pod")
	flags.StringSliceVar(&f.flags, "flags", nil, "TCP `FLAGS` such as syn,ack; without it, syn")
	flags.IntVar(&f.size, "size", 0, "`BYTES` of the whole packet; without it, headers only")
	flags.IntVar(&f.ttl, "ttl", 0, "TTL or hop limit; without it, 64")
	flags.BoolVar(&f.df, "df", false, "the packet may not be fragmented")
	flags.Uint64Var(&f.connection, "flow", 0, "`ID` of a connection, as culvert connections shows it")
	flags.BoolVarP(&f.all, "verbose", "v", false, "every check, rule and route, also those that do not match")
	flags.BoolVar(&f.fail, "fail", false, "exit status 1 if the packet, or one direction of the connection, is dropped")
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
		return c.trace(gateway, query, &f)
	}
	return c.Command
}

// query returns the parameters that flags and arguments stand for, checked.
func (f *traceFlags) query(c *cobra.Command, args []string) (url.Values, error) {
	described := []string{"from", "flags", "size", "ttl", "df"}
	flow := c.Flags().Changed("flow")
	if i := slices.IndexFunc(described, c.Flags().Changed); flow && i >= 0 {
		return nil, fmt.Errorf("--%s: only with a packet that is described: culvert trace PROTOCOL SOURCE DESTINATION",
			described[i])
	}
	switch {
	case flow && len(args) > 0:
		return nil, fmt.Errorf("trace: --flow takes no packet; leave out %s", strings.Join(args, " "))
	case flow && f.connection == 0:
		return nil, errors.New("--flow: 0 is no connection's ID; culvert connections lists them")
	case flow:
		o := control.TraceOptions{Connection: f.connection}
		return o.Values(), nil
	case len(args) < 3:
		return nil,
			errors.New("trace: which packet? Describe it, such as tcp 10.0.1.5:40000 10.61.1.5:80, or give --flow; " +
				"see culvert trace --help")
	}
	query := url.Values{"protocol": {args[0]}, "source": {args[1]}, "destination": {args[2]}}
	for name, value := range map[string]string{"from": f.from, "flags": strings.Join(f.flags, ","),
		"size": fmt.Sprint(f.size), "ttl": fmt.Sprint(f.ttl), "df": fmt.Sprint(f.df)} {
		if c.Flags().Changed(name) {
			query.Set(name, value)
		}
	}
	_, err := control.ParseTrace(query)
	return query, err
}

// trace prints what the gateway explains.
func (c *clientCommand) trace(gateway *control.Client, query url.Values, f *traceFlags) error {
	place := c.places(gateway)
	n, dropped := 0, false
	var failed error
	err := control.Each(c.Context(), gateway, "/v1/trace", query, func(t *control.Trace) bool {
		dropped = dropped || t.Verdict == "drop"
		for i := range t.Steps {
			t.Steps[i].Place = place(t.Steps[i].Field)
		}
		if n++; c.output != "text" {
			failed = c.line(t)
		} else {
			failed = printTrace(c.OutOrStdout(), t, n > 1, f.all)
		}
		return failed == nil
	})
	if err = errors.Join(err, failed); err == nil && f.fail && dropped {
		return cli.Failed(errors.New("trace: --fail: the packet is dropped"))
	}
	return err
}

// printTrace prints the steps that apply to a packet and its outcome. all prints every step, with
// the names that rules and capture use.
func printTrace(w io.Writer, t *control.Trace, another, all bool) error {
	var b strings.Builder
	if another {
		b.WriteByte('\n')
	}
	width := cli.Width(w)
	fmt.Fprintf(&b, "%s from %s\n", packetText(&t.Packet), t.From)
	line := func(mark, kind, text string) {
		if !all && mark == "no" {
			kind = "no " + kind
		}
		head := fmt.Sprintf("  %-10s  ", kind)
		if all {
			head = fmt.Sprintf("  %-3s  %-12s", mark, kind)
		}
		if width > 0 {
			text = cli.Wrap(text, max(width-len(head), 1))
		}
		b.WriteString(head + strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", len(head))) + "\n")
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
		} else if s.Kind == "nearest" {
			mark = ""
		}
		switch {
		case all:
			line(mark, s.Kind, stepText(s))
		case applies(s):
			line(mark, s.Kind, shortText(s))
		}
	}
	for i := range t.Sent {
		if i == 0 {
			line("", "leaves as", packetText(&t.Sent[i]))
		} else if i == len(t.Sent)-1 {
			line("", "", fmt.Sprintf("and %d more packets of up to %d bytes", i, t.Sent[0].Length))
		}
	}
	b.WriteString(cli.Wrap(verdictText(t), width) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// applies reports whether a step decides about the packet. Passed checks, rules that do not match,
// and marks, by which rules and routes find each other, do not.
func applies(s *control.TraceStep) bool {
	action, _, _ := strings.Cut(s.Detail, " ")
	switch s.Kind {
	case "check":
		return !s.Passed
	case "rule":
		return s.Passed && !slices.Contains([]rules.Action{rules.ActionCTMark, rules.ActionSetMark,
			rules.ActionMetaMarkFromCT}, rules.Action(action))
	case "nearest":
		return !strings.Contains(s.Detail, "mark ")
	}
	return true
}

// shortText returns a step's text, under the name of the field or resource that it comes from.
func shortText(s *control.TraceStep) string {
	name, detail := s.Field, s.Detail
	switch {
	case name == "" && s.Origin != "":
		name = s.Origin
	case name == "":
		name = s.Name
	case unicode.IsUpper(rune(s.Origin[0])): // a resource of Kubernetes, whose field it is
		name = s.Origin + " " + name
	case strings.HasPrefix(name, "rules["):
		name += " " + s.Name[strings.LastIndexByte(s.Name, '/')+1:]
	}
	if s.Kind == "decode" {
		detail = strings.TrimSuffix(s.Name+": "+detail, ": ")
		if s.Field == "" {
			name = ""
		}
	}
	if s.Kind == "route" {
		detail, _, _ = strings.Cut(detail, ", with mark ")
	}
	if s.Place != "" {
		name += " (" + s.Place + ")"
	}
	if name != "" && detail != "" {
		name += ": "
	}
	return name + detail
}

// packetText describes a packet in one line.
func packetText(p *control.TracePacket) string {
	if p.Protocol == "" {
		return fmt.Sprintf("%d bytes that are no packet", p.Length)
	}
	x := control.Connection{Protocol: p.Protocol}
	return fmt.Sprintf("%s %s > %s, %d bytes", p.Protocol, endText(&x, p.Source, p.SourcePort),
		endText(&x, p.Destination, p.DestinationPort), p.Length)
}

// stepText returns a step's name, detail, and source.
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

// verdictText returns the packet's outcome.
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
