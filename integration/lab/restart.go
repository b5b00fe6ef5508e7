package lab

import (
	"context"
	"errors"
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
	p := l.process(host)
	if p == nil {
		return fmt.Errorf("%s runs no culvert: restart a gateway or a node, such as %s/node1", host,
			plan.Of(host).Name)
	}
	if f := l.OffBy(host); f != nil {
		return fmt.Errorf("%s is kept off by the fault %s; take it back first: culvert-lab mend %s", host,
			f.Name, f.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := l.stop(p); err != nil {
		return err
	}
	return errors.Join(l.startAgain(ctx, host), l.remakeKernelFaults())
}

// restart ends the gateways and nodes of hosts, and starts those again that no fault stops.
// Gateways are restarted together, the server first: a client notices only after a while that its
// server has forgotten their session.
func (l *Lab) restart(ctx context.Context, hosts []string) error {
	if slices.ContainsFunc(hosts, plan.IsGateway) {
		both := []string{plan.V4[1].Name + "/gateway", plan.V4[0].Name + "/gateway"}
		hosts = append(both, slices.DeleteFunc(hosts, func(name string) bool { return slices.Contains(both, name) })...)
	}
	var errs []error
	for _, name := range hosts {
		errs = append(errs, l.stop(l.process(name)))
	}
	for _, name := range hosts {
		if l.OffBy(name) == nil {
			errs = append(errs, l.startAgain(ctx, name))
		}
	}
	return errors.Join(append(errs, l.remakeKernelFaults())...)
}

// stop ends a process if it runs.
func (l *Lab) stop(p *Process) error {
	p.stopped.Store(true)
	return end(p)
}

// startAgain starts the gateway or node of a host again after the previous one has ended, and waits
// until it serves.
func (l *Lab) startAgain(ctx context.Context, host string) error {
	p, err := l.startCulvert(host)
	if err != nil {
		return err
	}
	return p.waitReady(ctx)
}

// process returns the gateway or node of a host, or nil.
func (l *Lab) process(host string) *Process {
	i := slices.IndexFunc(l.Processes, func(p *Process) bool { return p.Host.Name == host })
	if i < 0 {
		return nil
	}
	return l.Processes[i]
}

// OffBy returns the fault that stops a host's process, or nil.
func (l *Lab) OffBy(host string) *Fault {
	i := slices.IndexFunc(l.broken, func(f *Fault) bool { return f.off == host })
	if i < 0 {
		return nil
	}
	return l.broken[i]
}

// remakeKernelFaults makes the kernels' faults again, including those that disappeared with the
// link of a restarted node.
func (l *Lab) remakeKernelFaults() error {
	var errs []error
	for _, f := range l.broken {
		errs = append(errs, l.eachKernel(f, true))
	}
	return errors.Join(errs...)
}

// NoHost is the error about a host that does not exist.
func NoHost(name string) error {
	if near := configfile.Closest(name, plan.HostNames()); near != "" {
		return fmt.Errorf("no host %q; did you mean %s?", name, near)
	}
	return fmt.Errorf("no host %q; see: culvert-lab status", name)
}
