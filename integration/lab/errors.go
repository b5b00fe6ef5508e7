package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// errorPort is the near port of all senders that provoke an ICMP error at once.
const errorPort = 42000

// errorChecks concern ICMP errors from beyond the tunnel.
func (l *Lab) errorChecks(p *plan.Plan) []Check {
	rome, milan := &p[0], &p[1]
	pod := l.HostOf(p, "rome/pod1")
	mapped := &probe.Ends{From: pod, To: l.Host("milan/client").At(milan.Mapped), Target: milan.Seen(milan.MappedAs),
		WantSource: rome.Seen(pod.Address)}
	// Errors about a mapped host come from an address that rome does not know.
	u := milan.Seen(milan.UnknownSource())
	hops := []netip.Addr{rome.Nodes[0].PodCIDR.Addr(), rome.Internal, u, u, u, mapped.Target}
	return []Check{
		{"port unreachable", "rome → milan/pod2", func(ctx context.Context) (string, error) {
			return l.checkUnreachable(ctx, p)
		}},
		{"traceroute, router", mapped.Path(), func(ctx context.Context) (string, error) {
			return probe.CheckTrace(ctx, mapped.From, mapped.Target, hops)
		}},
		{"too big, router", mapped.Path(), func(ctx context.Context) (string, error) {
			return mapped.CheckTooBig(ctx, u)
		}},
	}
}

// checkUnreachable makes pods, nodes and hosts behind a pod send from the same port to a closed
// port of a remote pod. Each must get one error, about its own datagram.
func (l *Lab) checkUnreachable(ctx context.Context, plan *plan.Plan) (_ string, err error) {
	defer step.Catch(&err)
	rome := &plan[0]
	senders := []*probe.Ends{}
	for _, s := range []struct {
		host  string
		local netip.Addr
	}{
		{"rome/pod1", rome.Nodes[0].Pod}, {"rome/pod2", rome.Nodes[1].Pod}, {"rome/pod1", rome.BehindFirst},
		{"rome/pod1", rome.BehindOther},
		{"rome/node1", rome.Nodes[0].Underlay}, {"rome/node2", rome.Nodes[1].Underlay}, {"rome/client", rome.Client},
	} {
		e := l.PairOf(plan, s.host, "milan/pod2")
		e.Local = s.local
		senders = append(senders, e)
	}
	// A port that was free a moment ago: nothing else opens ports in this pod.
	closed := step.Must(probe.NewEchoServer(senders[0].To))
	port := uint16(closed.Port())
	closed.Close()
	watchers, want := make(map[*netns.Host]*probe.Pinger), make(map[*netns.Host]int)
	for _, e := range senders {
		if watchers[e.From] == nil {
			if watchers[e.From], err = probe.NewPinger(e.From); err != nil {
				return "", err
			}
			defer watchers[e.From].Close()
		}
		want[e.From]++
		conn, err := e.From.DialFrom(ctx, netns.Over("udp", e.Target), netip.AddrPortFrom(e.Local, errorPort),
			netip.AddrPortFrom(e.Target, port), nil)
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.From.Name, err)
		}
		defer conn.Close()
		// The answer to the datagram is an error that the socket reports.
		step.Must(fmt.Fprintf(conn, "from %s", e.Local))
		conn.SetReadDeadline(time.Now().Add(probe.ReplyTimeout))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			return "", fmt.Errorf("%s, from %s: %v, want %v", e.From.Name, e.Local, err, unix.ECONNREFUSED)
		}
	}
	// Every sender has received its own error, so any extra one has arrived too.
	heard := make(map[netip.Addr]int)
	for host, p := range watchers {
		for n := 0; ; {
			limit := probe.ReplyTimeout
			if n == want[host] {
				limit = 10 * step.Poll
			}
			a, err := p.Read(time.Now().Add(limit))
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return "", err
			}
			if a.Message.Type != p.Types().Unreachable || a.Quote == nil {
				continue
			}
			if a.From != senders[0].Target || a.Quote.Destination != a.From || a.Quote.SourcePort != errorPort {
				return "", fmt.Errorf("%s: error from %s quotes port %d to %s, want %d to %s", host.Name, a.From,
					a.Quote.SourcePort,
					a.Quote.Destination, errorPort, senders[0].Target)
			}
			heard[a.Quote.Source]++
			n++
		}
	}
	for _, e := range senders {
		if heard[e.Local] != 1 {
			return "", fmt.Errorf("%s received %d errors that quote %s, want 1 (all: %v)", e.From.Name, heard[e.Local],
				e.Local, heard)
		}
	}
	return fmt.Sprintf("%d senders of one port, 1 error each", len(senders)), nil
}
