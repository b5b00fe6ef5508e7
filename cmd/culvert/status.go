package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
)

func newStatusCommand() *cobra.Command {
	var watch bool
	var from string
	c := newClientCommand(&cobra.Command{
		Use:   "status",
		Short: "Show the state of a running gateway or node: tunnel, nodes, Services, connections, drops",
		Args:  cobra.NoArgs,
	}, "text", "json", "yaml")
	c.Flags().StringVar(&from, "from", "", "show all gateways and nodes of an archive `FILE` of culvert gather")
	c.Flags().BoolVarP(&watch, "watch", "w", false,
		"update every second until interrupted; with -o json, one line each time")
	c.MarkFlagsMutuallyExclusive("from", "watch")
	c.MarkFlagsMutuallyExclusive("from", "socket")
	c.RunE = func(*cobra.Command, []string) error {
		if from != "" {
			return c.gathered(from)
		}
		draw, err := c.drawer(watch)
		if err != nil {
			return err
		}
		if watch {
			if c.output == "yaml" {
				return fmt.Errorf("--output: --watch has text or json")
			}
			return c.redraw(draw)
		}
		return draw(c.OutOrStdout())
	}
	return c.Command
}

// drawStatus returns a function that requests a status and prints it.
func drawStatus[T any](c *clientCommand, watch bool, ask func(context.Context) (*T, error),
	text func(io.Writer, *T) error) func(io.Writer) error {
	return func(w io.Writer) error {
		s, err := ask(c.Context())
		switch {
		case err != nil:
			return err
		case c.output == "text":
			return text(w, s)
		case watch:
			return c.line(s)
		}
		return c.print(s)
	}
}

func printGatewayStatus(w io.Writer, s *control.Status) error {
	name := s.Cluster
	if s.Resources != nil {
		name = "gateway " + s.Resources.Gateway
	}
	fmt.Fprintf(w, "%s to %s, %s, up %s, process %d, culvert %s\n\n", name, s.Peer, s.Role, ageText(s.UptimeSeconds),
		s.PID, s.Version.Version)
	told := 0
	for _, f := range s.Findings {
		if !shown[f.Cause] {
			fmt.Fprintf(w, "%s\n", cli.Wrap(f.Level+": "+f.Text, cli.Width(w)))
			told++
		}
	}
	if s.Resources != nil {
		for _, waiting := range s.Resources.Waiting {
			fmt.Fprintf(w, "%s\n", cli.Wrap("waiting: "+waiting, cli.Width(w)))
			told++
		}
		told += printLeftOut(w, s.Resources)
	}
	if told > 0 {
		fmt.Fprintln(w)
	}
	t := cli.NewTable(w)
	if s.Replica != nil {
		fmt.Fprintf(t, "role\t%s: %s\n", s.Replica.Role, s.Replica.Why)
		fmt.Fprintf(t, "lease\t%s\n", leaseText(s.Replica))
	}
	if s.Replication != nil {
		printCopies(t, s.Replication)
	}
	fmt.Fprintf(t, "tunnel\t%s\n", tunnelText(&s.Tunnel))
	fmt.Fprintf(t, "mtu\t%d; %s to the peer and back\n", s.MTU, pathText(&s.Tunnel.Path))
	fmt.Fprintf(t, "peer\t%s\n", peerText(&s.Tunnel))
	fmt.Fprintf(t, "connections\t%s\n", tableText(&s.Table))
	if a := s.Admission; a != nil {
		fmt.Fprintf(t, "admitted\tthe peer's connections to %d exports and %d services, and no others\n", a.Exports,
			a.Services)
	}
	fmt.Fprintf(t, "outbound\t%s\n", trafficText(&s.Outbound))
	fmt.Fprintf(t, "inbound\t%s\n", trafficText(&s.Inbound))
	fmt.Fprintf(t, "memory\t%s\n", memoryText(&s.Memory))
	t.Flush()

	fmt.Fprintln(t, "\nNODE\tSTATE\tUNDERLAY\tTUNNEL\tRTT\tRECEIVED\tSENT\tTRAINS\tMTU")
	for _, n := range s.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s %d\t%s\t%s\t%s\t%s\t%s\n", n.Name, n.State, n.Underlay, n.Encap, n.VNI,
			rttText(&n.Leg),
			lastText(n.ReceivedBytes, n.LastReceivedSeconds), lastText(n.SentBytes, n.LastSentSeconds), onOff(n.Trains),
			pathText(&n.Path))
	}
	t.Flush()

	fmt.Fprintln(t, "\nSOCKET\tRECEIVED\tSENT\tBUFFERS\tGRO\tGSO\tOVERFLOWS\tREFUSED")
	for _, name := range slices.Sorted(maps.Keys(s.Sockets)) {
		k := s.Sockets[name]
		overflows, refused := "unknown", uint64(0)
		if k.Overflows != nil {
			overflows = fmt.Sprint(*k.Overflows)
		}
		for _, n := range k.SendDrops {
			refused += n
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s, %s\t%s\t%s\t%s\t%d\n", name, bytesText(k.ReceivedBytes), bytesText(k.SentBytes),
			bytesText(uint64(k.ReceiveBuffer)), bytesText(uint64(k.SendBuffer)), onOff(k.GRO), onOff(k.GSO),
			overflows, refused)
	}
	t.Flush()

	if len(s.Outbound.Drops)+len(s.Inbound.Drops) == 0 {
		return nil
	}
	fmt.Fprintln(t, "\nDROPPED\tREASON\tPACKETS\tPER SECOND")
	for _, d := range s.Outbound.Drops {
		fmt.Fprintf(t, "outbound\t%s\t%d\t%.1f\n", d.Reason, d.Packets, d.Rate)
	}
	for _, d := range s.Inbound.Drops {
		fmt.Fprintf(t, "inbound\t%s\t%d\t%.1f\n", d.Reason, d.Packets, d.Rate)
	}
	return t.Flush()
}

