package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	gatewaycontrol "culvert/gateway/control"
	"culvert/integration/lab/step"
)

// stableView returns the view once it has not changed for longer than a delayed acknowledgement
// takes.
func (l *Lab) stableView(ctx context.Context, i int) ([]string, error) {
	last, err := l.view(ctx, i)
	for began := time.Now(); err == nil; {
		time.Sleep(10 * step.Poll)
		var next []string
		if next, err = l.view(ctx, i); slices.Equal(last, next) {
			break
		}
		if time.Since(began) > viewPatience {
			return nil, fmt.Errorf("%s: its counters change without traffic: %s", l.Gateway(i).Name(),
				differences(last, next))
		}
		last = next
	}
	return last, err
}

// differences lists the lines in which two views differ.
func differences(before, after []string) string {
	if len(before) != len(after) {
		return fmt.Sprintf("%d lines before, %d after", len(before), len(after))
	}
	var all []string
	for i := range before {
		if before[i] != after[i] {
			all = append(all, fmt.Sprintf("%q before, %q after", before[i], after[i]))
		}
	}
	return strings.Join(all, "; ")
}

// view returns the lines of a gateway's metrics, without those that change with time or
// observation, its open sockets and its connections.
func (l *Lab) view(ctx context.Context, i int) (_ []string, err error) {
	defer step.Catch(&err)
	p := l.Gateway(i)
	metrics := step.Must(gatewayGet(ctx, p.Host, "/metrics"))
	lines := slices.DeleteFunc(strings.Split(metrics, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "culvert_listener_") || strings.HasPrefix(line, "culvert_node_silence_seconds")
	})
	proc := filepath.Join("/proc", fmt.Sprint(p.Cmd.Process.Pid))
	for _, table := range []string{"udp", "udp6", "tcp", "tcp6"} {
		text := step.Must(os.ReadFile(filepath.Join(proc, "net", table)))
		for line := range strings.Lines(string(text)) {
			// Local address, state and inode; 0A is a TCP listener.
			if f := strings.Fields(line); len(f) > 9 && (strings.HasPrefix(table, "udp") || f[3] == "0A") {
				lines = append(lines, fmt.Sprintf("%s %s %s %s", table, f[1], f[3], f[9]))
			}
		}
	}
	if l.Options.Sandbox.Runsc != "" { // its control socket is not on the host
		return lines, nil
	}
	var connections []*gatewaycontrol.Connection
	err = gatewaycontrol.Each(ctx, gatewaycontrol.NewClient(l.Socket(i)), "/v1/connections", nil,
		func(n *gatewaycontrol.Connection) bool {
			n.IdleSeconds, n.LeftSeconds = 0, 0
			connections = append(connections, n)
			return true
		})
	slices.SortFunc(connections, func(a, b *gatewaycontrol.Connection) int { return cmp.Compare(a.ID, b.ID) })
	for _, n := range connections {
		lines = append(lines, fmt.Sprintf("%+v", *n))
	}
	return lines, err
}

// configured returns the configuration file that a gateway reports, and its rules and routes.
func (l *Lab) configured(ctx context.Context, i int) ([]string, error) {
	if l.Options.Sandbox.Runsc != "" { // its control socket is not on the host
		return nil, nil
	}
	c := gatewaycontrol.NewClient(l.Socket(i))
	s, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	lines := []string{s.ConfigFile + " " + s.ConfigSum}
	err = gatewaycontrol.Each(ctx, c, "/v1/rules", nil, func(r *gatewaycontrol.Rule) bool {
		r.Packets, r.Bytes = nil, nil
		lines = append(lines, fmt.Sprintf("%+v", *r))
		return true
	})
	return lines, errors.Join(err, gatewaycontrol.Each(ctx, c, "/v1/routes", nil, func(r *gatewaycontrol.Route) bool {
		lines = append(lines, fmt.Sprintf("%+v", *r))
		return true
	}))
}
