package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	gatewaycontrol "culvert/gateway/control"
	"culvert/integration/lab/step"
)

// A view is what a gateway shows of itself: values, by what they are of.
type view map[string]string

// changes returns what differs between two views.
func (v view) changes(after view) map[string]string {
	all := make(map[string]string)
	for what, value := range v {
		if now, there := after[what]; !there {
			all[what] = fmt.Sprintf("%s %s is gone", what, value)
		} else if now != value {
			all[what] = fmt.Sprintf("%s was %s and is %s", what, value, now)
		}
	}
	for what, now := range after {
		if _, there := v[what]; !there {
			all[what] = fmt.Sprintf("%s %s is new", what, now)
		}
	}
	return all
}

// view returns a gateway's metrics, without those that change with time or observation, its open
// sockets and its connections.
func (l *Lab) view(ctx context.Context, i int) (_ view, err error) {
	defer step.Catch(&err)
	p, v := l.Gateway(i), make(view)
	metrics := step.Must(gatewayGet(ctx, p.Host, "/metrics"))
	for line := range strings.Lines(metrics) {
		if end := strings.LastIndexByte(line, ' '); end >= 0 && !strings.HasPrefix(line, "culvert_listener_") &&
			!strings.HasPrefix(line, "culvert_node_silence_seconds") {
			v[line[:end]] = strings.TrimSpace(line[end:])
		}
	}
	proc := filepath.Join("/proc", fmt.Sprint(p.Cmd.Process.Pid))
	for _, table := range []string{"udp", "udp6", "tcp", "tcp6"} {
		text := step.Must(os.ReadFile(filepath.Join(proc, "net", table)))
		for line := range strings.Lines(string(text)) {
			// Local address, state and inode; 0A is a TCP listener.
			if f := strings.Fields(line); len(f) > 9 && (strings.HasPrefix(table, "udp") || f[3] == "0A") {
				v[fmt.Sprintf("socket %s %s %s", table, f[1], f[9])] = f[3]
			}
		}
	}
	if l.Options.Sandbox.Runsc != "" { // its control socket is not on the host
		return v, nil
	}
	return v, gatewaycontrol.Each(ctx, gatewaycontrol.NewClient(l.Socket(i)), "/v1/connections", nil,
		func(n *gatewaycontrol.Connection) bool {
			n.IdleSeconds, n.LeftSeconds = 0, 0
			v[fmt.Sprintf("connection %d", n.ID)] = fmt.Sprintf("%+v", *n)
			return true
		})
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
