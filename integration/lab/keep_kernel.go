package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"culvert/gateway/node"
)

// kernelPause is how long a restart of a gateway of kernel parts may take: its peer notices after 15 s that their session is dead, and TCP
// has doubled its timeout meanwhile.
const kernelPause = time.Minute

// checkKernelRestart is checkRestart of gateways of kernel parts, to compare with. Their tables of connections are the kernel's and stay;
// they know no other connections than those between pods.
func (l *Lab) checkKernelRestart(ctx context.Context, n int) (figure string, err error) {
	missing := MissingForReference()
	if l.options.Mode != node.VXLAN {
		missing = errors.Join(missing, errors.New("its nodes use VXLAN"))
	}
	if missing != nil {
		return fmt.Sprintf("not measured: %v", missing), nil
	}
	if err := l.useGateways(ctx, &referenceAsIs); err != nil {
		return "", err
	}
	c, err := newCrowd(ctx, l, n, true)
	if err == nil {
		c.wait = kernelPause
		err = c.settle()
	}
	if err == nil {
		figure, err = l.eachGateway(c, kernelPause, func(p *Process) error { return l.restartKernelParts(ctx, p) }, func() error { return nil })
	}
	err = errors.Join(err, c.end())
	return figure, errors.Join(err, l.useGateways(ctx, &culvertGateway))
}

// restartKernelParts ends the gateway of kernel parts p and starts another in its place.
func (l *Lab) restartKernelParts(ctx context.Context, p *Process) error {
	if err := l.stop(p); err != nil {
		return err
	}
	c := clusterOf(p.Host.Name)
	next, err := l.startGateway(c, &referenceAsIs) // at the end of the list
	if err != nil {
		return err
	}
	l.replace(p, next)
	return errors.Join(next.waitReady(ctx), l.forgetNeighbours(c))
}
