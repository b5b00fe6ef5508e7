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
	"culvert/integration/lab/step"
)

// errorPort is the near port of all senders that provoke an ICMP error at once.
const errorPort = 42000

// errorChecks concern ICMP errors from beyond the tunnel.
func (l *Lab) errorChecks(p *plan.Plan) []Check {
	rome, milan := &p[0], &p[1]
	pod := l.host(p, "rome/pod1")
	mapped := &ends{from: pod, to: l.Host("milan/client").At(milan.Mapped), target: milan.Seen(milan.MappedAs),
		wantSource: rome.Seen(pod.Address)}
	// Errors about a mapped host come from an address that rome does not know.
	u := milan.Seen(milan.UnknownSource())
	hops := []netip.Addr{rome.Nodes[0].PodCIDR.Addr(), rome.Internal, u, u, u, mapped.target}
	return []Check{
		{"port unreachable", "rome → milan/pod2", func(ctx context.Context) (string, error) {
			return l.checkUnreachable(ctx, p)
		}},
		{"traceroute, router", mapped.path(), func(ctx context.Context) (string, error) {
			return checkTrace(ctx, mapped.from, mapped.target, hops)
		}},
		{"too big, router", mapped.path(), func(ctx context.Context) (string, error) {
			return mapped.checkTooBig(ctx, u)
		}},
	}
}

// checkUnreachable makes pods, nodes and hosts behind a pod send from the same port to a closed
// port of a remote pod. Each must get one error, about its own datagram.
func (l *Lab) checkUnreachable(ctx context.Context, plan *plan.Plan) (_ string, err error) {
	defer step.Catch(&err)
	rome := &plan[0]
	senders := []*ends{}
	for _, s := range []struct {
		host  string
		local netip.Addr
	}{
		{"rome/pod1", rome.Nodes[0].Pod}, {"rome/pod2", rome.Nodes[1].Pod}, {"rome/pod1", rome.BehindFirst},
		{"rome/pod1", rome.BehindOther},
		{"rome/node1", rome.Nodes[0].Underlay}, {"rome/node2", rome.Nodes[1].Underlay}, {"rome/client", rome.Client},
	} {
		e := l.pairOf(plan, s.host, "milan/pod2")
		e.local = s.local
		senders = append(senders, e)
	}
	// A port that was free a moment ago: nothing else opens ports in this pod.
	closed := step.Must(newEchoServer(senders[0].to))
	port := uint16(closed.port())
	closed.close()
	watchers, want := make(map[*netns.Host]*pinger), make(map[*netns.Host]int)
	for _, e := range senders {
		if watchers[e.from] == nil {
			if watchers[e.from], err = newPinger(e.from); err != nil {
				return "", err
			}
			defer watchers[e.from].close()
		}
		want[e.from]++
		conn, err := e.from.DialFrom(ctx, netns.Over("udp", e.target), netip.AddrPortFrom(e.local, errorPort),
			netip.AddrPortFrom(e.target, port), nil)
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.from.Name, err)
		}
		defer conn.Close()
		// The answer to the datagram is an error that the socket reports.
		step.Must(fmt.Fprintf(conn, "from %s", e.local))
		conn.SetReadDeadline(time.Now().Add(replyTimeout))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			return "", fmt.Errorf("%s, from %s: %v, want %v", e.from.Name, e.local, err, unix.ECONNREFUSED)
		}
	}
	// Every sender has received its own error, so any extra one has arrived too.
	heard := make(map[netip.Addr]int)
	for host, p := range watchers {
		for n := 0; ; {
			limit := replyTimeout
			if n == want[host] {
				limit = 10 * step.Poll
			}
			a, err := p.read(time.Now().Add(limit))
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return "", err
			}
			if a.message.Type != p.types().unreachable || a.quote == nil {
				continue
			}
			if a.from != senders[0].target || a.quote.Destination != a.from || a.quote.SourcePort != errorPort {
				return "", fmt.Errorf("%s: error from %s quotes port %d to %s, want %d to %s", host.Name, a.from,
					a.quote.SourcePort,
					a.quote.Destination, errorPort, senders[0].target)
			}
			heard[a.quote.Source]++
			n++
		}
	}
	for _, e := range senders {
		if heard[e.local] != 1 {
			return "", fmt.Errorf("%s received %d errors that quote %s, want 1 (all: %v)", e.from.Name, heard[e.local],
				e.local, heard)
		}
	}
	return fmt.Sprintf("%d senders of one port, 1 error each", len(senders)), nil
}
