package lab

import (
	"context"
	"fmt"
	"slices"

	"culvert/gateway/configfile"
	"culvert/integration/lab/plan"
)

// Restart ends the gateway or node of a host, if it runs, and starts it again with the
// configuration in its file.
func (l *Lab) Restart(ctx context.Context, host string) error {
	if l.Host(host) == nil {
		return NoHost(host)
	}
	p := l.Process(host)
	if p == nil {
		return fmt.Errorf("%s runs no culvert: restart a gateway or a node, such as %s/node1", host,
			plan.Of(host).Name)
	}
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	if err := l.StopProcess(p); err != nil {
		return err
	}
	return l.StartAgain(ctx, host)
}

// StopProcess ends a process if it runs.
func (l *Lab) StopProcess(p *Process) error {
	p.stopped.Store(true)
	return end(p)
}

// StartAgain starts the gateway or node of a host again after the previous one has ended, and waits
// until it serves.
func (l *Lab) StartAgain(ctx context.Context, host string) error {
	p, err := l.startCulvert(host)
	if err != nil {
		return err
	}
	return p.waitReady(ctx)
}

// Process returns the gateway or node of a host, or nil.
func (l *Lab) Process(host string) *Process {
	i := slices.IndexFunc(l.Processes, func(p *Process) bool { return p.Host.Name == host })
	if i < 0 {
		return nil
	}
	return l.Processes[i]
}

// NoHost is the error about a host that does not exist.
func NoHost(name string) error {
	if near := configfile.Closest(name, plan.HostNames()); near != "" {
		return fmt.Errorf("no host %q; did you mean %s?", name, near)
	}
	return fmt.Errorf("no host %q; see: culvert-lab status", name)
}