// printLeftOut prints which resources have no effect and why, and returns their number.
func printLeftOut(w io.Writer, r *control.Resources) int {
	for _, left := range r.LeftOut {
		fmt.Fprintf(w, "%s\n", cli.Wrap("left out: "+left.Resource+": "+left.Reason, cli.Width(w)))
	}
	return len(r.LeftOut)
}

// printCopies prints how complete and how old the copies of the table are.
func printCopies(w io.Writer, r *control.Replication) {
	text := func(s *control.Stream) string {
		text := fmt.Sprintf("%d connections", s.Entries)
		if s.NoFullCopy {
			text += ", NoFullCopy"
		}
		if s.Differs != "" {
			text += "; another " + s.Differs
		}
		return text
	}
	lacks := func(s *control.Stream) {
		for _, lack := range s.Lacks() {
			fmt.Fprintf(w, "\t%s\n", lack)
		}
	}
	for i := range r.Followers {
		s := &r.Followers[i]
		fmt.Fprintf(w, "standby\t%s at %s: %s, at most %.0f ms behind\n", s.Pod, s.Address, text(s), 1000*s.LagSeconds)
		lacks(s)
	}
	if s := r.Source; s != nil {
		fmt.Fprintf(w, "copy of\t%s at %s: %s, heard %.1f s ago\n", s.Pod, s.Address, text(s), s.LagSeconds)
		lacks(s)
	}
}

// leaseText says who has the Lease.
func leaseText(r *control.Replica) string {
	text := "nobody is known to have it"
	if r.LeaseSeconds != nil {
		text = fmt.Sprintf("%s has it, term %d, renewed %s ago", r.Holder, r.Term, ageText(*r.LeaseSeconds))
	}
	if r.FailingSeconds != nil {
		text += fmt.Sprintf("; out of reach for %s: is the API server away?", ageText(*r.FailingSeconds))
	}
	return text
}

