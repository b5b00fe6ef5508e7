package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"culvert/gateway/node"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/reference"
	"culvert/integration/lab/step"
)

// kernelPause is how long a restart of a kernel-based gateway may take: its peer notices after 15 s
// that their session is dead, and TCP has doubled its timeout meanwhile.
const kernelPause = time.Minute

// checkKernelParts is checkRestart for kernel-based gateways, for comparison: end ends one. Their
// connection tables are the kernel's and stay; they support only connections between pods.
func (l *Lab) checkKernelParts(ctx context.Context, n int, end func(*Process) error) (figure string, err error) {
	defer step.Catch(&err)
	missing := reference.Missing()
	if l.Options.Mode != node.VXLAN {
		missing = errors.Join(missing, errors.New("its nodes use VXLAN"))
	}
	if missing != nil {
		return fmt.Sprintf("not measured: %v", missing), nil
	}
	restore := step.Must(l.keepReferenceSysctls())
	defer func() { err = errors.Join(err, restore()) }() // a killed one does not
	step.Try(l.UseGateways(ctx, &ReferenceGateway))
	c, err := newFlowSet(ctx, l, n, true)
	if err == nil {
		c.wait, c.mayLose = kernelPause, true
		err = c.measureUndisturbed()
	}
	if err == nil {
		figure, err = l.eachGateway(c, kernelPause, func(p *Process) error {
			if err := end(p); err != nil {
				return err
			}
			return l.startKernelParts(ctx, p)
		}, func() error { return nil })
	}
	err = errors.Join(err, c.end())
	return figure, errors.Join(err, l.UseGateways(ctx, &CulvertGateway))
}

// startKernelParts starts another kernel-based gateway to replace p, which has ended.
func (l *Lab) startKernelParts(ctx context.Context, p *Process) error {
	c := plan.Of(p.Host.Name)
	next, err := l.startGateway(c, &ReferenceGateway)
	if err != nil {
		return err
	}
	return errors.Join(next.waitReady(ctx), l.forgetNeighbours(c))
}

// killKernelParts kills a kernel-based gateway, and removes its leftovers.
func (l *Lab) killKernelParts(p *Process) error {
	if err := p.kill(); err != nil {
		return err
	}
	return p.Host.Do(reference.RemoveKilled)
}

// keepReferenceSysctls returns a function that restores the sysctls that a kernel-based gateway
// sets on the gateways' hosts.
func (l *Lab) keepReferenceSysctls() (restore func() error, err error) {
	before := make(map[*netns.Host]map[string]string)
	for i := range plan.V4 {
		h, values := l.Host(plan.V4[i].Name+"/gateway"), make(map[string]string)
		before[h] = values
		err = errors.Join(err, h.Do(func() (err error) {
			defer step.Catch(&err)
			for name := range reference.Sysctls {
				values[name] = strings.TrimSpace(string(step.Must(os.ReadFile(filepath.Join("/proc/sys/net", name)))))
			}
			return nil
		}))
	}
	return func() (err error) {
		for h, values := range before {
			err = errors.Join(err, h.Do(func() error { return netns.Sysctl(values) }))
		}
		return err
	}, err
}
