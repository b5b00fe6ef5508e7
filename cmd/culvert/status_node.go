package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
)

// drawer returns a function that shows the status of the selected gateway or node: a node if there
// is no gateway, or if its socket is named.
func (c *clientCommand) drawer(watch bool) (func(io.Writer) error, error) {
	gateway, err := c.gateway()
	if err != nil || strings.Contains(c.socket, "/") {
		if node, e := control.FindNode(c.Context(), c.socket); e == nil {
			if _, e := node.Node(c.Context()); e == nil {
				return drawStatus(c, watch, node.Node, printNodeStatus), nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return drawStatus(c, watch, gateway.Status, printGatewayStatus), nil
}

// maxShown is how many Services the text lists.
const maxShown = 40

func printNodeStatus(w io.Writer, s *control.NodeStatus) error {
	fmt.Fprintf(w, "node %s, up %s, process %d, culvert %s\n\n", s.Name, ageText(s.UptimeSeconds), s.PID,
		s.Version.Version)
	if s.Fault != "" {
		fmt.Fprintf(w, "%s\n\n", cli.Wrap("warning: "+s.Fault, cli.Width(w)))
	}
	for _, f := range s.Findings {
		fmt.Fprintf(w, "%s\n\n", cli.Wrap(f.Level+": "+f.Text, cli.Width(w)))
	}
	printLinks(w, s)
	if s.Mode == "" {
		return printDrops(w, deviceDrops, s.DeviceDrops)
	}
	t := cli.NewTable(w)
	by := "sockets"
	if s.Interface != "" {
		by = s.Interface
	}
	endpoints := 0
	for i := range s.Services {
		endpoints += s.Services[i].Endpoints
	}
	fmt.Fprintf(t, "serves\t%s with %d endpoints, by %s\n", servedPorts(len(s.Services)), endpoints, by)
	fmt.Fprintf(t, "addresses\t%s\n", joined(s.Addresses))
	if len(s.Announced) > 0 {
		fmt.Fprintf(t, "announced\t%s\n", strings.Join(s.Announced, ", "))
	}
	fmt.Fprintf(t, "connections\t%s\n", tableText(&s.Table))
	if s.Traffic.Received > 0 {
		fmt.Fprintf(t, "packets\t%s\n", trafficText(&s.Traffic))
	}
	t.Flush()

	fmt.Fprintln(t, "\nSERVICE\tPROTOCOL\tADDRESSES\tPORT\tNODE PORT\tENDPOINTS")
	for i := range s.Services[:min(len(s.Services), maxShown)] {
		x := &s.Services[i]
		nodePort := "-"
		if x.NodePort != 0 {
			nodePort = fmt.Sprint(x.NodePort)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\n", x.Name, x.Protocol, joined(x.Addresses), x.Port,
			nodePort, x.Endpoints)
	}
	t.Flush()
	if more := len(s.Services) - maxShown; more > 0 {
		fmt.Fprintf(w, "and %d more: -o json names all\n", more)
	}
	printDrops(w, "DROPPED", s.Traffic.Drops)
	return printDrops(w, deviceDrops, s.DeviceDrops)
}

// deviceDrops is the title of the packets that the kernel dropped because culvert was late.
const deviceDrops = "DROPPED UNREAD AT"

// printDrops prints the drop reasons that have occurred, under a title.
func printDrops(w io.Writer, title string, drops []control.Drop) error {
	if len(drops) == 0 {
		return nil
	}
	t := cli.NewTable(w)
	fmt.Fprintf(t, "\n%s\tPACKETS\n", title)
	for _, d := range drops {
		fmt.Fprintf(t, "%s\t%d\n", d.Reason, d.Packets)
	}
	return t.Flush()
}

// printLinks prints a node's links to gateways, if it has any, and their problems.
func printLinks(w io.Writer, s *control.NodeStatus) {
	told := len(s.Waiting) + len(s.LeftOut)
	if s.Mode != "" && len(s.Links)+told == 0 {
		return
	}
	for _, waiting := range s.Waiting {
		fmt.Fprintf(w, "%s\n", cli.Wrap("waiting: "+waiting, cli.Width(w)))
	}
	for _, left := range s.LeftOut {
		fmt.Fprintf(w, "%s\n", cli.Wrap("left out: "+left.Resource+": "+left.Reason, cli.Width(w)))
	}
	if told > 0 {
		fmt.Fprintln(w)
	}
	if s.Mode != "" && len(s.Links) == 0 {
		return
	}
	t := cli.NewTable(w)
	fmt.Fprintln(t, "LINK\tSTATE\tGATEWAY\tUNDERLAY\tVNI\tMTU\tRTT\tRECEIVED\tSENT")
	for i := range s.Links {
		l := &s.Links[i]
		rtt := rttText(&control.Leg{RTTSeconds: l.RTTSeconds})
		gateway := l.GatewayAddresses
		if len(gateway) == 0 { // an older node's
			gateway = []netip.Addr{l.GatewayAddress}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", l.Interface, linkState(l), joined(gateway), l.Underlay,
			l.VNI, l.MTU, rtt,
			bytesText(l.ReceivedBytes), bytesText(l.SentBytes))
	}
	t.Flush()
	if len(s.Guarded) > 0 {
		fmt.Fprintf(w, "\n%s\n", cli.Wrap("pods cannot act as this node at "+joined(s.Guarded), cli.Width(w)))
	}
	printDrops(w, "DROPPED OF LINKS", s.LinkDrops)
	if s.Mode != "" {
		fmt.Fprintln(w)
	}
}

// linkState returns the state of a link in a few words.
func linkState(l *control.NodeLink) string {
	switch {
	case l.State == "carried" && l.Answers:
		return "gateway answers"
	case l.State == "carried":
		return "gateway silent"
	case l.State == "kernel":
		return "the kernel's"
	}
	return l.State
}

func joined[T fmt.Stringer](all []T) string {
	if len(all) == 0 {
		return "-"
	}
	var b strings.Builder
	for i, x := range all {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(x.String())
	}
	return b.String()
}