func tunnelText(t *control.Tunnel) string {
	endpoint := t.Endpoint
	if endpoint == "" {
		endpoint = "no endpoint yet"
	}
	handshake := "never a handshake"
	if t.HandshakeSeconds != nil {
		handshake = "handshake " + ageText(*t.HandshakeSeconds) + " ago"
	}
	if t.Preshared {
		handshake += ", with a pre-shared key"
	}
	if t.Configured != "" && t.Configured != t.Endpoint {
		endpoint += " (configured " + t.Configured + ")"
	}
	return fmt.Sprintf("%s, %s, %s; %s received, %s sent, trains %s",
		t.State, endpoint, handshake, bytesText(t.ReceivedBytes), bytesText(t.SentBytes), onOff(t.Trains))
}

// pathText returns the measured path MTU, marked if it is less than configured; "-" if unknown.
func pathText(p *control.Path) string {
	switch {
	case p.MTU == 0:
		return "-"
	case p.Narrow != "":
		return fmt.Sprintf("%d!", p.MTU)
	}
	return fmt.Sprint(p.MTU)
}

// shown are the causes of findings that the tables already show: they say that something works.
var shown = map[string]bool{"handshake-made": true, "tunnel-restored": true, "path-mtu-restored": true,
	"node-heard": true, "node-restored": true}

// peerText returns the traffic through the tunnel.
func peerText(t *control.Tunnel) string {
	text := fmt.Sprintf("rtt %s; last packet received %s, sent %s", rttText(&t.Leg), agoText(t.LastReceivedSeconds),
		agoText(t.LastSentSeconds))
	if c := t.Check; c != nil {
		text += fmt.Sprintf("; check: %s, %d of %d answered", c.State, c.Answered, c.Sent)
	}
	return text
}

// rttText returns the round trip time with three digits, and the loss.
func rttText(l *control.Leg) string {
	text := "-"
	if l.RTTSeconds != nil {
		ms := *l.RTTSeconds * 1e3
		text = fmt.Sprintf("%.*f ms", max(0, 3-len(fmt.Sprint(int(ms)))), ms)
	}
	if l.RequestsLost > 0 {
		text += fmt.Sprintf(", %d/%d lost", l.RequestsLost, l.Requests)
	}
	return text
}

// agoText returns how long ago something was.
func agoText(seconds *float64) string {
	if seconds == nil {
		return "never"
	}
	return ageText(*seconds) + " ago"
}

// lastText returns an amount, and how long ago the last of it was.
func lastText(bytes uint64, seconds *float64) string {
	text := bytesText(bytes)
	if seconds != nil {
		text += ", " + ageText(*seconds)
	}
	return text
}

func tableText(t *control.Table) string {
	text := fmt.Sprintf("%d of %d (%.0f %%), %d without an answer, %d made", t.Connections, t.Max,
		100*float64(t.Connections)/float64(max(t.Max, 1)), t.Unreplied, t.Created)
	if t.Pressed {
		text += "; nearly full: those without an answer live 30 s"
	}
	return text
}

func trafficText(t *control.Traffic) string {
	elsewhere := -int64(t.Dropped)
	for _, d := range t.Drops {
		elsewhere += int64(d.Packets)
	}
	parts := []string{fmt.Sprintf("%d packets, %d forwarded, %d delivered here, %d dropped", t.Received, t.Forwarded,
		t.Delivered, t.Dropped)}
	if elsewhere > 0 {
		parts = append(parts, fmt.Sprintf("%d more dropped before or after", elsewhere))
	}
	if t.Untracked > 0 {
		parts = append(parts, fmt.Sprintf("%d untracked", t.Untracked))
	}
	if t.Asymmetric > 0 {
		parts = append(parts, fmt.Sprintf("%d asymmetric", t.Asymmetric))
	}
	return strings.Join(parts, ", ")
}

// memoryText returns the memory in use. Go's figure includes pages that nobody has touched, and may
// exceed the resident size; it is shown beside the limit that applies to it.
func memoryText(m *control.Memory) string {
	text := bytesText(m.Resident) + " resident"
	if m.HeapLimit > 0 {
		text += "; Go counts " + bytesText(m.Heap) + ", with pages not touched yet, and aims at " +
			bytesText(uint64(m.HeapLimit))
	}
	return text
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
